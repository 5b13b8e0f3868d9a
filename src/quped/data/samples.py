"""Samples and data sets, in the form that the rest of the package uses."""

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

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
    """Samples that are rows of tensors in memory: of one, or of several for networks with several inputs."""

    inputs: Tensor | tuple[Tensor, ...] = field(repr=False)
    labels: Tensor = field(repr=False)

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.labels)

    def batch(self, indices: Tensor, rng: np.random.Generator | None = None) -> Batch:
        """Return the rows at `indices`."""
        inputs = self.inputs if isinstance(self.inputs, tuple) else (self.inputs,)
        return Batch(tuple(part.index_select(0, indices) for part in inputs), self.labels.index_select(0, indices))


@dataclass(frozen=True)
class Subset:
    """Some samples of a larger set, without a copy."""

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


def rows_of(samples: Samples) -> tuple[Tensor, ...] | None:
    """Return the tensors whose rows samples are; None if they are made otherwise, perhaps at random."""
    root = root_of(samples)
    if type(root) is not TensorSamples:
        return None
    return root.inputs if isinstance(root.inputs, tuple) else (root.inputs,)


def root_of(samples: Samples) -> Samples:
    """Return the samples that a subset is part of, or the samples themselves."""
    while type(samples) is Subset:
        samples = samples.whole
    return samples


def subset(samples: Samples, indices: NDArray[np.int64]) -> Samples:
    """Return some of the samples."""
    return Subset(samples, torch.from_numpy(indices))


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
    """The writer of each sample. If known, `train` and `test` are one pool that is partitioned by writer."""
    people: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None
    """The person of each training and of each test sample, if known: one split for all, whoever gets the samples."""
