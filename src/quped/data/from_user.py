"""Data that a user gives: whatever it is, checked, as `Samples`."""

from collections.abc import Sequence, Sized
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import TensorDataset, default_collate

from quped._rng import torch_seeded
from quped.data.samples import Samples, TensorSamples
from quped.errors import DataError
from quped.typing import Batch

INTEGERS = (*(torch.uint8, torch.uint16, torch.uint32), *(torch.int8, torch.int16, torch.int32, torch.int64))

Pair = tuple[Tensor | NDArray[np.generic], Tensor | NDArray[np.generic]]

Data = Samples | Pair | torch.utils.data.Dataset[Any]
"""What a user may call data."""


@dataclass(frozen=True)
class TorchSamples:
    """Samples of a PyTorch data set, fetched one by one when they are asked for."""

    dataset: torch.utils.data.Dataset[Any] = field(repr=False)
    labels: Tensor = field(repr=False)

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.labels)

    def batch(self, indices: Tensor, rng: np.random.Generator | None = None) -> Batch:
        """Return samples by their index. What is random in the data set follows PyTorch's generator."""
        *inputs, labels = default_collate([self.dataset[i] for i in indices.tolist()])
        return Batch(tuple(usual_float(part) for part in inputs), labels.long())


def as_samples(data: Data, what: str) -> Samples:
    """Take a user's `(inputs, labels)`, PyTorch data set, or anything that already is `Samples`; check it.

    `what` names the data in errors, such as "training data of client 'phone'".
    """
    if type(data) is TensorSamples:  # not of a subclass, which may change what it gives
        data = (data.inputs, data.labels)
    elif type(data) is TensorDataset and len(data.tensors) == 2:
        data = data.tensors
    if isinstance(data, tuple | list):
        samples: Samples = from_pair(data, what)
    elif all(hasattr(data, name) for name in ("labels", "batch", "__len__")):
        samples = cast(Samples, data)
        labels: object = samples.labels
        integers = isinstance(labels, Tensor) and labels.dtype == torch.int64 and labels.dim() == 1
        if not integers or len(samples.labels) != len(samples):
            raise DataError(f"The labels of the {what} must be a tensor of int64, one for each of its samples.")
    elif isinstance(data, torch.utils.data.Dataset):
        samples = from_torch(data, what)
    else:
        raise DataError(
            f"The {what} must be a pair (inputs, labels), a PyTorch data set, or have labels, batch() and a length, "
            f"got {data!r:.80}."
        )
    if isinstance(samples, TensorSamples) and not bool(samples.inputs.isfinite().all()):
        raise DataError(f"The inputs of the {what} hold NaN or infinity: clean them before training.")
    if len(samples) == 0:
        raise DataError(f"The {what} are empty: a client needs at least one sample.")
    if int(samples.labels.min()) < 0:
        raise DataError(f"The labels of the {what} must be 0 or more, got {int(samples.labels.min())}.")
    check_batch(samples, what)
    return samples


def check_batch(samples: Samples, what: str) -> None:
    """Draw a batch, as training does, and check that it is one."""
    indices = torch.tensor([0, len(samples) - 1])
    try:
        with torch_seeded(0, "check"):  # so that a random data set leaves the user's generator alone
            batch: object = samples.batch(indices, np.random.default_rng(0))
    except Exception as error:  # whatever a user's samples do
        raise DataError(f"No batch can be drawn from the {what}: {type(error).__name__}: {error}") from error
    inputs: object = batch.inputs if isinstance(batch, Batch) else None
    tensors = isinstance(inputs, tuple) and all(isinstance(part, Tensor) for part in inputs)
    if not isinstance(batch, Batch) or not tensors or len(batch.inputs) == 0:
        raise DataError(f"A batch of the {what} must be a Batch((input, ...), labels) of tensors, got {batch!r:.80}.")
    asked = samples.labels[indices]
    if not isinstance(batch.labels, Tensor) or not torch.equal(batch.labels, asked):
        raise DataError(
            f"A batch of the {what} has the labels {batch.labels!r:.80} where `labels` has {asked}: "
            "they must be the same, in the same order."
        )


def from_pair(data: Sequence[object], what: str) -> TensorSamples:
    """Take a user's inputs and labels as tensors."""
    if len(data) != 2:
        raise DataError(f"The {what} must be a pair (inputs, labels), got {len(data)} things.")
    try:
        # Arrays that are read backwards, or may not be written to, are copied: tensors cannot be such.
        arrays = [np.require(part, requirements=("C", "W")) if isinstance(part, np.ndarray) else part for part in data]
        inputs, labels = (torch.as_tensor(part) for part in arrays)
    except (TypeError, ValueError, RuntimeError) as error:
        several = " For several inputs, see `quped.data.Samples`." if isinstance(data[0], tuple | list) else ""
        raise DataError(f"The {what} must be tensors or arrays of numbers: {error}.{several}") from error
    inputs, labels = usual_float(inputs), class_numbers(labels, what)
    if inputs.dim() == 0:
        raise DataError(f"The inputs of the {what} must have a row for each sample, got a single number.")
    if len(inputs) != len(labels):
        raise DataError(f"The {what} have {len(inputs)} inputs but {len(labels)} labels.")
    return TensorSamples(inputs, labels)


def from_torch(data: torch.utils.data.Dataset[Any], what: str) -> Samples:
    """Take a user's PyTorch data set. Its labels are read once, and so are all of its samples."""
    found = []
    try:
        with torch_seeded(0, "labels"):
            for i in range(len(cast(Sized, data))):
                item = data[i]
                found.append(item[-1])
                if not all(bool(torch.as_tensor(part).isfinite().all()) for part in item[:-1]):
                    raise DataError(f"Sample {i} of the {what} holds NaN or infinity: clean it before training.")
        labels = default_collate(found) if found else torch.zeros(0, dtype=torch.long)
    except DataError:
        raise
    except Exception as error:  # whatever a user's data set does
        raise DataError(
            f"The {what} must have a length, and items (input, ..., label) of tensors or numbers: "
            f"{type(error).__name__}: {error}"
        ) from error
    return TorchSamples(data, class_numbers(labels, what))


def class_numbers(labels: object, what: str) -> Tensor:
    """Return labels as int64, if class numbers is what they are."""
    if not isinstance(labels, Tensor):
        raise DataError(f"The labels of the {what} must be class numbers, got {labels!r:.80}.")
    if labels.dim() == 1 and labels.dtype in INTEGERS:
        return labels.long()
    remedy = "convert them to integers"
    if labels.dim() == 2:
        remedy = "take their only column, y[:, 0]" if labels.shape[1] == 1 else "of one-hot labels, take y.argmax(1)"
    raise DataError(
        f"The labels of the {what} must be class numbers, one integer for each sample, got "
        f"{dtype_name(labels.dtype)} of shape {tuple(labels.shape)}: {remedy}."
    )


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a type of numbers."""
    return str(dtype).removeprefix("torch.")


def usual_float(inputs: Tensor) -> Tensor:
    """Return numbers with a point in the type that networks have; others as they are."""
    return inputs.to(torch.get_default_dtype()) if inputs.is_floating_point() else inputs
