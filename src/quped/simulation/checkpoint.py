"""The state of a federation between two rounds, to and from a checkpoint."""

import logging
import signal
import threading
import zlib
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import asdict
from functools import cache
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quped import _tree
from quped._evaluate import Evaluation
from quped._rng import torch_seeded
from quped.algorithms import ClientSpec
from quped.data import Samples, Subset
from quped.data.samples import rows_of
from quped.errors import InterruptedRunError, RunError
from quped.models import FunctionalNetwork
from quped.records import Checkpoints, flatten
from quped.simulation.engines.base import Engine
from quped.simulation.loop import Round, sample_clients
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


class Identity(NamedTuple):
    """What must be equal for one run to continue where another one stopped, in words."""

    run: dict[str, str]
    clients: dict[str, str]


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
        identity: Identity,
    ) -> None:
        self._checkpoints, self._setup, self._engine, self._curve = checkpoints, setup, engine, curve
        self._every, self._stop, self._identity = every, stop, identity
        self._parts = Parts(checkpoints)
        self._about_clients: dict[str, str] = {}
        """The part that tells who the clients are, with its digest: written once."""
        self._changed = set(engine.states())
        """Clients that took part since the last checkpoint, or before this run was resumed."""

    def after_round(self, round_: Round) -> None:
        """Write a checkpoint if one is due; end the run if a signal asked for it."""
        number = round_.clock.round
        self._changed.update(sample_clients(self._setup.schedule, len(self._setup.clients), self._setup.seed, number))
        signal_number = self._stop()  # asked once: a signal that comes after the checkpoint waits for the next round
        if signal_number or (number + 1) % self._every == 0 or round_.is_last:
            self._save(round_)
        if signal_number is not None:
            raise InterruptedRunError(number, signal_number)

    def _save(self, round_: Round) -> None:
        number = round_.clock.round
        if not self._about_clients:
            name, digest = self._checkpoints.save_part("clients", {}, {"clients": self._identity.clients})
            self._about_clients[name] = digest
        states = self._parts.update(number, self._engine.states(), self._changed)
        self._changed.clear()
        # Copies: under some methods tensors of the shared state are one.
        shared = _tree.items(round_.shared, "shared")
        info = {
            "round": number,
            "run": self._identity.run,
            "clients": list(self._about_clients),
            "states": list(states),
            "about": {"curve": [asdict(point) for point in self._curve], "seconds": round_.seconds},
        }
        tensors = {path: leaf.clone(memory_format=torch.contiguous_format) for path, leaf in shared}
        self._checkpoints.save(number, tensors, info, self._about_clients | states)


class Parts:
    """The parts of a checkpoint with the clients' states, of which only those are written that changed.

    Together they hold at most two states for each client; before there are more, all are written again. So a checkpoint
    takes time and space, on average, for the clients that took part since the last one.
    """

    PIECE = 64_000_000
    """Bytes of states in a part, about: what is in memory at once."""

    def __init__(self, checkpoints: Checkpoints) -> None:
        self._checkpoints = checkpoints
        self._written: dict[str, tuple[str, int]] = {}
        """The digest of each part, and the number of states in it."""
        self._newest: dict[int, str] = {}
        """For each client, the part with its newest state."""

    def update(self, round_: int, states: Mapping[int, Any], changed: Set[int]) -> dict[str, str]:
        """Write the states that changed, if there are some; return all parts that are in use, with their digests."""
        clients: Set[int] = changed & states.keys()
        if sum(count for _, count in self._written.values()) + len(clients) > 2 * len(states):
            clients = states.keys()
        for i, piece in enumerate(self._pieces(sorted(clients), states)):
            name, digest = self._checkpoints.save_part(f"{round_:09d}-{i:04d}", *stacked(piece))
            self._written[name] = digest, len(piece)
            self._newest |= dict.fromkeys(piece, name)
        in_use = set(self._newest.values())
        self._written = {name: told for name, told in self._written.items() if name in in_use}
        return {name: digest for name, (digest, _) in self._written.items()}

    def _pieces(self, clients: Iterable[int], states: Mapping[int, Any]) -> Iterator[dict[int, Any]]:
        piece, size = dict[int, Any](), 0
        for client in clients:
            piece[client] = states[client]
            size += sum(leaf.nbytes for _, leaf in _tree.items(piece[client]))
            if size >= self.PIECE:
                yield piece
                piece, size = {}, 0
        if piece:
            yield piece


def stacked(states: Mapping[int, Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the content of a part. States of one form are stacked: a part of a thousand clients has few tensors."""
    groups: dict[tuple[tuple[str, torch.Size, torch.dtype], ...], dict[int, list[Tensor]]] = {}
    for client, state in states.items():
        leaves = dict(_tree.items(state, "personal"))
        form = tuple((path, leaf.shape, leaf.dtype) for path, leaf in leaves.items())
        groups.setdefault(form, {})[client] = list(leaves.values())
    tensors = {}
    for number, (form, clients) in enumerate(groups.items()):
        for (path, *_), *column in zip(form, *clients.values(), strict=True):
            tensors[f"{number}-{path}"] = torch.stack(column)
    return tensors, {"groups": [list(clients) for clients in groups.values()]}


def unstacked(
    setup: Setup, tensors: Mapping[str, Tensor], info: Mapping[str, Any], known: Container[int]
) -> dict[int, Any]:
    """Return the states in a part, but for those of clients that are known already. They are copies."""
    states = {}
    for number, clients in enumerate(info["groups"]):
        template = setup.templates.personal[setup.clients[clients[0]].spec.group]
        prefix = f"{number}-personal"
        paths = [path for path, _ in _tree.items(template, prefix)]
        for row, client in enumerate(clients):
            if client not in known:
                states[client] = _tree.unflatten(template, {path: tensors[path][row].clone() for path in paths}, prefix)
    return states


def identity(setup: Setup) -> Identity:
    """Return what must be equal for one run to continue where another one stopped."""
    words = cache(network_words)  # many clients have one network
    checksums = Checksums()
    kinds = cache(lambda group: kind_words(specs[group], words(networks[group])))
    specs = {client.spec.group: client.spec for client in setup.clients}
    networks = {client.spec.group: client.network for client in setup.clients}
    run = {
        "seed": repr(setup.seed),
        "algorithm": type(setup.algorithm).__name__,
        **flatten(setup.describe()),
        "global network": words(setup.global_network),
    }
    clients = {client.name: client_words(client, kinds(client.spec.group), checksums) for client in setup.clients}
    return Identity(run, clients)


def kind_words(spec: ClientSpec, network: str) -> str:
    """Return what clients of one group have in common, in words that differ if their results may."""
    bits = ", ".join(f"{name} {bits}" for name, bits in spec.bits.items()) or "none"
    channels = " per channel" if spec.per_channel else ""
    return f"{network}, bits: {bits}, centers by {spec.init_centers}{channels}"


def client_words(client: SimClient, kind: str, checksums: "Checksums") -> str:
    """Return a client in words that differ if its result may."""
    tested = "not tested" if client.test is None else f"tested on {checksums.of(client.test)}"
    count = len(client.train)
    return f"{kind}, batches of {client.batch_size} of {count} samples ({checksums.of(client.train)}; {tested})"


def network_words(network: FunctionalNetwork) -> str:
    """Return a network in words that differ if it does, or its initial weights."""
    count = sum(value.numel() for value in network.initial.params.values())
    tensors = {**network.initial.params, **network.initial.buffers, **network.frozen}
    layers = zlib.crc32(repr((network.structure, {k: v.shape for k, v in tensors.items()})).encode())
    return f"{network.name} with {count} parameters (layers {layers:08x}, weights {crc(tensors.values()):08x})"


class Checksums:
    """Of samples: of all labels and of some inputs at least. They differ for data that were scaled or chosen again."""

    SOME = 256
    """Inputs of which a checksum is made, if there is no quicker way."""

    def __init__(self) -> None:
        self._of_rows: dict[int, NDArray[np.uint32]] = {}
        """Of each row of tensors of which clients have subsets, by the id of the whole."""

    def of(self, samples: Samples) -> str:
        """Return the checksum of samples."""
        rows = rows_of(samples)
        if rows is None:
            some = torch.linspace(0, len(samples) - 1, min(len(samples), self.SOME)).long()
            with torch_seeded(0, "checksum"):  # PyTorch data sets may be random
                rows = samples.batch(some).inputs
        elif isinstance(samples, Subset):
            return f"{zlib.crc32(self._chosen(samples).data):08x}"
        return f"{crc([samples.labels, *rows]):08x}"

    def _chosen(self, samples: Subset) -> NDArray[np.uint32]:
        """Return the checksums of the rows of a subset."""
        whole, indices = samples.whole, samples.indices
        while isinstance(whole, Subset):
            indices = whole.indices[indices]
            whole = whole.whole
        if id(whole) not in self._of_rows:
            value = np.zeros(len(whole), np.uint32)
            for tensor in (whole.labels, *(rows_of(whole) or ())):
                content = as_bytes(tensor).reshape(len(whole), -1)
                pairs = zip(content, value.tolist(), strict=True)
                value = np.fromiter((zlib.crc32(row.data, before) for row, before in pairs), np.uint32, len(whole))
            self._of_rows[id(whole)] = value
        chosen: NDArray[np.uint32] = self._of_rows[id(whole)][indices.numpy()]
        return chosen


def crc(tensors: Iterable[Tensor]) -> int:
    """Return the CRC-32 of the content of tensors."""
    value = 0
    for tensor in tensors:
        value = zlib.crc32(as_bytes(tensor).data, value)
    return value


def as_bytes(tensor: Tensor) -> NDArray[np.uint8]:
    """Return the content of a tensor, in the usual order."""
    content: NDArray[np.uint8] = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
    return content


def load(checkpoints: Checkpoints, setup: Setup, engine: Engine, ours: Identity) -> Resumed | None:
    """Bring an engine to the newest checkpoint, if there is one. A checkpoint of another run is refused."""
    latest = checkpoints.latest()
    if latest is None:
        return None
    tensors, info = latest
    about = about_of(checkpoints, info)
    refuse_another(checkpoints, about.run, ours.run, "{}")
    shared = setup.algorithm.init_shared(setup.clients[0].spec)
    try:
        for name in info["clients"]:
            refuse_another(checkpoints, checkpoints.part(name)[1]["clients"], ours.clients, "client '{}'")
        known: set[int] = set()
        for name in reversed(info["states"]):  # the newest state of a client is in the last part that has one
            states = unstacked(setup, *checkpoints.part(name), known)
            engine.restore(states)
            known |= states.keys()
        shared = _tree.unflatten(shared, tensors, "shared")
    except (KeyError, IndexError) as error:
        raise RunError(f"The checkpoint in {checkpoints.folder} is of another federation: it lacks {error}.") from error
    return Resumed(shared, info["round"] + 1, about.curve, about.seconds)


def refuse_another(checkpoints: Checkpoints, theirs: dict[str, str], ours: dict[str, str], title: str) -> None:
    """Raise if a checkpoint's run is not ours, and say in what it differs."""
    for what in ours | theirs:
        was, is_ = (run.get(what, "none") for run in (theirs, ours))
        if was != is_:
            raise RunError(
                f"The checkpoint in {checkpoints.folder} is of a run with another {title.format(what)}: {was} instead "
                f"of {is_}. Remove its round-*.safetensors to begin again, or name another folder."
            )


class About(NamedTuple):
    """Which run a checkpoint is of, and how far it has come."""

    run: dict[str, str]
    curve: list[Evaluation]
    seconds: float


def about_of(checkpoints: Checkpoints, info: dict[str, Any]) -> About:
    """Return how far a run had come, from the description of its checkpoint."""
    try:
        run, about = dict(info["run"]), info["about"]
        return About(run, [Evaluation(**point) for point in about["curve"]], float(about["seconds"]))
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
