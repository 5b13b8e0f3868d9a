"""From a setup to a result."""

import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, closing
from functools import cache
from pathlib import Path
from typing import Any

import torch

from quped import _tree
from quped._computed import Computed
from quped._evaluate import Evaluation
from quped._rng import LOCK
from quped.algorithms import Deployed
from quped.algorithms.base import broadcast
from quped.errors import check, check_whole
from quped.export import PackedModel, to_bytes
from quped.records import Checkpoints, exclusive
from quped.result import ClientResult, FitResult
from quped.simulation.checkpoint import Checkpointer, identity, load, stop_signals
from quped.simulation.client_round import evaluate_global
from quped.simulation.engines import Engine, EngineChoice
from quped.simulation.files import packed_model
from quped.simulation.loop import Observer, Round, Start, evaluate, sample_clients, simulate
from quped.simulation.setup import Setup, SimClient
from quped.typing import ModelState


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
    where: EngineChoice,
    checkpoints: Checkpoints | Path | str | None = None,
    checkpoint_every: int = 25,
    callbacks: Sequence[Observer] = (),
    start: Start | None = None,
) -> FitResult:
    """Train, and return the result. `Federation.fit` explains the arguments; `start` says where a run without a
    checkpoint begins.

    Fits in several threads take turns: they share PyTorch's random generator, and perhaps networks.
    """
    check_arguments(checkpoints, checkpoint_every, callbacks)
    began = time.monotonic()
    with ExitStack() as stack:
        stack.enter_context(LOCK)
        if isinstance(checkpoints, Path | str):
            checkpoints = Checkpoints(Path(checkpoints))
            stack.enter_context(exclusive(checkpoints.folder))
        engine = stack.enter_context(closing(where.open(setup)))
        resumed = None
        if checkpoints:
            ours = identity(setup)
            resumed = load(checkpoints, setup, engine, ours)
        first, shared = start or Start(0, setup.algorithm.init_shared(setup.clients[0].spec))
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
            observers.append(Checkpointer(checkpoints, setup, engine, history.curve, checkpoint_every, stop, ours))
        last = simulate(setup, engine, observers, timer, shared, first)
        if checkpoints:
            checkpoints.forget_older()  # a process that was killed after its last round did not
        if last is not None:
            shared = last.shared
            if last.evaluation is None:  # a callback ended the run
                history.curve.append(evaluate(setup, engine, shared, last.clock, last.loss, timer, engine.seconds))
        rounds = first if last is None else last.clock.round + 1
        return collect(setup, engine, shared, history.curve, rounds, time.monotonic() - began)


def check_arguments(checkpoints: object, checkpoint_every: object, callbacks: object) -> None:
    """Raise for arguments of `fit` that cannot be."""
    check_whole("checkpoint_every", checkpoint_every, 1)
    known = checkpoints is None or isinstance(checkpoints, Checkpoints | Path | str)
    check(known, "checkpoints", "the path of a folder", checkpoints)
    listed = isinstance(callbacks, Sequence) and all(hasattr(one, "after_round") for one in callbacks)
    check(listed, "callbacks", "a list of objects with a method after_round(round)", callbacks)


def collect(
    setup: Setup, engine: Engine, shared: Any, curve: list[Evaluation], rounds: int, seconds: float
) -> FitResult:
    """Return the result of a run that has ended."""
    clients = {client.name: client for client in setup.clients}
    held = getattr(shared, "w", None)
    w = held if isinstance(held, ModelState) else None  # some methods average parameters alone
    numbers = {client.name: i for i, client in enumerate(setup.clients)}
    accuracy = curve[-1].accuracy
    took_part = cache(lambda: participation(setup, rounds))  # many numbers, where there are many clients

    def model(name: str) -> Deployed:
        # A copy: under some methods all clients have the same tensors, or the initial ones.
        return _tree.map_leaves(torch.clone, engine.deploy(broadcast(shared), numbers[name]))

    def pack(name: str) -> PackedModel:
        return packed_model(setup, clients[name], model(name), accuracy.get(name))

    return FitResult(
        algorithm=setup.algorithm.name,
        seed=setup.seed,
        epochs=setup.schedule.epochs,
        rounds=rounds,
        seconds=seconds,
        curve=curve,
        describe=lambda name: describe(clients[name], pack(name), accuracy.get(name), took_part()[name]),
        models=Computed(setup.names, model),
        files=Computed(setup.names, lambda name: to_bytes(pack(name))),
        networks=Computed(setup.names, lambda name: clients[name].network),
        samples=Computed(setup.names, lambda name: clients[name].test or clients[name].train),
        global_model=w,
        score_global=lambda: None if w is None else evaluate_global(setup, w),
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
        test_samples=0 if client.test is None else len(client.test),
        accuracy=accuracy,
        parameters=sum(value.numel() for value in params),
        bytes_file=len(to_bytes(model)),
        bytes_packed=model.floor,
        bytes_float32=model.float_bytes,
        classes=client.train.labels.bincount().tolist(),
        rounds=rounds,
    )
