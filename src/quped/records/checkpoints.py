"""Checkpoints of a run: one file each, whole or absent."""

import json
import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from quped.errors import RunError
from quped.records.files import write_bytes

INFO = "info"
"""The tensor of a checkpoint that describes it, as JSON in UTF-8."""


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
