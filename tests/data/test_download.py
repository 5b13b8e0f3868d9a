"""The real data sets, from any of their sources. Run with `pytest -m download`."""

import os
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from quped.data.datasets.cifar10 import CIFAR10, MEAN, STD
from quped.data.datasets.femnist import FEMNIST
from quped.data.datasets.images import ImageSamples
from quped.data.datasets.mnist import MNIST
from quped.data.download import store
from quped.data.download.fetch import fetch
from quped.data.download.remote import RemoteDataset
from quped.data.partition import split

pytestmark = pytest.mark.download


def fetched(dataset: RemoteDataset) -> dict[str, torch.Tensor]:
    """Fetch a data set into an empty cache; loading it then takes less than a second."""
    fetch(dataset, None, print)
    start = time.perf_counter()
    dataset.load()
    assert time.perf_counter() - start < 1
    assert store.read(dataset.file).checksum == dataset.layouts[-1].checksum
    return store.read(dataset.file).tensors


def test_mnist(cache: Path) -> None:
    """Sizes, classes, and the constants that normalise it."""
    tensors = fetched(MNIST)
    assert tensors["train_labels"].bincount().tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert tensors["test_labels"].bincount().tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    pixels = tensors["train_images"].numpy() / 255
    assert_allclose([pixels.mean(), pixels.std()], [0.1307, 0.3081], atol=1e-4)


def test_cifar10(cache: Path) -> None:
    """Sizes, classes, and the constants that normalise it."""
    tensors = fetched(CIFAR10)
    assert tensors["train_labels"].bincount().tolist() == [5000] * 10
    assert tensors["test_labels"].bincount().tolist() == [1000] * 10
    pixels = tensors["train_images"].float() / 255
    assert_allclose(pixels.mean((0, 2, 3)), MEAN, atol=1e-4)
    assert_allclose(pixels.std((2, 3)).mean(0), STD, atol=1e-4)
    dataset = CIFAR10.load()
    assert isinstance(dataset.train, ImageSamples)
    batch = dataset.train.batch(torch.arange(25), np.random.default_rng(0))
    assert batch.inputs[0].shape == (25, 3, 32, 32)


def test_femnist() -> None:
    """66 clients have the paper's sizes at every seed. (QMNIST's labels may be in the folder QUPED_DATA.)"""
    folder = os.environ.get("QUPED_DATA")
    fetch(FEMNIST, Path(folder) if folder else None, print)
    for seed in range(20):
        shares = split(FEMNIST.load(), "writers=3", 66, seed)
        assert all(203 <= len(s.train) <= 336 and 25 <= len(s.test) <= 40 for s in shares)
