"""The state of a federation between two rounds, to and from a checkpoint."""

import logging
import signal
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import cache
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from quped import _tree
from quped._rng import torch_seeded
from quped.data import Samples
from quped.errors import InterruptedRunError, RunError
from quped.models import FunctionalNetwork
from quped.records import Checkpoints, flatten
from quped.result import Evaluation
from quped.simulation.engines.base import Engine
from quped.simulation.loop import Round
from quped.simulation.setup import Setup, SimClient

log = logging.getLogger("quped")


class Resumed(NamedTuple):
    """Where a run continues."""

    shared: Any
    first: int
    """The next round."""
    curve: list[Evaluation]
    seconds: float
    """That the run took so far."""


class Checkpointer:
    """Writes a checkpoint every few rounds, after the last one, and when a signal asks the run to stop."""

    def __init__(
        self,
        checkpoints: Checkpoints,
        setup: Setup,
        engine: Engine,
        curve: list[Evaluation],
        every: int,
        stop: Callable[[], int | None],
    ) -> None:
        self._checkpoints, self._engine, self._curve = checkpoints, engine, curve
        self._every, self._stop = every, stop
        self._identity = identity(setup)

    def after_round(self, round_: Round) -> None:
        """Write a checkpoint if one is due; end the run if a signal asked for it."""
        number = round_.clock.round
        signal_number = self._stop()  # asked once: a signal that comes after the checkpoint waits for the next round
        if signal_number or (number + 1) % self._every == 0 or round_.is_last:
            about = {"curve": [asdict(point) for point in self._curve], "seconds": round_.seconds}
            save(self._checkpoints, self._engine, round_.shared, number, self._identity, about)
        if signal_number is not None:
            raise InterruptedRunError(number, signal_number)


def identity(setup: Setup) -> dict[str, str]:
    """Return what must be equal for one run to continue where another one stopped."""
    words = cache(network_words)  # many clients have one network
    return {
        "seed": repr(setup.seed),
        "algorithm": type(setup.algorithm).__name__,
        **flatten(setup.describe()),
        "global network": words(setup.global_network),
        **{f"client '{client.name}'": client_words(client, words(client.network)) for client in setup.clients},
    }


def client_words(client: SimClient, network: str) -> str:
    """Return a client in words that differ if its result may."""
    spec = client.spec
    bits = ", ".join(f"{name} {bits}" for name, bits in spec.bits.items()) or "none"
    channels = " per channel" if spec.per_channel else ""
    tested = "not tested" if client.test is None else f"tested on {checksum_of(client.test)}"
    return (
        f"{network}, bits: {bits}, centers by {spec.init_centers}{channels}, batches of {client.batch_size} of "
        f"{len(client.train)} samples ({checksum_of(client.train)}; {tested})"
    )


def network_words(network: FunctionalNetwork) -> str:
    """Return a network in words that differ if it does, or its initial weights."""
    count = sum(value.numel() for value in network.initial.params.values())
    tensors = {**network.initial.params, **network.initial.buffers, **network.frozen}
    layers = zlib.crc32(repr((network.structure, {k: v.shape for k, v in tensors.items()})).encode())
    return f"{network.name} with {count} parameters (layers {layers:08x}, weights {crc(tensors.values()):08x})"


def checksum_of(samples: Samples) -> str:
    """Return a checksum of all labels and of some inputs: it differs for data that were scaled or chosen again."""
    some = torch.linspace(0, len(samples) - 1, min(len(samples), 256)).long()
    with torch_seeded(0, "checksum"):  # PyTorch data sets may be random
        inputs = samples.batch(some).inputs
    return f"{crc([samples.labels, *inputs]):08x}"


def crc(tensors: Iterable[Tensor]) -> int:
    """Return the CRC-32 of the content of tensors."""
    value = 0
    for tensor in tensors:
        value = zlib.crc32(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data, value)
    return value


def save(
    checkpoints: Checkpoints, engine: Engine, shared: Any, round_: int, identity: dict[str, str], about: dict[str, Any]
) -> None:
    """Write the state after a round, with the identity of its run, and what else is to be remembered.

    Clients whose states have one form are stacked: files of ten thousand clients then have few tensors.
    """
    tensors = {path: leaf.clone(memory_format=torch.contiguous_format) for path, leaf in _tree.items(shared, "shared")}
    groups: dict[tuple[tuple[str, torch.Size, torch.dtype], ...], dict[int, list[Tensor]]] = {}
    for client, state in sorted(engine.states().items()):
        leaves = dict(_tree.items(state, "personal"))
        form = tuple((path, leaf.shape, leaf.dtype) for path, leaf in leaves.items())
        groups.setdefault(form, {})[client] = list(leaves.values())
    for number, (form, clients) in enumerate(groups.items()):
        for (path, *_), *column in zip(form, *clients.values(), strict=True):
            tensors[f"{number}-{path}"] = torch.stack(column)
    info = {"round": round_, "groups": [list(clients) for clients in groups.values()], "run": identity, "about": about}
    checkpoints.save(round_, tensors, info)


def load(checkpoints: Checkpoints, setup: Setup, engine: Engine) -> Resumed | None:
    """Bring an engine to the newest checkpoint, if there is one. A checkpoint of another run is refused."""
    latest = checkpoints.latest()
    if latest is None:
        return None
    tensors, info = latest
    about = about_of(checkpoints, info)
    ours, theirs = identity(setup), info["run"]
    for what in ours | theirs:
        was, is_ = (run.get(what, "none") for run in (theirs, ours))
        if was != is_:
            raise RunError(
                f"The checkpoint in {checkpoints.folder} is of a run with another {what}: {was} instead of {is_}. "
                "Remove its round-*.safetensors to begin again, or name another folder."
            )
    shared = setup.algorithm.init_shared(setup.clients[0].spec)
    try:
        states = {}
        for number, clients in enumerate(info["groups"]):
            template = setup.algorithm.init_personal(setup.clients[clients[0]].spec, shared)
            prefix = f"{number}-personal"
            for row, client in enumerate(clients):
                leaves = {path: tensors[path][row] for path, _ in _tree.items(template, prefix)}
                states[client] = _tree.unflatten(template, leaves, prefix)
        shared = _tree.unflatten(shared, tensors, "shared")
    except (KeyError, IndexError) as error:
        raise RunError(f"The checkpoint in {checkpoints.folder} is of another federation: it lacks {error}.") from error
    engine.restore(states)
    return Resumed(shared, info["round"] + 1, about.curve, about.seconds)


class About(NamedTuple):
    """How far a run has come at a checkpoint."""

    curve: list[Evaluation]
    seconds: float


def about_of(checkpoints: Checkpoints, info: dict[str, Any]) -> About:
    """Return how far a run had come, from the description of its checkpoint."""
    try:
        info["run"].items()
        about = info["about"]
        return About([Evaluation(**point) for point in about["curve"]], float(about["seconds"]))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RunError(
            f"The checkpoint in {checkpoints.folder} is not of a federation: name another folder."
        ) from error


def recorded_curve(checkpoints: Checkpoints) -> list[Evaluation]:
    """Return the evaluations up to the newest checkpoint."""
    latest = checkpoints.latest()
    return [] if latest is None else about_of(checkpoints, latest[1]).curve


@contextmanager
def stop_signals() -> Iterator[Callable[[], int | None]]:
    """Hold back SIGINT and SIGTERM within the block; yield a function that returns the first one that came, if any.

    A second SIGINT interrupts at once. A signal for which the block did not end comes again after it, to whoever
    handles it there. Only the main thread can do so; in others nothing is held back.
    """
    came: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        if came and number == signal.SIGINT:
            log.warning("Stopping at once, without a checkpoint of this round.")
            raise KeyboardInterrupt
        came.append(number)
        log.warning("Stopping after this round, with a checkpoint. Ctrl-C again stops at once.")

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
