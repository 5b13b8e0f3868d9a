"""Records as a report and a live view read them: finished, under way or failed, of this version or an older one."""

import hashlib
import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quped.errors import RunError
from quped.records import (
    CONFIG,
    CURVES,
    DEFAULT_ALGORITHM,
    RESULT,
    RunRecord,
    compared_folders,
    failure,
    holds_run,
    read_json,
)

Values = dict[str, Any]


@dataclass(frozen=True)
class Run:
    """What one method left in a folder."""

    folder: Path
    config: Values
    """The content of `config.json`; empty if there is none."""
    result: Values | None
    """The content of `result.json`; None as long as the run is not finished."""
    curve: list[Values]
    """The evaluations so far."""
    failure: str | None = None
    """The message of the error that ended the run."""

    @property
    def recipe(self) -> Values | None:
        """The recipe of `quped train`; None for a federation."""
        recipe = self.config.get("recipe") or (self.result or {}).get("recipe")
        return recipe if isinstance(recipe, dict) else None

    @property
    def experiment(self) -> Values:
        """The experiment, as the file of `quped run` describes it; empty for other runs."""
        found = self.config.get("config") or (self.result or {}).get("config") or {}
        return found if isinstance(found, dict) else {}

    @property
    def options(self) -> Values:
        """What the run follows from; of a federation on other machines, the configuration itself."""
        return self.recipe or self.experiment or self.config

    @property
    def algorithm(self) -> str:
        """The name of the method."""
        if self.recipe is not None:
            return str(self.recipe.get("method", "centers"))
        asked = self.options.get("algorithm") or {}
        return str((self.result or {}).get("algorithm") or asked.get("name", DEFAULT_ALGORITHM))

    @property
    def epochs(self) -> int:
        """How many epochs the whole run has; 0 if the record does not say so."""
        training = self.recipe or self.options.get("training") or {}
        return int(training.get("epochs") or 0)


def read_run(folder: Path) -> Run:
    """Read the record of one method."""
    RunRecord(folder)  # refuses links
    config = read_json(folder / CONFIG) if (folder / CONFIG).exists() else {}
    result = read_json(folder / RESULT) if (folder / RESULT).exists() else None
    return Run(folder, config, result, read_curve(folder, result), failure(folder))


def read_curve(folder: Path, result: Values | None) -> list[Values]:
    """Read the evaluations of a run; those of a finished one must be as they were written."""
    path = folder / CURVES
    try:
        content = path.read_bytes() if path.exists() else b""
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}.") from error
    expected = (result or {}).get("files", {}).get(CURVES)
    if expected is not None and hashlib.sha256(content).hexdigest() != expected:
        raise RunError(f"{path} is damaged, or not of this run: repeat the run.")
    lines = content.split(b"\n")[:-1]  # after the last one comes nothing, or what a process is writing now
    try:
        points = [json.loads(line) for line in lines]
    except (ValueError, RecursionError) as error:
        raise RunError(f"{path} is damaged: {error}. Repeat the run, or continue it with --resume.") from error
    if not all(isinstance(point, dict) and "accuracy" in point for point in points):
        raise RunError(f"{path} is damaged, or no part of a record: repeat the run.")
    return points


def read_family(folder: Path) -> list[Run]:
    """Read a run, and the methods that it is compared with in folders below it."""
    first = read_run(folder)
    peers = []
    for name in compared_folders(first.config):
        with suppress(RunError):  # a method whose turn has not come, or whose folder was removed
            peer = read_run(folder / name)
            if all(peer.config.get(key) == first.config.get(key) for key in ("preset", "seed")):
                peers.append(peer)
    return [first, *(peer for peer in peers if peer.config)]


def read_all(paths: Iterable[Path]) -> list[list[Run]]:
    """Read the runs in folders, each with its compared methods; a folder may also hold several runs below it."""
    folders: list[Path] = []
    for path in paths:
        if not path.is_dir():
            raise RunError(f"There is no folder {path}: name the folder of a run, or one with several runs in it.")
        found = [path] if holds_run(path) else sorted(below for below in path.iterdir() if holds_run(below))
        if not found:
            raise RunError(f"{path} holds no run, and no folder in it does: name the folder of a run.")
        folders += found
    return [read_family(folder) for folder in folders]
