"""What a data set looks like to the rest of the package."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quped.errors import DataError
from quped.typing import Batch


class Samples(Protocol):
    """Labelled samples that can be drawn by index."""

    @property
    def labels(self) -> Tensor:
        """All labels, int64."""
        ...

    def __len__(self) -> int:
        """Return the number of samples."""
        ...

    def batch(self, indices: Tensor, rng: np.random.Generator | None = None) -> Batch:
        """Return the samples at `indices`. Training passes `rng`, from which augmentation, if any, is drawn."""
        ...


@dataclass(frozen=True)
class TensorSamples:
    """Samples that are rows of a tensor in memory."""

    inputs: Tensor = field(repr=False)
    labels: Tensor = field(repr=False)

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.labels)

    def batch(self, indices: Tensor, rng: np.random.Generator | None = None) -> Batch:
        """Return the rows at `indices`."""
        return Batch((self.inputs[indices],), self.labels[indices])


@dataclass(frozen=True)
class Subset:
    """Some samples of a larger set, which is not copied."""

    whole: Samples
    indices: Tensor = field(repr=False)

    @property
    def labels(self) -> Tensor:
        """Labels of the subset."""
        return self.whole.labels[self.indices]

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.indices)

    def batch(self, indices: Tensor, rng: np.random.Generator | None = None) -> Batch:
        """Return samples by their index in the subset."""
        return self.whole.batch(self.indices[indices], rng)


@dataclass(frozen=True)
class Dataset:
    """A data set with its canonical split."""

    name: str
    train: Samples
    test: Samples
    classes: int
    input_shape: tuple[int, ...]
    """Channels, height and width of images; the size of the vocabulary of texts."""
    class_names: tuple[str, ...] = ()
    writers: NDArray[np.int64] | None = None
    """Who wrote each sample. If known, `train` and `test` are one pool that is partitioned by writer."""


Pair = tuple[Tensor | NDArray[np.generic], Tensor | NDArray[np.generic]]


def as_samples(data: Samples | Pair, what: str) -> Samples:
    """Take a user's `(inputs, labels)`, tensors or arrays, or anything that already is `Samples`; check it.

    `what` names the data in errors, such as "training data of client 'phone'".
    """
    if isinstance(data, TensorSamples):
        data = (data.inputs, data.labels)
    if isinstance(data, tuple | list):
        samples: Samples = from_pair(data, what)
    elif all(hasattr(data, name) for name in ("labels", "batch", "__len__")):
        samples = data
        integers = isinstance(data.labels, Tensor) and data.labels.dtype == torch.int64 and data.labels.dim() == 1
        if not integers or len(data.labels) != len(data):
            raise DataError(f"The labels of the {what} must be a tensor of int64, one for each of its samples.")
    else:
        raise DataError(
            f"The {what} must be a pair (inputs, labels), or have labels, batch() and a length, got {data!r:.80}."
        )
    if isinstance(samples, TensorSamples) and not bool(samples.inputs.isfinite().all()):
        raise DataError(f"The inputs of the {what} hold NaN or infinity: clean them before training.")
    if len(samples) == 0:
        raise DataError(f"The {what} are empty: a client needs at least one sample.")
    if int(samples.labels.min()) < 0:
        raise DataError(f"The labels of the {what} must be 0 or more, got {int(samples.labels.min())}.")
    return samples


def from_pair(data: Sequence[object], what: str) -> TensorSamples:
    """Take a user's inputs and labels as tensors."""
    if len(data) != 2:
        raise DataError(f"The {what} must be a pair (inputs, labels), got {len(data)} things.")
    try:
        inputs, labels = (torch.as_tensor(part) for part in data)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"The {what} must be tensors or arrays of numbers: {error}.") from error
    if inputs.is_floating_point():
        inputs = inputs.to(torch.get_default_dtype())
    if labels.dim() != 1 or labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise DataError(f"The labels of the {what} must be class numbers, one integer for each sample.")
    if inputs.dim() == 0:
        raise DataError(f"The inputs of the {what} must have a row for each sample, got a single number.")
    if len(inputs) != len(labels):
        raise DataError(f"The {what} have {len(inputs)} inputs but {len(labels)} labels.")
    return TensorSamples(inputs, labels.long())
