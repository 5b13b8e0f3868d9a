"""The 1,797 handwritten digits of 8x8 pixels that come with scikit-learn: real data without a download."""

import numpy as np
import torch

from quped._extras import extra
from quped._rng import generator
from quped.data.download.remote import DatasetInfo
from quped.data.samples import Dataset, TensorSamples

INFO = DatasetInfo("digits, 8x8", "1,442 + 355", 0.5, "CC BY 4.0")

MEAN, STD = 4.88, 6.02
"""Of the pixels, which go from 0 to 16."""

TEST_SHARE = 5
"""One sample in five is a test sample, in each class."""


def digits() -> Dataset:
    """Load the data set, normalised, with a fixed split: a fifth of each class, at random, for testing."""
    with extra("data"):
        from sklearn.datasets import load_digits  # here, because it would slow the start of every command by a second

    pixels, labels = load_digits(return_X_y=True)
    images = torch.from_numpy(((pixels - MEAN) / STD).astype(np.float32).reshape(-1, 1, 8, 8))
    rng = generator(0, "digits")
    test = np.zeros(len(labels), bool)
    for label in range(10):
        members = rng.permutation(np.flatnonzero(labels == label))
        test[members[: len(members) // TEST_SHARE]] = True
    train_half, test_half = (
        TensorSamples(images[torch.from_numpy(mask)], torch.from_numpy(labels[mask])) for mask in (~test, test)
    )
    return Dataset("digits", train_half, test_half, classes=10, input_shape=(1, 8, 8), class_names=tuple("0123456789"))
