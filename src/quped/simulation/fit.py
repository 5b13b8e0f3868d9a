"""From a setup to a result."""

import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np
import torch

from quped import _tree
from quped._computed import Computed
from quped._rng import LOCK
from quped.algorithms import Global
from quped.errors import InvalidValueError, check, check_whole
from quped.export import PackedModel, to_bytes
from quped.records import Checkpoints, exclusive
from quped.result import ClientResult, Evaluation, FitResult
from quped.simulation.checkpoint import Checkpointer, load, stop_signals
from quped.simulation.client_round import evaluate_global
from quped.simulation.engines import Engine, InlineEngine, ProcessEngine, VmapEngine, usable_cores
from quped.simulation.files import packed_model
from quped.simulation.loop import Observer, Round, evaluate, sample_clients, simulate
from quped.simulation.setup import Setup, SimClient


class History:
    """Keeps every evaluation."""

    def __init__(self, curve: Sequence[Evaluation]) -> None:
        self.curve = list(curve)

    def after_round(self, round_: Round) -> None:
        """Keep the evaluation of a round, if it has one."""
        if round_.evaluation is not None:
            self.curve.append(round_.evaluation)


def fit(
    setup: Setup,
    *,
    workers: int | None = None,
    device: torch.device | str | None = None,
    checkpoints: Checkpoints | Path | str | None = None,
    checkpoint_every: int = 25,
    callbacks: Sequence[Observer] = (),
) -> FitResult:
    """Train, and return the result. `Federation.fit` explains the arguments.

    Fits in several threads take turns: they share PyTorch's random generator, and perhaps networks.
    """
    check_arguments(workers, device, checkpoints, checkpoint_every, callbacks)
    began = time.monotonic()
    with ExitStack() as stack:
        stack.enter_context(LOCK)
        if isinstance(checkpoints, Path | str):
            checkpoints = Checkpoints(Path(checkpoints))
            stack.enter_context(exclusive(checkpoints.folder))
        engine = stack.enter_context(closing(open_engine(setup, workers, device)))
        resumed = load(checkpoints, setup, engine) if checkpoints else None
        first, shared = 0, setup.algorithm.init_shared(setup.clients[0].spec)
        history = History(())
        if resumed is not None:
            shared, first, began = resumed.shared, resumed.first, began - resumed.seconds
            history = History(resumed.curve)

        def timer() -> float:
            return round(time.monotonic() - began, 3)

        # Callbacks are told before the checkpoint is written: a run that dies in between tells them again.
        observers: list[Observer] = [history, *callbacks]
        if checkpoints:
            stop = stack.enter_context(stop_signals())
            observers.append(Checkpointer(checkpoints, setup, engine, history.curve, checkpoint_every, stop))
        last = simulate(setup, engine, observers, timer, shared, first)
        if last is not None:
            shared = last.shared
            if last.evaluation is None:  # a callback ended the run
                history.curve.append(evaluate(setup, engine, shared, last.clock, last.loss, timer))
        rounds = first if last is None else last.clock.round + 1
        return collect(setup, engine, shared, history.curve, rounds, time.monotonic() - began)


def check_arguments(
    workers: object, device: object, checkpoints: object, checkpoint_every: object, callbacks: object
) -> None:
    """Raise for arguments of `fit` that cannot be."""
    check_whole("checkpoint_every", checkpoint_every, 1)
    if workers is not None:
        check_whole("number of workers", workers, 0)
    if device is not None and workers:
        raise InvalidValueError("Pass either workers or device, not both.")
    known = checkpoints is None or isinstance(checkpoints, Checkpoints | Path | str)
    check(known, "checkpoints", "the path of a folder", checkpoints)
    listed = isinstance(callbacks, Sequence) and all(hasattr(one, "after_round") for one in callbacks)
    check(listed, "callbacks", "a list of objects with a method after_round(round)", callbacks)


def open_engine(setup: Setup, workers: int | None, device: torch.device | str | None) -> Engine:
    """Return the engine that was asked for; by default, all cores."""
    if device is not None:
        return VmapEngine(setup, device)
    count = usable_cores() if workers is None else workers
    return InlineEngine(setup) if count == 0 else ProcessEngine(setup, count)


def collect(
    setup: Setup, engine: Engine, shared: Any, curve: list[Evaluation], rounds: int, seconds: float
) -> FitResult:
    """Return the result of a run that has ended."""
    # Copies: under some methods all clients have the same tensors, or the initial ones.
    models = {
        client.name: _tree.map_leaves(torch.clone, engine.deploy(shared, i)) for i, client in enumerate(setup.clients)
    }
    clients = {client.name: client for client in setup.clients}
    w = shared.w if isinstance(shared, Global) else None
    scores = [] if w is None else evaluate_global(setup, w)
    accuracy = curve[-1].accuracy
    took_part = participation(setup, rounds)

    def pack(name: str) -> PackedModel:
        return packed_model(setup, clients[name], models[name], accuracy.get(name))

    return FitResult(
        algorithm=setup.algorithm.name,
        seed=setup.seed,
        epochs=setup.schedule.epochs,
        rounds=rounds,
        seconds=seconds,
        curve=curve,
        describe=lambda name: describe(clients[name], pack(name), accuracy.get(name), took_part[name]),
        models={name: models[name] for name in setup.names},
        files=Computed(setup.names, lambda name: to_bytes(pack(name))),
        networks={name: clients[name].network for name in setup.names},
        samples={name: clients[name].test or clients[name].train for name in setup.names},
        global_model=w,
        global_accuracy=float(np.mean([score.accuracy for score in scores])) if scores else None,
        global_accuracy_own_classes=float(np.mean([score.own_classes for score in scores])) if scores else None,
        global_network=setup.global_network,
        options=setup.describe(),
        sent=setup.sent,
    )


def participation(setup: Setup, rounds: int) -> Counter[str]:
    """Return in how many of the rounds each client was asked to take part."""
    chosen = (sample_clients(setup.schedule, len(setup.clients), setup.seed, number) for number in range(rounds))
    return Counter(setup.clients[i].name for some in chosen for i in some)


def describe(client: SimClient, model: PackedModel, accuracy: float | None, rounds: int) -> ClientResult:
    """Return what came out for one client."""
    params = (*client.network.initial.params.values(), *client.network.frozen.values())
    return ClientResult(
        name=client.name,
        network=client.network.name,
        bits=dict(client.spec.bits),
        samples=len(client.train),
        accuracy=accuracy,
        parameters=sum(value.numel() for value in params),
        bytes_file=len(to_bytes(model)),
        bytes_packed=model.floor,
        bytes_float32=model.float_bytes,
        classes=client.train.labels.bincount().tolist(),
        rounds=rounds,
    )
