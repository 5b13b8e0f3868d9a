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

from quped._digest import tensor_digest
from quped.errors import RunError
from quped.records.files import write_bytes

INFO = "info"
"""The tensor of a checkpoint that describes it, as JSON in UTF-8."""


DIGEST = "sha256"
"""The key of the metadata with the digest of all tensors, the description among them."""


UNREADABLE = (OSError, SafetensorError, ValueError, KeyError, TypeError, RecursionError)
"""What reading a damaged checkpoint may raise."""


def read(file: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors of a checkpoint and its description; raise if a bit of them is not as it was written."""
    with safe_open(file, "pt") as handle:
        expected = (handle.metadata() or {}).get(DIGEST)
    tensors = safetensors.torch.load_file(file)
    if tensor_digest(tensors) != expected:
        raise ValueError("its content is not what was written")
    info = json.loads(bytes(tensors.pop(INFO).numpy()))
    if not isinstance(info["round"], int):
        raise ValueError("it does not name its round")
    return tensors, info


class Checkpoints:
    """A folder with the last two checkpoints of a run: one file each, whole or not there."""

    KEPT = 2

    def __init__(self, folder: Path) -> None:
        """Use a folder, which need not exist."""
        self.folder = folder

    def save(self, round_: int, tensors: Mapping[str, Tensor], info: dict[str, Any]) -> None:
        """Write the state after a round, and forget all but the last two. No two tensors may share memory."""
        # As a tensor: the header of the format, which has a place for words, is limited to 100 MB.
        words = torch.frombuffer(bytearray(json.dumps(info).encode()), dtype=torch.uint8)
        content = {**tensors, INFO: words}
        try:
            data = safetensors.torch.save(content, {DIGEST: tensor_digest(content)})
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
        """Return the newest state that is undamaged, and its description."""
        files = self.files()
        for file in files:
            try:
                return read(file)
            except UNREADABLE as error:
                warnings.warn(f"{file} is damaged ({error}): the checkpoint before it is used.", stacklevel=3)
        if files:
            raise RunError(
                f"No checkpoint in {self.folder} is undamaged: remove its round-*.safetensors to begin again."
            )
        return None

    def rounds(self) -> int:
        """Return the number of rounds done before the newest checkpoint."""
        latest = self.latest()
        return 0 if latest is None else latest[1]["round"] + 1

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
