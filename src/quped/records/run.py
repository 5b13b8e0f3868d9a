"""The record of a run: a directory with `config.json`, `curves.jsonl` and, in the end, `models` and `result.json`.

While the run is under way there is also a folder of checkpoints, from which it can be continued.
"""

import errno
import hashlib
import json
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from quped.errors import RunError
from quped.records.checkpoints import Checkpoints
from quped.records.files import read_json, write_bytes, write_json

CONFIG, CURVES, RESULT = "config.json", "curves.jsonl", "result.json"
CHECKPOINTS, MODELS = "checkpoints", "models"
FILES = "files"
"""The key of a result with the SHA-256 of the curves and the models."""
REPORT = "report.html"
"""The page that shows the run."""
FAILED = "failed.txt"
"""In the directory of a run that ended with an error: its message."""


class RunRecord:
    """A run directory that is being written. Every file is whole at every moment."""

    def __init__(self, path: Path) -> None:
        """Continue the record in a directory. A new one begins with `create`."""
        for name in (CONFIG, CURVES, RESULT, FAILED, MODELS, CHECKPOINTS):
            refuse_link(path / name)
        self.path = path
        self.checkpoints = Checkpoints(path / CHECKPOINTS)

    @classmethod
    def create(cls, path: Path, *, overwrite: bool = False) -> "RunRecord":
        """Begin a record: make the directory, and refuse one that holds a run already unless told to replace it."""
        record = cls(path)
        if holds_run(path) and not overwrite:
            raise RunError(f"{path} already holds a run: choose another directory, or allow it to be overwritten.")
        models = list((path / MODELS).glob("*.quped"))
        if not holds_run(path) and (foreign := [*models, *record.checkpoints.files()]):
            raise RunError(f"{path} holds no run, but {foreign[0]}, which would be lost: choose another directory.")
        try:
            path.mkdir(parents=True, exist_ok=True)
            for model in models:
                model.unlink()
            record.checkpoints.clear()
            if holds_run(path):
                (path / REPORT).unlink(missing_ok=True)
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
        """Write the configuration of the run."""
        write_json(self.path / CONFIG, values)

    def read_config(self) -> dict[str, Any]:
        """Return the configuration of the run."""
        return read_json(self.path / CONFIG, sealed=True)

    def point(self, values: dict[str, Any]) -> None:
        """Append one evaluation to the curves, as one line in one write."""
        line = line_of(values)
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

    def rewind(self, points: Sequence[dict[str, Any]]) -> None:
        """Let the curves have these points, which a checkpoint holds: a run that continues adds the others again."""
        curves = self.path / CURVES
        content = b"".join(map(line_of, points))
        try:
            before = curves.read_bytes() if curves.exists() else b""
            if not before.startswith(content):
                warnings.warn(f"{curves} is damaged: it is written again from the checkpoint.", stacklevel=2)
            if before != content:
                write_bytes(curves, content)
        except OSError as error:
            raise RunError(f"{curves} cannot be written: {error.strerror}.") from error

    def fail(self, message: str) -> None:
        """Note that the run ended with an error: another run may take its place."""
        with suppress(OSError):
            write_bytes(self.path / FAILED, f"{message}\n".encode())

    def finished(self, *keys: str) -> dict[str, Any] | None:
        """Return what came out, if the run is finished; it must have these keys, and undamaged curves and models."""
        path = self.path / RESULT
        if not path.exists():
            return None
        values = read_json(path, *keys, sealed=True)
        expected, found = values.pop(FILES, {}), self._digests()
        for name in expected | found:
            if expected.get(name) != found.get(name):
                raise RunError(f"{self.path / name} is damaged, missing or not of this run: repeat the run.")
        return values

    def result(self, values: dict[str, Any]) -> None:
        """Write what came out: the sign that the run is finished. Its checkpoints are not needed any more."""
        # First: a run that is finished must not count as one that failed, which may be replaced.
        (self.path / FAILED).unlink(missing_ok=True)
        write_json(self.path / RESULT, {**values, FILES: self._digests()})
        self.checkpoints.clear()

    def _digests(self) -> dict[str, str]:
        """Return the SHA-256 of the curves and of every model, by their names in the record."""
        files = [file for file in (self.path / CURVES, *sorted((self.path / MODELS).glob("*.quped"))) if file.exists()]
        try:
            return {str(f.relative_to(self.path)): hashlib.sha256(f.read_bytes()).hexdigest() for f in files}
        except OSError as error:
            raise RunError(f"The files in {self.path} cannot be read: {error.strerror}.") from error


def line_of(point: dict[str, Any]) -> bytes:
    """Return an evaluation as a line of the curves."""
    return json.dumps(point).encode() + b"\n"


def refuse_link(path: Path) -> None:
    """Raise if a path within a record is a symbolic link: a record that somebody else made may lead anywhere."""
    if path.is_symlink():
        raise RunError(f"{path} is a symbolic link, and a run writes into its own directory only: remove the link.")


def holds_run(path: Path) -> bool:
    """Say whether a directory holds a run, finished or not."""
    return any((path / name).exists() for name in (CONFIG, CURVES, RESULT))


def has_failed(path: Path) -> bool:
    """Say whether a directory holds a run that ended with an error."""
    return holds_run(path) and (path / FAILED).exists()


def failure(path: Path) -> str | None:
    """Return the message of the error that ended the run in a directory, if one did."""
    return (path / FAILED).read_text(errors="replace").strip() if has_failed(path) else None


DEFAULT_ALGORITHM = "quped"
"""Of an experiment that names none."""


def compared_folders(config: Mapping[str, Any]) -> list[str]:
    """Return the folders, below that of a run, of the methods that its configuration compares it with."""
    try:
        names = [str(peer["algorithm"].get("name", DEFAULT_ALGORITHM)) for peer in config["config"]["compare"]]
        # A record may be somebody else's: only names of folders below it.
        return [name for name in distinct(names) if Path(name).name == name and name not in ("", "..")]
    except (KeyError, TypeError, AttributeError):  # it compares nothing, or is none of `quped run`
        return []


def distinct(names: list[str]) -> list[str]:
    """Return folder names: a repeated name gets a number."""
    return [name if names.count(name) == 1 else f"{name}-{names[:i].count(name) + 1}" for i, name in enumerate(names)]
