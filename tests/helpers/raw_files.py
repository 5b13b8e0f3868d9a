"""Small files in the formats in which data sets are published."""

import gzip
import io
import json
import struct
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from quped.data.datasets import cifar10, mnist
from quped.data.download.sources import Files


def idx(array: NDArray[np.generic]) -> bytes:
    """Write the idx format: bytes, or big-endian integers of 4 bytes."""
    kind = 8 if array.dtype == np.uint8 else 12
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, kind, array.ndim, *array.shape)
    return header + array.astype(">i4" if kind == 12 else "u1").tobytes()


def mnist_files(train: int = 30, test: int = 20) -> Files:
    """Make the four files of MNIST; all ten classes occur."""
    rng = np.random.default_rng(0)
    halves = ((mnist.TRAIN_IMAGES, mnist.TRAIN_LABELS, train), (mnist.TEST_IMAGES, mnist.TEST_LABELS, test))
    files = {}
    for images, labels, count in halves:
        files[images] = idx(rng.integers(0, 256, (count, 28, 28), np.uint8))
        files[labels] = idx(np.arange(count, dtype=np.uint8) % 10)
    return files


def qmnist(writers: list[int]) -> bytes:
    """Make QMNIST's table for labels 0, 1, 2 ...: column 0 the class, column 2 the writer."""
    table = np.zeros((len(writers), 8), np.int32)
    table[:, 0] = np.arange(len(writers)) % 10
    table[:, 2] = writers
    return idx(table)


def cifar_arrays(batch: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return images of six batches, channels first, and their labels."""
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (6, batch, 3, 32, 32), np.uint8), rng.integers(0, 10, (6, batch), np.uint8)


def cifar_binary(batch: int) -> Files:
    """Make the files of CIFAR-10's canonical binary layout."""
    images, labels = cifar_arrays(batch)
    rows = np.concatenate([labels[..., None], images.reshape(6, batch, -1)], axis=2)
    return {name: row.tobytes() for name, row in zip(cifar10.BINARY_FILES, rows, strict=True)}


def cifar_png(batch: int) -> Files:
    """Make the files of CIFAR-10's layout in PNG pictures, with one image in each row."""
    images, labels = cifar_arrays(batch)
    files = {}
    for name, part in zip(cifar10.BATCHES, images, strict=True):
        files[f"{name}.png"] = png(part.transpose(0, 2, 3, 1).reshape(batch, 1024, 3))
    files[cifar10.TRAIN_JSON] = json.dumps(labels[:5].reshape(-1).tolist()).encode()
    files[cifar10.TEST_JSON] = json.dumps(labels[5].tolist()).encode()
    return files


def png(pixels: NDArray[np.uint8]) -> bytes:
    """Write a PNG picture."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def archive(files: Mapping[str, bytes], folder: str = "package") -> bytes:
    """Write a gzipped tar archive, with the files in a folder."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(f"{folder}/{name}")
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def hapt_files(
    labels: str = "1 7 5 3 258\n1 7 1 259 400\n2 7 12 1 128\n3 8 2 1 200\n4 8 2 1 128\n", rows: int = 400
) -> Files:
    """Make the text files of HAPT: row t of experiment e has e, t, -t, and e, -e, t / 8 for the second sensor."""
    files = {"labels.txt": labels.encode()}
    for experiment, person in ((1, 7), (2, 7), (3, 8), (4, 8)):
        for kind, row in (("acc", "{e} {t} -{t}"), ("gyro", "{e} -{e} {x}")):
            text = "".join(row.format(e=experiment, t=t, x=t / 8) + "\n" for t in range(rows))
            files[f"{kind}_exp{experiment:02d}_user{person:02d}.txt"] = text.encode()
    return files


def zipped(files: Mapping[str, bytes], folder: str = "RawData") -> bytes:
    """Write a zip archive, with the files in a folder."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(str(PurePosixPath(folder, name)), content)
    return buffer.getvalue()


def audiomnist_file(**changes: NDArray[np.generic]) -> bytes:
    """Make the archive of AudioMNIST: two speakers, two digits, 11 takes; the pixels of a picture are its number."""
    count = 2 * 2 * 11
    numbers = np.arange(count)
    arrays: dict[str, NDArray[np.generic]] = {
        "images": np.broadcast_to(numbers[:, None, None], (count, 32, 32)).astype(np.uint8),
        "labels": (numbers // 11 % 2).astype(np.uint8),
        "speakers": (numbers // 22 + 1).astype(np.uint8),
        "takes": (numbers % 11).astype(np.uint8),
    }
    return zipped({f"{name}.npy": npy(array) for name, array in (arrays | changes).items()}, folder="")


def npy(array: NDArray[np.generic]) -> bytes:
    """Write NumPy's format."""
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def place(folder: Path, files: Mapping[str, bytes], *, gzipped: bool = False) -> Path:
    """Write files into a folder, and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        if gzipped:
            (folder / f"{name}.gz").write_bytes(gzip.compress(content))
        else:
            (folder / name).write_bytes(content)
    return folder
