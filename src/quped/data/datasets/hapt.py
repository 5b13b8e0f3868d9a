"""HAPT (Reyes-Ortiz, Oneto, Samà, Parra, Anguita 2016): what 30 people do, from the sensors of a phone at their waist.

Acceleration and angular velocity, 50 times a second, of 61 experiments. Labels mark stretches of 12 activities. The
training data are each person's first experiment, and the test data the later ones: windows of one experiment overlap.
"""

import io
import zipfile
from functools import partial
from pathlib import Path, PurePosixPath

import numpy as np
import torch
from numpy.typing import NDArray

from quped.data.datasets.signals import SignalSamples
from quped.data.download.remote import DatasetInfo, Layout, RemoteDataset
from quped.data.download.sources import Files, Url
from quped.data.download.store import Tensors, people
from quped.data.samples import Dataset
from quped.errors import DataError

PUBLISHED, RAW = "smartphone*transitions.zip", "[Hh][Aa][Pp][Tt]*.zip"
"""The archive under its present name, and under a shorter one; both hold a folder RawData."""

LENGTH, HOP = 128, 64
"""Of a window: 2.56 s, and half of it."""

LABELS = "labels.txt"
SENSORS = "acc", "gyro"
LARGEST = 20_000_000
"""Bytes of a file in the archive; the largest has less than 2 MB."""

ACTIVITIES = (
    *("walking", "upstairs", "downstairs", "sitting", "standing", "lying"),
    *("stand to sit", "sit to stand", "sit to lie", "lie to sit", "stand to lie", "lie to stand"),
)


def decode(name: str, files: Files) -> Tensors:
    """Read the text files of RawData in the archive, and cut the windows that lie within a labelled stretch."""
    raw = members(files[name], name)
    if LABELS not in raw:
        raise DataError(f"{name} holds no RawData/{LABELS}")
    stretches = numbers(raw[LABELS], LABELS, 5).astype(np.int64)
    first = {person: min(stretches[stretches[:, 1] == person, 0]) for person in np.unique(stretches[:, 1])}
    parts: dict[bool, list[tuple[NDArray[np.float16], int, int]]] = {True: [], False: []}
    for experiment in np.unique(stretches[:, 0]):
        mine = stretches[stretches[:, 0] == experiment]
        person = int(mine[0, 1])
        signals = np.hstack([sensor(raw, kind, experiment, person) for kind in SENSORS])
        for _, _, activity, begin, end in mine:
            if not 1 <= activity <= len(ACTIVITIES) or not 1 <= begin <= end <= len(signals):
                raise DataError(f"{LABELS} has a stretch of experiment {experiment} that is not in its signals")
            for start in range(begin - 1, end - LENGTH + 1, HOP):
                window = signals[start : start + LENGTH].T.astype(np.float16)
                parts[bool(experiment == first[person])].append((window, activity - 1, person))
    return halves("train", parts[True]) | halves("test", parts[False])


def halves(half: str, parts: list[tuple[NDArray[np.float16], int, int]]) -> Tensors:
    """Return the windows of one half, with their labels and people."""
    if not parts:
        raise DataError(f"{LABELS} leaves no windows for the {half} data")
    windows, labels, persons = zip(*parts, strict=True)
    signals = torch.from_numpy(np.stack(windows)).unsqueeze(2).contiguous()  # images of one row
    return {f"{half}_signals": signals, f"{half}_labels": torch.tensor(labels), f"{half}_people": torch.tensor(persons)}


def members(content: bytes, name: str) -> Files:
    """Return the files in a folder RawData of a zip archive. Nothing is written."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            entries = [entry for entry in archive.infolist() if PurePosixPath(entry.filename).parent.name == "RawData"]
            if any(entry.file_size > LARGEST for entry in entries):
                raise DataError(f"{name} holds a file of more than {LARGEST / 1e6:.0f} MB")
            return {PurePosixPath(entry.filename).name: archive.read(entry) for entry in entries if not entry.is_dir()}
    except (zipfile.BadZipFile, EOFError, OSError, NotImplementedError, RuntimeError) as error:
        raise DataError(f"{name} is not a whole zip archive ({error})") from error


def sensor(raw: Files, kind: str, experiment: int, person: int) -> NDArray[np.float64]:
    """Return the signals of a sensor in an experiment, one row of three axes for each time."""
    file = f"{kind}_exp{experiment:02d}_user{person:02d}.txt"
    if file not in raw:
        raise DataError(f"RawData holds no {file}, which {LABELS} speaks of")
    return numbers(raw[file], file, 3)


def numbers(content: bytes, name: str, columns: int) -> NDArray[np.float64]:
    """Read a text file with so many numbers in each row."""
    if not content.strip():
        raise DataError(f"{name} is empty")
    try:
        values = np.loadtxt(io.BytesIO(content), comments=None, ndmin=2)
    except ValueError as error:
        raise DataError(f"{name} does not hold {columns} numbers in each row ({error})") from error
    if values.shape[1] != columns or not np.isfinite(values).all():
        raise DataError(f"{name} does not hold {columns} numbers in each row")
    return values


MEAN = 0.81, 0.04, 0.11, 0.0, 0.0, 0.0
STD = 0.41, 0.39, 0.35, 0.41, 0.38, 0.27
"""Of the training windows: acceleration in g, angular velocity in radians per second."""


def build(file: Path) -> Dataset:
    """Make the data set from its stored file."""
    train, test = (SignalSamples(file, half, MEAN, STD) for half in ("train", "test"))
    shape = 3 * len(SENSORS), 1, LENGTH
    return Dataset("hapt", train, test, classes=12, input_shape=shape, class_names=ACTIVITIES, people=people(file))


URL = Url(
    "https://archive.ics.uci.edu/static/public/341/"
    "smartphone+based+recognition+of+human+activities+and+postural+transitions.zip",
    "4ac4ae064227c07045a99551876b54d204837e995e298b6488559e209b3deb09",
    (PUBLISHED,),
)
CHECKSUM = "240db3013a1570c736db5e73f6206da9ada00420a72ea329cdec418b774667ed"

HAPT = RemoteDataset(
    "hapt",
    DatasetInfo("activities by person, 6x128", "5,569 + 5,360", 17.0, "see UCI"),
    (
        Layout((PUBLISHED,), partial(decode, PUBLISHED), ((URL,),), CHECKSUM),
        Layout((RAW,), partial(decode, RAW), (), CHECKSUM),
    ),
    build,
)
