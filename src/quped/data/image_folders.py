"""Samples of clients from folders of images: CLIENT/CLASS/FILE, or the same below train, test and validation."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quped._extras import extra
from quped.data.by_client import (
    CHUNK,
    PARTS,
    ByClient,
    Row,
    check_name,
    indices_by_client,
    numbered,
    shared_out,
    training_rows,
)
from quped.errors import DataError
from quped.typing import Batch

Color = Literal["rgb", "gray"]

MODES = {"rgb": "RGB", "gray": "L"}
"""Pillow's names of colors."""


@dataclass(frozen=True)
class Pixels:
    """Images in memory, a byte for each value. A batch is standardized."""

    images: Tensor = field(repr=False)
    labels: Tensor = field(repr=False)
    mean: Tensor
    std: Tensor

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.labels)

    def batch(self, indices: Tensor, rng: np.random.Generator | None = None) -> Batch:
        """Return the images at `indices`."""
        scaled = self.images[indices].to(torch.get_default_dtype())
        return Batch((scaled.sub_(self.mean).div_(self.std),), self.labels[indices])


def load_images(folder: Path, size: tuple[int, int] | None = None, color: Color = "rgb") -> ByClient:
    """Read a folder of images, each with its height and width or resized.

    Values are standardized, channel by channel, by the training samples of all clients.
    """
    found = list(walk(folder))
    if not found:
        raise DataError(f"{folder} holds no images: put them into CLIENT/CLASS/FILE, or give it CSV files.")
    rows = [row for row, _ in found]
    indices = indices_by_client(rows, folder)
    labels, class_names = numbered([row.label for row in rows], folder)
    images = torch.from_numpy(read_images([file for _, file in found], size, color))
    mean, std = channel_statistics(images, training_rows(indices))
    whole = Pixels(images, labels, *(v.to(torch.get_default_dtype()).view(-1, 1, 1) for v in (mean, std)))
    height, width = images.shape[2:]
    preparation = {
        "size": [height, width],
        "color": color,
        "mean": mean.tolist(),
        "std": std.tolist(),
    }
    return ByClient(shared_out(whole, indices), tuple(images.shape[1:]), len(class_names), class_names, preparation)


def channel_statistics(images: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean and the standard deviation of every channel, over some of the images."""
    sums = torch.zeros(2, images.shape[1], dtype=torch.float64)
    for start in range(0, len(rows), CHUNK):
        values = images[rows[start : start + CHUNK]].to(torch.float64)
        sums += torch.stack([values.sum((0, 2, 3)), values.square().sum((0, 2, 3))])
    mean, square = sums / (len(rows) * images[0, 0].numel())
    std = (square - mean.square()).clamp_min(0).sqrt()
    return mean, torch.where(std > 0, std, 1)  # a channel that never changes


def walk(folder: Path) -> Iterator[tuple[Row, Path]]:
    """Yield every image with its client, class and part, in the order of their names."""
    top = [path.name for path in entries(folder)]
    parts = top if "train" in top and set(top) <= set(PARTS) else [None]
    for part in parts:
        for client in subfolders(folder if part is None else folder / part):
            check_name(client.name, str(client))
            for kind in subfolders(client):
                for file in entries(kind):
                    yield Row(client.name, kind.name, part), file


def entries(folder: Path) -> list[Path]:
    """Return what a folder holds, in the order of names, without hidden files."""
    try:
        return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError as error:
        raise DataError(f"The folder {folder} cannot be read: {error.strerror}.") from error


def subfolders(folder: Path) -> list[Path]:
    """Return the folders in a folder; anything else is a mistake."""
    for path in (inside := entries(folder)):
        if not path.is_dir():
            raise DataError(f"{path} is not where an image belongs: images are in CLIENT/CLASS/FILE.")
    return inside


def read_images(files: Sequence[Path], size: tuple[int, int] | None, color: Color) -> NDArray[np.uint8]:
    """Return images as bytes: count, channels, height, width."""
    first = read_image(files[0], size, color)
    images = np.empty((len(files), *first.shape), np.uint8)
    for index, file in enumerate(files):
        image = read_image(file, size, color)
        if image.shape != first.shape:
            (high, wide), (height, width) = image.shape[1:], first.shape[1:]
            raise DataError(
                f"{file} has {high} x {wide} pixels, but {files[0]} has {height} x {width}: resize all, as in "
                "data.size = 32."
            )
        images[index] = image
    return images


def read_image(file: Path, size: tuple[int, int] | None, color: Color) -> NDArray[np.uint8]:
    """Return an image as bytes: channels, height, width; turned as its camera was held."""
    with extra("data"):
        from PIL import Image, ImageOps
    try:
        with Image.open(file) as opened:
            image: Image.Image = ImageOps.exif_transpose(opened).convert(MODES[color])
    except Exception as error:  # whatever Pillow raises for a damaged file
        raise DataError(f"{file} is no image that can be read: {error}. Repair it or remove it.") from error
    if size is not None:
        image = image.resize((size[1], size[0]), Image.Resampling.BILINEAR)
    pixels = np.asarray(image)
    return np.ascontiguousarray(pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1))
