"""A node's own folder: the personal state of its client after the last two rounds, for each run.

FOLDER/RUN/node.json                  which app, which configuration
FOLDER/RUN/round-000000004.safetensors   personal state, what was sent, and what had come, with a digest
"""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from quped import _tree
from quped.errors import RunError
from quped.records import Checkpoints, exclusive, read_json, write_json
from quped.records.checkpoints import DAMAGE, read

NODE = "node.json"
FIRST = -1
"""The round before the first one of a client."""


class Held(NamedTuple):
    """What a node keeps of a round."""

    round: int
    before: int
    """The round of the state that it began with; -1 if it was the client's first."""
    request: str
    """The digest of the request."""
    values: dict[str, Any]
    """The values of the reply."""
    tensors: dict[str, Tensor]
    """Of the personal state, the payload and the shared state, by their paths."""

    def tree(self, part: str, template: Any) -> Any:
        """Return a state: `personal`, `payload` or `shared`."""
        try:
            return _tree.unflatten(template, self.tensors, part)
        except KeyError as error:
            raise RunError(f"The state of round {self.round + 1} is of another client: it lacks {error}.") from error


class Store:
    """The states of a node in one run."""

    def __init__(self, folder: Path, run: str) -> None:
        """Use a folder of the node, which need not exist."""
        self.folder = folder / run
        self._checkpoints = Checkpoints(self.folder)

    @contextmanager
    def locked(self, seconds: float) -> Iterator[None]:
        """Let no other process use the states within the block: that of a SuperNode that was killed may still run."""
        with exclusive(self.folder, seconds=seconds):
            yield

    def claim(self, about: Mapping[str, Any]) -> None:
        """Note whose states these are; refuse those of another client."""
        path = self.folder / NODE
        if path.exists():
            known = read_json(path, "client", sealed=True)
            if known["client"] != about["client"]:
                raise RunError(
                    f"{self.folder} holds the state of client '{known['client']}', not of '{about['client']}': "
                    "give every node a folder of its own with `state` in --node-config."
                )
            if known == dict(about):
                return
        write_json(path, about)

    def save(self, held: Held) -> None:
        """Write what is kept of a round, and forget all but the last two."""
        info = {"round": held.round, "before": held.before, "request": held.request, "values": held.values}
        tensors = {path: leaf.clone(memory_format=torch.contiguous_format) for path, leaf in held.tensors.items()}
        for later in self._checkpoints.files():  # of a server that went back: they would count as newer
            if later.name > self._file(held.round).name:
                later.unlink()
        self._checkpoints.save(held.round, tensors, info)

    def held(self, round_: int) -> Held | None:
        """Return what is kept of a round; None if that is nothing, or damaged."""
        file = self._file(round_)
        if not file.exists():
            return None
        try:
            tensors, info = read(file)
            return Held(info["round"], info["before"], info["request"], info["values"], tensors)
        except DAMAGE as error:
            warnings.warn(f"{file} is damaged ({error}): the round is computed again.", stacklevel=2)
            return None

    def rounds(self) -> list[int]:
        """Return the rounds that are kept, newest first."""
        return [int(file.stem.removeprefix("round-")) for file in self._checkpoints.files()]

    def before(self, round_: int) -> Held | None:
        """Return the state that a round begins with; None in the client's first round."""
        again = self.held(round_)
        wanted = again.before if again is not None else next((r for r in self.rounds() if r < round_), None)
        if wanted is None and self.rounds() and again is None:
            raise RunError(
                f"The server asks for round {round_ + 1}, but {self.folder} holds later ones only, from "
                f"{self.rounds()[-1] + 1} on: continue the run with its record, or begin another one."
            )
        if wanted is None or wanted == FIRST:
            return None
        held = self.held(wanted)
        if held is None:
            raise RunError(
                f"The state of round {wanted + 1} in {self.folder} is missing or damaged: begin another run."
            )
        return held

    def latest(self) -> Held:
        """Return what is kept of the last round."""
        for round_ in self.rounds():
            if (held := self.held(round_)) is not None:
                return held
        raise RunError(f"{self.folder} holds no state: its client has not taken part in a round yet.")

    def _file(self, round_: int) -> Path:
        return self.folder / f"round-{round_:09d}.safetensors"


def find_run(folder: Path) -> Path:
    """Return the folder of a node's newest run; a folder of one run is that run's own."""
    if (folder / NODE).exists():
        return folder
    runs = [path.parent for path in folder.glob(f"*/{NODE}")]
    if not runs:
        raise RunError(f"{folder} holds no state of a node: name the folder that is `state` in --node-config.")
    return max(runs, key=lambda run: max((file.stat().st_mtime for file in run.iterdir()), default=0.0))
