"""AudioMNIST (Becker et al. 2018): digits spoken by 60 people, 50 takes each, as pictures of their sound.

The recordings have been made into log-mel spectrograms of 32 bands and 32 times. Each person's first takes are the
training data, and the others the test data.
"""

import io
import zipfile
from pathlib import Path

import numpy as np
import torch

from quped.data.datasets.images import ImageSamples
from quped.data.download.remote import DatasetInfo, Layout, RemoteDataset
from quped.data.download.sources import Files
from quped.data.download.store import Tensors, people
from quped.data.samples import Dataset
from quped.errors import DataError

FILE = "audiomnist_logmel32.npz"
SIDE = 32
TRAINING_TAKES = 10
"""Of the 50 takes of each digit: a person who speaks to a device will not do it often."""


def decode(files: Files) -> Tensors:
    """Read the arrays `images`, `labels`, `speakers` and `takes`, all of bytes; nothing is unpickled."""
    try:
        with np.load(io.BytesIO(files[FILE]), allow_pickle=False) as archive:
            images, *facts = (archive[name] for name in ("images", "labels", "speakers", "takes"))
    except (zipfile.BadZipFile, EOFError, OSError, ValueError, KeyError) as error:
        raise DataError(
            f"{FILE} is not an archive of the arrays images, labels, speakers and takes ({error})"
        ) from error
    bytes_only = all(array.dtype == np.uint8 for array in (images, *facts))
    if not bytes_only or images.shape[1:] != (SIDE, SIDE) or any(fact.shape != (len(images),) for fact in facts):
        raise DataError(f"{FILE} does not hold pictures of {SIDE} x {SIDE} bytes, each with a label, speaker and take")
    labels, speakers, takes = (torch.from_numpy(fact).long() for fact in facts)
    if len(images) == 0 or labels.max() > 9:
        raise DataError(f"{FILE} does not hold labels of ten classes")
    tensors = {}
    for half, places in (("train", takes < TRAINING_TAKES), ("test", takes >= TRAINING_TAKES)):
        tensors[f"{half}_images"] = torch.from_numpy(images)[places].unsqueeze(1)
        tensors[f"{half}_labels"], tensors[f"{half}_people"] = labels[places], speakers[places]
    return tensors


def build(file: Path) -> Dataset:
    """Make the data set from its stored file; mean and standard deviation belong to the training pixels."""
    train, test = (ImageSamples(file, half, (0.337,), (0.287,)) for half in ("train", "test"))
    names, shape = tuple("0123456789"), (1, SIDE, SIDE)
    return Dataset("audiomnist", train, test, 10, shape, class_names=names, people=people(file))


AUDIOMNIST = RemoteDataset(
    "audiomnist",
    DatasetInfo("spoken digits by person, 32x32", "6,000 + 24,000", 31.2, "MIT"),
    (Layout((FILE,), decode, (), "88cc14297552c70c256170fbc425f901f3a2b59eddc3604d0da2184390b4d448"),),
    build,
    origin="github.com/soerenab/AudioMNIST, as log-mel pictures",
)
