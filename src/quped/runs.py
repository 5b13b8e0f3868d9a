"""The record of a run: a directory with `config.json`, `curves.jsonl` and, once it is finished, `result.json`."""

import json
import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

from quped.errors import RunError

CONFIG, CURVES, RESULT = "config.json", "curves.jsonl", "result.json"


class RunRecord:
    """A run directory that is being written. Every file is whole at every moment."""

    def __init__(self, path: Path, *, overwrite: bool = False) -> None:
        """Claim the directory: make it, and refuse one that holds a run already unless told to replace it."""
        self.path = path
        if holds_run(path) and not overwrite:
            raise RunError(f"{path} already holds a run: choose another directory, or allow it to be overwritten.")
        try:
            path.mkdir(parents=True, exist_ok=True)
            for name in (RESULT, CURVES, CONFIG):
                (path / name).unlink(missing_ok=True)
        except OSError as error:
            raise RunError(f"The run directory {path} cannot be used: {error.strerror}.") from error

    def config(self, values: dict[str, Any]) -> None:
        """Write what was asked for."""
        write_json(self.path / CONFIG, values)

    def point(self, values: dict[str, Any]) -> None:
        """Append one evaluation to the curves, as one line in one write."""
        with (self.path / CURVES).open("ab", buffering=0) as file:
            file.write(json.dumps(values).encode() + b"\n")

    def result(self, values: dict[str, Any]) -> None:
        """Write what came out: the sign that the run is finished."""
        write_json(self.path / RESULT, values)


def holds_run(path: Path) -> bool:
    """Say whether a directory holds a run, finished or not."""
    return any((path / name).exists() for name in (CONFIG, CURVES, RESULT))


def write_json(path: Path, values: dict[str, Any]) -> None:
    """Write a file that is either there with all its content, or not there."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with draft.open("w") as file:
            json.dump(values, file, indent=2)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror}.") from error
    finally:
        draft.unlink(missing_ok=True)


def versions() -> dict[str, str]:
    """Return the versions that a result depends on."""
    packages = {name: metadata.version(name) for name in ("quped", "torch", "numpy")}
    return {"python": platform.python_version(), **packages}
