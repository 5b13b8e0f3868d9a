"""A run as engines see it."""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch

from quped import _tree
from quped._rng import generator, torch_seeded
from quped.algorithms import AnyAlgorithm, ClientSpec, FedAvgFT, QuPeD
from quped.algorithms._own_classes import check_own_classes
from quped.algorithms.base import broadcast
from quped.data import Samples
from quped.errors import BadUpdateError, check
from quped.models import FunctionalNetwork
from quped.simulation._naming import naming
from quped.simulation.compiled import CompiledSteps
from quped.simulation.options import TrainingOptions
from quped.simulation.schedule import DEFAULT_BATCH_SIZE, Schedule
from quped.typing import Batch, Clock, Metrics


@dataclass(frozen=True)
class SimClient:
    """A client that was checked: what an engine runs."""

    name: str
    """Also the key of the client's random numbers."""
    spec: ClientSpec
    network: FunctionalNetwork
    train: Samples
    test: Samples | None
    batch_size: int = DEFAULT_BATCH_SIZE


MOST_WATCHED = 4
"""Clients whose weights are watched."""


class Templates(NamedTuple):
    """States that have the form of all others of their kind."""

    shared: Any
    """As clients receive it."""
    payload: Mapping[int, Any]
    """For each group of clients."""
    personal: Mapping[int, Any]
    """For each group of clients."""


@dataclass(frozen=True)
class Setup:
    """Everything that a run follows from."""

    algorithm: AnyAlgorithm
    clients: Sequence[SimClient]
    """In the order of their names, so that permuting a user's clients changes nothing."""
    schedule: Schedule
    seed: int
    global_network: FunctionalNetwork
    options: TrainingOptions
    names: Sequence[str]
    """Of the clients, in the order in which the user gave them: results have this order."""

    @classmethod
    def of(
        cls,
        algorithm: AnyAlgorithm,
        clients: Sequence[SimClient],
        global_network: FunctionalNetwork,
        options: TrainingOptions,
        seed: int,
        names: Sequence[str] | None = None,
    ) -> "Setup":
        """Return the setup of a run with these options."""
        quantizes = any(client.spec.bits for client in clients)
        schedule = Schedule.of(options, [len(client.train) for client in clients], quantizes=quantizes)
        if isinstance(algorithm, QuPeD):
            check_warmup(algorithm.warmup_epochs, schedule)
        if isinstance(algorithm, FedAvgFT):
            warn_of_no_round_alone(algorithm, schedule)
        if options.own_classes:
            for client in clients:
                check_own_classes(client.spec, f"the network of client '{client.name}'")
        specs = {client.spec.group: replace(client.spec, sgd=options.sgd) for client in clients}

        def batch_size(client: SimClient) -> int:
            if options.batch_size is None and options.steps_per_epoch is not None:
                return math.ceil(len(client.train) / options.steps_per_epoch)
            return int(options.batch_size or DEFAULT_BATCH_SIZE)

        ready = [replace(client, spec=specs[client.spec.group], batch_size=batch_size(client)) for client in clients]
        order = [client.name for client in clients] if names is None else list(names)
        return cls(algorithm, ready, schedule, seed, global_network, options, order)

    @cached_property
    def compiled(self) -> CompiledSteps:
        """The steps of the algorithm, compiled."""
        return CompiledSteps(self.algorithm)

    def step(self, spec: ClientSpec, work: Any, batches: tuple[Batch, ...], clock: Clock) -> tuple[Any, Metrics]:
        """Take one local step of a client."""
        if self.options.compile:
            return self.compiled.step(spec, work, batches, clock)
        return self.algorithm.step(spec, work, batches, clock)

    @cached_property
    def templates(self) -> "Templates":
        """The forms of all states: those before the first round, and the payload of a round without steps."""
        algorithm, clock = self.algorithm, self.schedule.clock(0)
        shared = broadcast(algorithm.init_shared(self.clients[0].spec))
        first = {client.spec.group: client for client in reversed(self.clients)}
        personal = {group: algorithm.init_personal(client.spec, shared) for group, client in first.items()}
        payload = {}
        for group, client in first.items():
            with naming(client.name, 0), torch_seeded(self.seed, "layout"):
                work = algorithm.start(client.spec, shared, personal[group], clock)
                twice = client.train.batch(torch.zeros(2, dtype=torch.long))  # BatchNorm needs two samples
                # No client's numbers: a form must not depend on what a client makes of them.
                blank = twice._replace(inputs=tuple(map(torch.zeros_like, twice.inputs)))
                _, payload[group] = algorithm.finish(client.spec, work, blank, clock)
        return Templates(shared, payload, personal)

    @cached_property
    def evaluated(self) -> Mapping[int, Samples]:
        """The clients that are evaluated, each with its test samples; the same ones in every evaluation of a run."""
        tested = [i for i, client in enumerate(self.clients) if client.test is not None]
        count = self.schedule.evaluate_clients
        if count is not None and count < len(tested):
            tested = sorted(generator(self.seed, "evaluate").choice(tested, count, replace=False).tolist())
        return {i: test for i in tested if (test := self.clients[i].test) is not None}

    @cached_property
    def watched(self) -> frozenset[str]:
        """The clients whose weights an evaluation keeps: the first quantized one of each of the first few groups."""
        clients = [self.clients[i] for i in reversed(list(self.evaluated))]
        quantized = {client.spec.group: client.name for client in clients if client.spec.bits}
        return frozenset(quantized[group] for group in sorted(quantized)[:MOST_WATCHED])

    @cached_property
    def sent(self) -> dict[str, int]:
        """The bytes that travel for one client in one round, uncompressed; of different clients, the most."""
        templates = self.templates
        most = max(_tree.size(payload) for payload in templates.payload.values())
        return {"to_server": most, "to_client": _tree.size(templates.shared)}

    def handle_bad_update(self, error: BadUpdateError) -> None:
        """Stop the run, or warn that a client is skipped in this round, as the options say."""
        if self.options.bad_updates == "stop":
            raise error
        warnings.warn(f"{error} The client is skipped in this round.", stacklevel=3)

    def describe(self) -> dict[str, Any]:
        """Return the method's hyperparameters, and the training: the options, and what follows from them."""
        training = (
            asdict(self.schedule)
            | asdict(self.options.sgd)
            | {"batch_size": self._batch_size()}
            | {name: getattr(self.options, name) for name in ("bad_updates", "max_update_norm", "own_classes")}
            | ({"compile": True} if self.options.compile else {})
        )
        return {"hyperparameters": asdict(self.algorithm), "training": training}

    def _batch_size(self) -> int | None:
        """Return the batch size; None if clients have their own."""
        sizes = {client.batch_size for client in self.clients}
        return sizes.pop() if len(sizes) == 1 else None


def check_warmup(epochs: float, schedule: Schedule) -> None:
    """Raise if the warm-up is longer than the training before the fine-tuning."""
    training = math.ceil((schedule.epochs - schedule.finetune_epochs) * schedule.stretch)
    rule = f"at most {training}, the epochs before fine-tuning"
    check(epochs <= training, "warmup_epochs", rule, epochs)


def warn_of_no_round_alone(algorithm: FedAvgFT, schedule: Schedule) -> None:
    """Warn of a run that ends before its clients are alone."""
    last = schedule.clock(schedule.rounds - 1)
    if algorithm.is_common(last):
        warnings.warn(
            f"FedAvgFT has no round alone in this run, so it is FedAvg: lower its warmup_epochs, "
            f"{algorithm.warmup_epochs:g}, to {last.t:g} at most.",
            stacklevel=5,  # whoever calls fit()
        )
