"""Signals of a stored data set, as batches that networks take."""

from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from quped.data.download import store
from quped.typing import Batch


class SignalSamples:
    """One half of a stored data set of signals `[channels, 1, times]`: float16 on the disk, mapped into memory.

    A batch is normalised with a mean and a standard deviation for each channel. Between processes it travels as a
    reference to its file.
    """

    def __init__(self, file: Path, half: str, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        """Map `half` ("train" or "test") of the data set stored in `file`."""
        tensors, checksum, _ = store.read(file)
        self.labels = tensors[f"{half}_labels"]
        self._signals = tensors[f"{half}_signals"]
        self._mean, self._std = (torch.tensor(values).view(-1, 1, 1) for values in (mean, std))
        self._reference = partial(SignalSamples, file, half, mean, std), file, checksum

    def __reduce__(self) -> tuple[object, ...]:
        """Travel without the signals."""
        return store.reopened, self._reference

    def __len__(self) -> int:
        """Return the number of windows."""
        return len(self.labels)

    def batch(self, indices: Tensor, rng: np.random.Generator | None = None) -> Batch:
        """Return the windows at `indices`. Nothing is random: signals are not augmented."""
        signals = self._signals[indices].to(torch.get_default_dtype())
        return Batch((signals.sub_(self._mean).div_(self._std),), self.labels[indices])
