"""Images of a stored data set, as batches that networks take."""

from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from torch import Tensor

from quped.data.download import store
from quped.typing import Batch

PAD = 4
"""Pixels by which an augmented image may be shifted, in each direction."""


class ImageSamples:
    """One half of a stored data set of images: uint8 on the disk, mapped into memory.

    A batch is scaled to [0, 1], then normalised with a mean and a standard deviation for each channel. Between
    processes it travels as a reference to its file, so that all of them share one copy.
    """

    def __init__(
        self, file: Path, half: str, mean: tuple[float, ...], std: tuple[float, ...], *, augment: bool = False
    ) -> None:
        """Map `half` ("train" or "test") of the data set stored in `file`."""
        tensors, checksum, _ = store.read(file)
        self.images, self.labels = tensors[f"{half}_images"], tensors[f"{half}_labels"]
        self._mean, self._std = (torch.tensor(values).view(-1, 1, 1) * 255 for values in (mean, std))
        self._augment = augment
        self._reference = partial(ImageSamples, file, half, mean, std, augment=augment), file, checksum

    def __reduce__(self) -> tuple[object, ...]:
        """Travel without the pixels."""
        return store.reopened, self._reference

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.labels)

    def batch(self, indices: Tensor, rng: np.random.Generator | None = None) -> Batch:
        """Return the images at `indices`, each flipped and shifted at random if this is training data for that."""
        images = self.images[indices]
        if self._augment and rng is not None:
            images = flipped_and_shifted(images, rng)
        scaled = images.to(torch.get_default_dtype())
        return Batch((scaled.sub_(self._mean).div_(self._std),), self.labels[indices])


def flipped_and_shifted(images: Tensor, rng: np.random.Generator) -> Tensor:
    """Mirror each image with probability 1/2, and crop it at a random place of its copy with a black margin of PAD."""
    count, channels, height, width = images.shape
    rows, columns = rng.integers(0, 2 * PAD + 1, (2, count))
    mirrored = rng.random(count) < 0.5
    padded = np.zeros((count, channels, height + 2 * PAD, width + 2 * PAD), np.uint8)
    padded[:, :, PAD:-PAD, PAD:-PAD] = images.numpy()
    crops = sliding_window_view(padded, (height, width), axis=(2, 3))[np.arange(count), :, rows, columns]
    crops[mirrored] = crops[mirrored, :, :, ::-1]
    return torch.from_numpy(crops)
