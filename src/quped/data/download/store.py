"""The cache: one complete file per data set, memory-mapped so that all processes share one copy."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import safetensors.torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor

from quped._cache import cache_folder
from quped._digest import tensor_digest
from quped._files import write_bytes
from quped.errors import DataError

FORMAT = "1"
"""Changes with the meaning of the stored tensors; a file of another format is fetched again."""

T = TypeVar("T")

Tensors = dict[str, Tensor]


class Stored(NamedTuple):
    """A data set in the cache."""

    tensors: Tensors
    """Mapped into memory: read from the disk when first touched."""
    checksum: str
    """The digest of the tensors, computed from what the file holds."""
    source: str
    """The origin of the data."""


def stored_file(name: str) -> Path:
    """Return the file in which a data set is stored, or would be."""
    return cache_folder() / f"{name}.safetensors"


class NotHereError(DataError):
    """A data set of which another process sent the name is not in that file here."""

    @property
    def file(self) -> Path:
        """The file."""
        return Path(self.args[0])

    def __str__(self) -> str:
        """Return what is wrong."""
        return f"{self.file} is not here, or has other content than elsewhere."


def write(file: Path, tensors: Tensors, source: str, scratch: Path) -> None:
    """Store tensors: `file` is replaced in one step, by way of the folder `scratch` on the same disk."""
    metadata = {"format": FORMAT, "checksum": tensor_digest(tensors), "source": source}
    # Not with safetensors' save_file: that hides the cause of a failed write, and only the owner can read its files.
    write_bytes(file, safetensors.torch.save(tensors, metadata), scratch)


def read(file: Path) -> Stored:
    """Map a stored data set into memory. Its bytes are compared with its checksum, once per process and file."""
    if file in HELD:
        return HELD[file]
    name = file.stem
    remedy = f"get it again with `quped data fetch {name}`"
    try:
        state = file.stat()
        with safe_open(file, "pt") as handle:
            metadata = handle.metadata() or {}
        tensors = safetensors.torch.load_file(file)
    except FileNotFoundError:
        raise DataError(
            f"The data set '{name}' is not in {file.parent}: get it with `quped data fetch {name}`."
        ) from None
    except (OSError, SafetensorError, ValueError) as error:  # ValueError: of an empty file
        raise DataError(f"{file} cannot be read ({error}): {remedy}.") from error
    if metadata.get("format") != FORMAT:
        raise DataError(f"{file} was stored by another version: {remedy}.")
    key = file, state.st_ino, state.st_size, state.st_mtime_ns
    if key not in VERIFIED:
        VERIFIED[key] = tensor_digest(tensors)
    if VERIFIED[key] != metadata.get("checksum"):
        raise DataError(f"{file} is damaged, its content is not what was stored: {remedy}.")
    return Stored(tensors, VERIFIED[key], metadata.get("source", "unknown"))


def people(file: Path) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the person of each training and of each test sample of a stored data set."""
    tensors = read(file).tensors
    return tensors["train_people"].numpy(), tensors["test_people"].numpy()


VERIFIED: dict[tuple[Path, int, int, int], str] = {}
"""The digests that this process computed, by file, inode, size and time of the last change."""


def hold(file: Path, checksum: str, tensors: Tensors) -> None:
    """Have a data set in this process as if it were in a file: on another machine than the one that has it."""
    HELD[file] = Stored(tensors, checksum, source="another machine")


HELD: dict[Path, Stored] = {}
"""Data sets that this process was given."""


def reopened(make: Callable[[], T], file: Path, checksum: str) -> T:
    """Return samples of which another process sent the name: `make` maps the file, which must be the same here."""
    with suppress(DataError):
        if read(file).checksum == checksum:
            return make()
    raise NotHereError(str(file))
