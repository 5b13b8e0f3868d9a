"""The loop of a federation, written once. An engine says where a client's round is computed."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from quped import tree
from quped.algorithms import AnyAlgorithm, Task
from quped.data import Samples
from quped.errors import InvalidValueError, check, check_whole, number
from quped.native import reusing
from quped.rng import generator
from quped.typing import Batch, Clock, Model, Phase


@dataclass(frozen=True)
class Player:
    """A client as engines see it."""

    name: str
    """Identifies the client's random numbers, too."""
    task: Task
    train: Samples
    test: Samples
    batch_size: int


@dataclass(frozen=True)
class Plan:
    """When what happens: rounds of `local_steps` steps; epochs, phases and learning rates change between rounds."""

    epochs: int
    finetune_epochs: int
    """The last epochs, spent on fine-tuning after hard quantization."""
    steps_per_epoch: int
    local_steps: int
    """tau, the steps between two communications. The last round may have fewer."""
    lr: float
    lr_decay: float
    """Factor on the learning rate per epoch."""
    clients_per_round: int
    """K, the clients sampled for a round."""
    evaluate_every: int
    """In epochs. The last round is always evaluated."""
    stretch: float = 1.0
    """How many epochs of the schedules, of lr_decay and of lambda(t), pass in one epoch: above 1 in a shortened run,
    which goes through all of them, several in one of its epochs."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        for what in ("epochs", "steps_per_epoch", "local_steps", "clients_per_round", "evaluate_every"):
            check_whole(what, getattr(self, what), 1)
        check_whole("number of finetune_epochs", self.finetune_epochs, 0, self.epochs)
        check(0 < number(self.lr) < math.inf, "learning rate lr", "above 0 and finite", self.lr)
        check(0 < number(self.lr_decay) <= 1, "lr_decay", "above 0 and at most 1", self.lr_decay)
        check(0 < number(self.stretch) < math.inf, "stretch", "above 0 and finite", self.stretch)
        if self.finetune_epochs and self.clock(self.rounds - 1).phase is not Phase.FINETUNE:
            raise InvalidValueError(
                f"No round begins in the last {self.finetune_epochs} epochs, in which fine-tuning was asked for: "
                "use fewer local_steps, or more epochs."
            )

    def with_finetuning(self, epochs: int) -> "Plan":
        """Return this plan with so many epochs of fine-tuning, at least the last of several rounds."""
        last = self.epoch(self.rounds - 1)
        return replace(self, finetune_epochs=max(epochs, self.epochs - last) if last else 0)

    @property
    def rounds(self) -> int:
        """The number of rounds."""
        return math.ceil(self.epochs * self.steps_per_epoch / self.local_steps)

    def steps(self, round_: int) -> int:
        """Return the number of steps of a round: `local_steps`, or what is left of the run in the last one."""
        return min(self.local_steps, self.epochs * self.steps_per_epoch - round_ * self.local_steps)

    def epoch(self, round_: int) -> int:
        """Return the epoch in which a round begins."""
        return round_ * self.local_steps // self.steps_per_epoch

    def clock(self, round_: int) -> Clock:
        """Return the clock of a round."""
        epoch = self.epoch(round_)
        phase = Phase.TRAIN if epoch < self.epochs - self.finetune_epochs else Phase.FINETUNE
        t = round_ * self.local_steps * self.stretch // self.steps_per_epoch
        return Clock(round_, epoch, phase, t, float(self.lr) * float(self.lr_decay) ** t)

    def evaluates(self, round_: int) -> bool:
        """Say whether a round ends with an evaluation: the last one does, and the last of every n-th epoch."""
        here, next_ = (self.epoch(r) // self.evaluate_every for r in (round_, round_ + 1))
        return here != next_ or round_ == self.rounds - 1


class RoundReport(NamedTuple):
    """What a round gave."""

    clock: Clock
    loss: float
    """Training loss, mean over the round's clients and steps."""
    scores: list[float] | None
    """For each client, its deployed model on its test samples; None in rounds without evaluation."""
    shared: Any
    """The server's state after the round."""


class Engine(Protocol):
    """Computes clients' rounds and keeps their personal state."""

    def play(self, shared: Any, clock: Clock, chosen: Sequence[int]) -> tuple[Any, float]:
        """Run one round of the chosen clients; return the mean of their payloads, in this order, and the mean loss."""
        ...

    def deployed(self, shared: Any, client: int) -> Model:
        """Return the model that a client uses now."""
        ...

    def scores(self, shared: Any) -> list[float]:
        """Evaluate every client's deployed model on its own test samples."""
        ...

    def states(self) -> dict[int, Any]:
        """Return the personal state of every client that took part."""
        ...

    def restore(self, states: Mapping[int, Any]) -> None:
        """Go on from such states."""
        ...

    def close(self) -> None:
        """Give back processes and files."""
        ...


def client_round(
    algorithm: AnyAlgorithm,
    task: Task,
    shared: Any,
    personal: Any,
    batches: Iterable[tuple[Batch, ...]],
    clock: Clock,
) -> tuple[Any, Any, Tensor]:
    """One client's round: the only place where an algorithm's methods are called in turn.

    Return the personal state, the payload and the mean loss.
    """
    work = algorithm.start(task, shared, personal, clock)
    losses = []
    for step in batches:
        with reusing():
            work, metrics = algorithm.step(task, work, step, clock)
        losses.append(metrics["loss"])
    personal, payload = algorithm.finish(task, work, step[0], clock)
    return personal, payload, torch.stack(losses).mean()


def mean(payloads: Iterable[Any]) -> Any:
    """Return the mean of payloads, added one by one in their order: the same bits in every engine."""
    total, count = None, 0
    for payload in payloads:
        total = payload if total is None else tree.map_leaves(torch.add, total, payload)
        count += 1
    return tree.map_leaves(lambda leaf: leaf / count, total)


def choose(plan: Plan, clients: int, seed: int, round_: int) -> list[int]:
    """Return the clients of a round, in ascending order."""
    if plan.clients_per_round >= clients:
        return list(range(clients))
    picked = generator(seed, "clients", round_).choice(clients, plan.clients_per_round, replace=False)
    return sorted(int(i) for i in picked)


def run(
    algorithm: AnyAlgorithm,
    plan: Plan,
    clients: int,
    seed: int,
    engine: Engine,
    shared: Any,
    first: int = 0,
) -> Iterator[RoundReport]:
    """Run all rounds from the first on, and tell of each."""
    for clock in map(plan.clock, range(first, plan.rounds)):
        received, loss = engine.play(shared, clock, choose(plan, clients, seed, clock.round))
        shared = algorithm.combine(shared, received)
        scores = engine.scores(shared) if plan.evaluates(clock.round) else None
        yield RoundReport(clock, loss, scores, shared)
