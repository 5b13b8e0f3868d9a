"""The loop of a federation, written once. An engine says where a client's round is computed."""

import heapq
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from quped import _tree
from quped._evaluate import Evaluation
from quped._rng import generator
from quped.algorithms.base import broadcast
from quped.simulation.client_round import one_thread
from quped.simulation.engines.base import Engine
from quped.simulation.schedule import Schedule
from quped.simulation.setup import Setup
from quped.typing import Clock

SLOWEST = 5
"""Clients whose time an evaluation names."""


@dataclass(frozen=True)
class Round:
    """A round that is done."""

    clock: Clock
    """Its number and epoch, both from 0, its phase and learning rate."""
    rounds: int
    """Of the whole run."""
    loss: float
    """Training loss, mean over the round's clients and steps."""
    evaluation: Evaluation | None
    """None in rounds without evaluation."""
    shared: Any
    """The server's state after the round."""
    seconds: float
    """Since the run began, without interruptions."""

    @property
    def is_last(self) -> bool:
        """Whether the schedule ends with it."""
        return self.clock.round + 1 == self.rounds


class Start(NamedTuple):
    """Where a run begins, if not with its first round."""

    round: int
    shared: Any
    """The server's state before this round. Clients have their initial states."""


class Observer(Protocol):
    """Is told of every round, in the order of the rounds."""

    def after_round(self, round_: Round) -> bool | None:
        """Take note of a round. Return True to end the run with it."""
        ...


class Timer(Protocol):
    """Tells the seconds since the run began."""

    def __call__(self) -> float:
        """Return the seconds."""
        ...


class Pace:
    """How long a round takes the clients that took part since the last evaluation, mean over their rounds."""

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}
        self._rounds: Counter[int] = Counter()

    def add(self, seconds: Mapping[int, float]) -> None:
        """Take note of the times of a round."""
        for client, taken in seconds.items():
            self._seconds[client] = self._seconds.get(client, 0.0) + taken
        self._rounds.update(seconds.keys())

    def take(self) -> dict[int, float]:
        """Return the mean of each client, and begin again."""
        means = {client: round(total / self._rounds[client], 6) for client, total in self._seconds.items()}
        self._seconds, self._rounds = {}, Counter()
        return means


def sample_clients(schedule: Schedule, clients: int, seed: int, round_: int) -> list[int]:
    """Return the clients of a round, in ascending order."""
    if schedule.clients_per_round >= clients:
        return list(range(clients))
    picked = generator(seed, "clients", round_).choice(clients, schedule.clients_per_round, replace=False)
    return sorted(int(i) for i in picked)


def simulate(
    setup: Setup, engine: Engine, observers: Sequence[Observer], timer: Timer, shared: Any, first: int = 0
) -> Round | None:
    """Run all rounds from the first on, and tell the observers of each; return the last one that was run."""
    round_, pace = None, Pace()
    for clock in map(setup.schedule.clock, range(first, setup.schedule.rounds)):
        chosen = sample_clients(setup.schedule, len(setup.clients), setup.seed, clock.round)
        mean, loss = engine.run_round(broadcast(shared), clock, chosen)
        pace.add(engine.seconds)
        with one_thread():
            updated = setup.algorithm.server_update(shared, mean)
        shared = _tree.arranged(updated, shared)  # engines rely on the order
        due = setup.schedule.evaluates(clock.round)
        evaluation = evaluate(setup, engine, shared, clock, loss, timer, pace.take()) if due else None
        round_ = Round(clock, setup.schedule.rounds, loss, evaluation, shared, timer())
        if any_stops(observers, round_):
            break
    return round_


def any_stops(observers: Iterable[Observer], round_: Round) -> bool:
    """Tell every observer of a round; say whether one of them ends the run."""
    answers = [observer.after_round(round_) for observer in observers]  # all are told, also if the first one stops
    return any(answers)


def evaluate(
    setup: Setup, engine: Engine, shared: Any, clock: Clock, loss: float, timer: Timer, taken: Mapping[int, float]
) -> Evaluation:
    """Evaluate every client's deployed model on its own test samples; `taken` are the seconds of clients' rounds."""
    scores = engine.evaluate(broadcast(shared))
    by_name = {setup.clients[i].name: score for i, score in scores.items()}
    ordered = {name: by_name[name] for name in setup.names if name in by_name}
    return Evaluation(
        round=clock.round,
        epoch=clock.epoch,
        phase=clock.phase.value,
        loss=loss,
        accuracy={name: score.accuracy for name, score in ordered.items()},
        accuracy_own_classes={name: score.own_classes for name, score in ordered.items()},
        seconds=timer(),
        slowest={setup.clients[i].name: taken[i] for i in heapq.nlargest(SLOWEST, taken, key=taken.__getitem__)},
        median_seconds=statistics.median(taken.values()) if taken else None,
        weights={name: score.weights for name, score in ordered.items() if score.weights is not None},
    )
