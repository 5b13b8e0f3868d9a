"""The state of a federation between two rounds, to and from a checkpoint."""

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from quped import tree
from quped.algorithms import AnyAlgorithm
from quped.engines.rounds import Engine, Player
from quped.errors import RunError
from quped.runs import Checkpoints


def save(
    checkpoints: Checkpoints, engine: Engine, shared: Any, round_: int, identity: dict[str, str], about: dict[str, Any]
) -> None:
    """Write the state after a round, with which run it is of, and what else is to be remembered.

    Clients whose states have one form are stacked: files of ten thousand clients then have few tensors.
    """
    tensors = {path: leaf.clone(memory_format=torch.contiguous_format) for path, leaf in tree.items(shared, "shared")}
    groups: dict[tuple[tuple[str, torch.Size, torch.dtype], ...], dict[int, list[Tensor]]] = {}
    for client, state in sorted(engine.states().items()):
        leaves = dict(tree.items(state, "personal"))
        form = tuple((path, leaf.shape, leaf.dtype) for path, leaf in leaves.items())
        groups.setdefault(form, {})[client] = list(leaves.values())
    for number, (form, clients) in enumerate(groups.items()):
        for (path, *_), *column in zip(form, *clients.values(), strict=True):
            tensors[f"{number}-{path}"] = torch.stack(column)
    info = {"round": round_, "groups": [list(clients) for clients in groups.values()], "run": identity, "about": about}
    checkpoints.save(round_, tensors, info)


def load(
    checkpoints: Checkpoints,
    engine: Engine,
    algorithm: AnyAlgorithm,
    players: Sequence[Player],
    identity: dict[str, str],
) -> tuple[Any, int, dict[str, Any]] | None:
    """Bring an engine to the newest checkpoint; return the shared state, the next round and what was remembered.

    One of another run is refused.
    """
    found = checkpoints.latest()
    if found is None:
        return None
    tensors, info = found
    theirs = info.get("run", {})
    for what in identity | theirs:
        was, is_ = (run.get(what, "none") for run in (theirs, identity))
        if was != is_:
            raise RunError(
                f"The checkpoint in {checkpoints.folder} is of a run with another {what}: {was} instead of {is_}. "
                "Remove its round-*.safetensors to begin anew, or name another folder."
            )
    shared = algorithm.init_shared(players[0].task)
    try:
        states = {}
        for number, clients in enumerate(info["groups"]):
            template = algorithm.init_personal(players[clients[0]].task, shared)
            prefix = f"{number}-personal"
            for row, client in enumerate(clients):
                leaves = {path: tensors[path][row] for path, _ in tree.items(template, prefix)}
                states[client] = tree.unflatten(template, leaves, prefix)
        shared = tree.unflatten(shared, tensors, "shared")
    except (KeyError, IndexError) as error:
        raise RunError(f"The checkpoint in {checkpoints.folder} is of another federation: it lacks {error}.") from error
    engine.restore(states)
    return shared, info["round"] + 1, info["about"]


@contextmanager
def stop_signals() -> Iterator[Callable[[], int | None]]:
    """Hold back SIGINT and SIGTERM within the block; yield what tells the first one that came, if any.

    A second SIGINT interrupts at once. One that the block did not end for comes again after it, to whoever handles it
    there. Only the main thread can do so; in others nothing is held back.
    """
    came: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        if came and number == signal.SIGINT:
            raise KeyboardInterrupt
        came.append(number)

    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: came[0] if came else None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)  # None: one that was not set by Python
    if came:
        signal.raise_signal(came[0])
