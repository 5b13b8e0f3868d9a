"""Checkpoints of a run: files that are whole or absent."""

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
"""The tensor of a file that describes it, as JSON in UTF-8."""


DIGEST = "sha256"
"""The key of the metadata with the digest of all tensors, the description among them."""

PARTS = "parts"
"""The key of a description with the names of the parts, and the digest of each."""

DAMAGE = (OSError, SafetensorError, ValueError, KeyError, TypeError, AttributeError, RecursionError)
"""What reading a damaged file may raise."""

Content = tuple[dict[str, Tensor], dict[str, Any]]
"""The tensors of a file, and its description."""


def read(file: Path, digest: str | None = None) -> Content:
    """Return the content of a file; raise if a bit of it is not as it was written, or it has another digest."""
    with safe_open(file, "pt") as handle:
        expected = (handle.metadata() or {}).get(DIGEST)
    tensors = safetensors.torch.load_file(file)
    if tensor_digest(tensors) != expected or digest not in (None, expected):
        raise ValueError("its content is not what was written")
    return tensors, json.loads(bytes(tensors.pop(INFO).numpy()))


class Checkpoints:
    """A folder with the last two checkpoints of a run.

    A checkpoint is a file, which may name others as its parts. Parts of the last checkpoint need not be written again.
    """

    KEPT = 2

    def __init__(self, folder: Path) -> None:
        """Use a folder, which need not exist."""
        self.folder = folder

    def save(
        self, round_: int, tensors: Mapping[str, Tensor], info: dict[str, Any], parts: Mapping[str, str] | None = None
    ) -> None:
        """Write the state after a round, with its parts, and forget all but the last two.

        No two tensors may share memory.
        """
        self._write(f"round-{round_:09d}.safetensors", tensors, info | ({PARTS: dict(parts)} if parts else {}))
        self.forget_older()

    def forget_older(self) -> None:
        """Remove all but the last two, and what only the others needed."""
        try:
            for old in (*self.files()[self.KEPT :], *self._drafts()):
                old.unlink()
            for part in self._unused():
                part.unlink()
        except OSError as error:
            raise RunError(f"Old checkpoints in {self.folder} cannot be removed: {error.strerror}.") from error

    def save_part(self, name: str, tensors: Mapping[str, Tensor], info: dict[str, Any]) -> tuple[str, str]:
        """Write a part of the next checkpoint; return its name and its digest, for `save`."""
        file = f"part-{name}.safetensors"
        return file, self._write(file, tensors, info)

    def part(self, name: str) -> Content:
        """Return a part of the checkpoint that `latest` returned."""
        return read(self.folder / name)

    def _write(self, name: str, tensors: Mapping[str, Tensor], info: dict[str, Any]) -> str:
        """Write a file with a description; return its digest."""
        # As a tensor: the header of the format, which has a place for words, is limited to 100 MB.
        words = torch.frombuffer(bytearray(json.dumps(info).encode()), dtype=torch.uint8)
        content = {**tensors, INFO: words}
        digest = tensor_digest(content)
        try:
            data = safetensors.torch.save(content, {DIGEST: digest})
        except SafetensorError as error:
            raise RunError(f"The state of this run is too large for a checkpoint: {error}.") from error
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_bytes(self.folder / name, data)
        except OSError as error:
            raise RunError(f"A checkpoint cannot be written to {self.folder}: {error.strerror}.") from error
        return digest

    def latest(self) -> Content | None:
        """Return the newest state that is undamaged, as are its parts, and its description."""
        files = self.files()
        for file in files:
            try:
                tensors, info = read(file)
                if not isinstance(info["round"], int):
                    raise ValueError("it does not name its round")
                for name, digest in info.get(PARTS, {}).items():
                    read(self.folder / name, digest)
                return tensors, info
            except DAMAGE as error:
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
            for file in (*self.files(), *self._parts(), *self._drafts()):
                file.unlink()
        except OSError as error:
            raise RunError(f"The checkpoints in {self.folder} cannot be removed: {error.strerror}.") from error
        with suppress(OSError):
            self.folder.rmdir()

    def files(self) -> list[Path]:
        """Return the files, newest first."""
        return sorted(self.folder.glob("round-*.safetensors"), reverse=True)

    def _parts(self) -> list[Path]:
        """Return the parts of all checkpoints."""
        return list(self.folder.glob("part-*.safetensors"))

    def _unused(self) -> list[Path]:
        """Return the parts that belong to no checkpoint any more."""
        parts, used = self._parts(), set[str]()
        for file in self.files() if parts else ():
            with suppress(*DAMAGE):
                used |= read(file)[1].get(PARTS, {}).keys()
        return [part for part in parts if part.name not in used]

    def _drafts(self) -> list[Path]:
        """Return what processes left behind that were killed while they wrote."""
        return [*self.folder.glob(".round-*"), *self.folder.glob(".part-*")]
