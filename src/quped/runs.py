"""The record of a run: a directory with `config.json`, `curves.jsonl` and, in the end, `models` and `result.json`.

While it is under way there is also a folder of checkpoints, from which it can be continued.
"""

import errno
import json
import math
import os
import platform
import subprocess
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from filelock import FileLock, Timeout
from safetensors import SafetensorError, safe_open
from torch import Tensor

from quped.errors import RunError

CONFIG, CURVES, RESULT = "config.json", "curves.jsonl", "result.json"
CHECKPOINTS, MODELS = "checkpoints", "models"

INFO = "info"
"""The tensor of a checkpoint that says, as JSON in UTF-8, what it is."""

PATIENCE = 10.0
"""Seconds to wait for a folder: the workers of a run that was killed need some to notice."""


class RunRecord:
    """A run directory that is being written. Every file is whole at every moment."""

    def __init__(self, path: Path) -> None:
        """Go on with the record in a directory. A new one begins with `create`."""
        self.path = path
        self.checkpoints = Checkpoints(path / CHECKPOINTS)

    @classmethod
    def create(cls, path: Path, *, overwrite: bool = False) -> "RunRecord":
        """Begin a record: make the directory, and refuse one that holds a run already unless told to replace it."""
        if holds_run(path) and not overwrite:
            raise RunError(f"{path} already holds a run: choose another directory, or allow it to be overwritten.")
        record = cls(path)
        models = list((path / MODELS).glob("*.safetensors"))
        if not holds_run(path) and (foreign := [*models, *record.checkpoints.files()]):
            raise RunError(f"{path} holds no run, but {foreign[0]}, which would be lost: choose another directory.")
        try:
            path.mkdir(parents=True, exist_ok=True)
            for model in models:
                model.unlink()
            record.checkpoints.clear()
            for name in (RESULT, CURVES, CONFIG):  # last: as long as one is there, the rest is known to be a run's
                (path / name).unlink(missing_ok=True)
        except OSError as error:
            raise RunError(f"The run directory {path} cannot be used: {error.strerror}.") from error
        return record

    def config(self, values: dict[str, Any]) -> None:
        """Write what was asked for."""
        write_json(self.path / CONFIG, values)

    def point(self, values: dict[str, Any]) -> None:
        """Append one evaluation to the curves, as one line in one write."""
        line = json.dumps(values).encode() + b"\n"
        try:
            with (self.path / CURVES).open("ab", buffering=0) as file:
                if file.write(line) != len(line):
                    raise OSError(errno.ENOSPC, "only a part could be written")
        except OSError as error:
            raise RunError(f"{self.path / CURVES} cannot be written: {error.strerror}.") from error

    def model(self, client: str, tensors: Mapping[str, Tensor]) -> None:
        """Write the tensors of a client's deployed model."""
        data = safetensors.torch.save({key: value.contiguous().clone() for key, value in tensors.items()})
        try:
            (self.path / MODELS).mkdir(exist_ok=True)
            write_bytes(self.path / MODELS / f"{client}.safetensors", data)
        except OSError as error:
            raise RunError(f"The model of '{client}' cannot be written to {self.path}: {error.strerror}.") from error

    def rewind(self, rounds: int) -> None:
        """Drop the points of all but the first rounds: a run that is continued from there writes them again."""
        curves = self.path / CURVES
        if not curves.exists():
            return
        kept = []
        try:
            for line in curves.read_bytes().splitlines(keepends=True):
                with suppress(ValueError, TypeError, KeyError):  # damaged, as a power failure leaves it
                    if line.endswith(b"\n") and json.loads(line)["round"] < rounds:
                        kept.append(line)
            write_bytes(curves, b"".join(kept))
        except OSError as error:
            raise RunError(f"{curves} cannot be written: {error.strerror}.") from error

    def finished(self, *keys: str) -> dict[str, Any] | None:
        """Return what came out, if the run is finished; it must have these keys."""
        path = self.path / RESULT
        return read_json(path, *keys) if path.exists() else None

    def result(self, values: dict[str, Any]) -> None:
        """Write what came out: the sign that the run is finished. Its checkpoints are not needed any more."""
        write_json(self.path / RESULT, values)
        self.checkpoints.clear()


class Checkpoints:
    """A folder with the last two checkpoints of a run: one file each, whole or not there."""

    KEPT = 2

    def __init__(self, folder: Path) -> None:
        """Use a folder, which need not exist."""
        self.folder = folder

    def save(self, round_: int, tensors: Mapping[str, Tensor], info: dict[str, Any]) -> None:
        """Write the state after a round, and forget all but the last two. No two tensors may share memory."""
        # As a tensor: the header of the format, which has a place for words, is limited to 100 MB.
        told = torch.frombuffer(bytearray(json.dumps(info).encode()), dtype=torch.uint8)
        try:
            data = safetensors.torch.save({**tensors, INFO: told})
        except SafetensorError as error:
            raise RunError(f"The state of this run is too large for a checkpoint: {error}.") from error
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_bytes(self.folder / f"round-{round_:09d}.safetensors", data)
            for old in (*self.files()[self.KEPT :], *self._drafts()):
                old.unlink()
        except OSError as error:
            raise RunError(f"A checkpoint cannot be written to {self.folder}: {error.strerror}.") from error

    def latest(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Return the newest state that can be read, and what was said of it."""
        found = self._newest()
        if found is None:
            return None
        tensors = safetensors.torch.load_file(found[0])
        return {key: value for key, value in tensors.items() if key != INFO}, found[1]

    def rounds(self) -> int:
        """Return the number of rounds done before the newest checkpoint."""
        found = self._newest()
        return 0 if found is None else int(found[1]["round"]) + 1

    def _newest(self) -> tuple[Path, dict[str, Any]] | None:
        """Return the newest file that is whole, and what it says of itself: nothing else of it is read."""
        files = self.files()
        for file in files:
            try:
                with safe_open(file, "pt") as handle:
                    info: dict[str, Any] = json.loads(bytes(handle.get_tensor(INFO).numpy()))
                    return file, info
            except (OSError, SafetensorError, ValueError):
                warnings.warn(f"{file} is damaged, or no checkpoint: it is passed over.", stacklevel=4)
        if files:
            raise RunError(f"No checkpoint in {self.folder} can be read: remove them to begin anew.")
        return None

    def clear(self) -> None:
        """Remove all checkpoints, and the folder unless it holds something else."""
        try:
            for file in (*self.files(), *self._drafts()):
                file.unlink()
        except OSError as error:
            raise RunError(f"The checkpoints in {self.folder} cannot be removed: {error.strerror}.") from error
        with suppress(OSError):
            self.folder.rmdir()

    def files(self) -> list[Path]:
        """Return the files, newest first."""
        return sorted(self.folder.glob("round-*.safetensors"), reverse=True)

    def _drafts(self) -> list[Path]:
        """Return what processes left behind that were killed while they wrote."""
        return list(self.folder.glob(".round-*"))


def holds_run(path: Path) -> bool:
    """Say whether a directory holds a run, finished or not."""
    return any((path / name).exists() for name in (CONFIG, CURVES, RESULT))


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Let no other process use a folder within the block: made if need be, and removed if nothing is left in it."""
    lock = FileLock(folder / ".lock")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=PATIENCE)
    except Timeout:
        raise RunError(f"{folder} is in use by another process: wait until that ends, or name another.") from None
    except OSError as error:
        raise RunError(f"The folder {folder} cannot be used: {error.strerror}.") from error
    try:
        yield
    finally:
        with suppress(OSError):  # while it is held: whoever waits for it looks whether the file is still there
            (folder / ".lock").unlink()
        lock.release()
        with suppress(OSError):
            folder.rmdir()


def read_json(path: Path, *keys: str) -> dict[str, Any]:
    """Read a file of a record, which must have these keys."""
    try:
        values: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        raise RunError(f"{path.parent} holds no run: there is no {path.name}.") from None
    except (OSError, ValueError) as error:
        raise RunError(f"{path} cannot be read: {error}. If it is damaged, remove it and run anew.") from error
    if not isinstance(values, dict) or not values.keys() >= set(keys):
        raise RunError(f"{path} is damaged, or no part of a record: remove it and run anew.")
    return values


def write_json(path: Path, values: dict[str, Any]) -> None:
    """Write values to a file that is either there with all its content, or not there."""
    try:
        write_bytes(path, json.dumps(plain(values), indent=2, allow_nan=False).encode() + b"\n")
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror}.") from error


def plain(value: Any) -> Any:
    """Return a value as JSON can hold it: infinity and NaN, which it has no number for, as the words that TOML uses."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def entries(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return nested values one by one, each with its path."""
    found: dict[str, str] = {}
    for key, value in values.items():
        path = f"{prefix}{key}"
        found |= entries(value, f"{path}.") if isinstance(value, dict) else {path: repr(value)}
    return found


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file aside, and move it into place when it is complete."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with draft.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


@cache
def revision() -> str | None:
    """Return the commit of this code, with a plus if the code differs from it; None if it is not from a checkout."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return None
    git = ("git", "-C", str(root))
    try:
        head = subprocess.run([*git, "rev-parse", "--short=10", "HEAD"], capture_output=True, text=True)
        changed = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", "src"], capture_output=True).returncode
    except OSError:  # no git here
        return None
    return None if head.returncode else head.stdout.strip() + "+" * bool(changed)


def versions() -> dict[str, str]:
    """Return the versions that a result depends on."""
    packages = {name: metadata.version(name) for name in ("quped", "torch", "numpy")}
    return {"python": platform.python_version(), **packages}
