"""The record of a run: a directory with `config.json`, `curves.jsonl` and, in the end, `models` and `result.json`.

While the run is under way there is also a folder of checkpoints, from which it can be continued.
"""

import errno
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from quped.errors import RunError
from quped.records.checkpoints import Checkpoints
from quped.records.files import read_json, write_bytes, write_json

CONFIG, CURVES, RESULT = "config.json", "curves.jsonl", "result.json"
CHECKPOINTS, MODELS = "checkpoints", "models"
FAILED = "failed.txt"
"""In the directory of a run that ended with an error: its message."""


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
        models = list((path / MODELS).glob("*.quped"))
        if not holds_run(path) and (foreign := [*models, *record.checkpoints.files()]):
            raise RunError(f"{path} holds no run, but {foreign[0]}, which would be lost: choose another directory.")
        try:
            path.mkdir(parents=True, exist_ok=True)
            for model in models:
                model.unlink()
            record.checkpoints.clear()
            for name in (
                RESULT,
                CURVES,
                FAILED,
                CONFIG,
            ):  # last: as long as one is there, the rest is known to be a run's
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

    def model(self, client: str, content: bytes) -> None:
        """Write the packed file of a client's model."""
        try:
            (self.path / MODELS).mkdir(exist_ok=True)
            write_bytes(self.path / MODELS / f"{client}.quped", content)
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

    def fail(self, message: str) -> None:
        """Note that the run ended with an error: another run may take its place."""
        with suppress(OSError):
            write_bytes(self.path / FAILED, f"{message}\n".encode())

    def finished(self, *keys: str) -> dict[str, Any] | None:
        """Return what came out, if the run is finished; it must have these keys."""
        path = self.path / RESULT
        return read_json(path, *keys) if path.exists() else None

    def result(self, values: dict[str, Any]) -> None:
        """Write what came out: the sign that the run is finished. Its checkpoints are not needed any more."""
        write_json(self.path / RESULT, values)
        (self.path / FAILED).unlink(missing_ok=True)
        self.checkpoints.clear()


def holds_run(path: Path) -> bool:
    """Say whether a directory holds a run, finished or not."""
    return any((path / name).exists() for name in (CONFIG, CURVES, RESULT))


def has_failed(path: Path) -> bool:
    """Say whether a directory holds a run that ended with an error."""
    return holds_run(path) and (path / FAILED).exists()
