"""A federation of clients: what is planned, computed and kept."""

import math
import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, is_dataclass, replace
from functools import cache
from pathlib import Path
from threading import RLock
from typing import Any, TypedDict, Unpack

import numpy as np
import torch
from torch import Tensor

from quped import tree
from quped.admission import Admission, Client, Member, ModelSource
from quped.algorithms import FULL_PRECISION, SGD, AnyAlgorithm, Global
from quped.data import Samples
from quped.engines import (
    Engine,
    InlineEngine,
    Plan,
    Player,
    ProcessEngine,
    RoundReport,
    VmappedEngine,
    checkpoint,
    run,
    score_global,
    usable_cores,
)
from quped.engines.checkpoint import stop_signals
from quped.errors import InterruptedRunError, InvalidValueError, check, check_whole, nearest
from quped.fit import ClientReport, Evaluation, Fit, Progress
from quped.models import FunctionalNetwork
from quped.quant.storage import FLOAT_BYTES, float_bytes, packed_bytes
from quped.rng import torch_seeded
from quped.runs import Checkpoints, entries, exclusive
from quped.typing import Model

FITTING = RLock()
"""Fits in several threads take turns: they share PyTorch's random generator, and perhaps networks."""

DEFAULT_BATCH_SIZE = 25


class Training(TypedDict, total=False):
    """The options of training; `Federation.prepare` says what they mean."""

    epochs: int
    local_steps: int
    batch_size: int | None
    steps_per_epoch: int | None
    lr: float
    lr_decay: float
    weight_decay: float
    momentum: float
    finetune_epochs: int | None
    clients_per_round: int | None
    evaluate_every: int
    stretch: float


class Federation:
    """Clients, an algorithm, and the network of the global model in which the clients meet.

    Everything that can be checked before training is checked when the federation is made.
    """

    def __init__(
        self,
        clients: Iterable[Client],
        algorithm: AnyAlgorithm,
        global_model: ModelSource | None = None,
        seed: int = 0,
    ) -> None:
        """Without `global_model`, the clients' own network is the global one; then all must have the same."""
        known = not isinstance(algorithm, type) and hasattr(algorithm, "meets_in") and is_dataclass(algorithm)
        check(known, "algorithm", "a dataclass instance such as QuPeD()", algorithm)
        check_whole("seed", seed, 0)
        self.algorithm = algorithm
        self.seed = int(seed)
        check(isinstance(clients, Iterable), "clients", "a list of Client(...)", clients)
        clients = list(clients)
        admission = Admission(clients, algorithm, global_model, self.seed)
        self.members = admission.members
        """In the order of their names; what `fit` returns is in that of `clients`."""
        self._global = admission.meeting
        self._names = [client.name for client in clients]

    def prepare(
        self,
        *,
        epochs: int = 30,
        local_steps: int = 10,
        batch_size: int | None = None,
        steps_per_epoch: int | None = None,
        lr: float = 0.1,
        lr_decay: float = 0.99,
        weight_decay: float = 1e-4,
        momentum: float = 0.0,
        finetune_epochs: int | None = None,
        clients_per_round: int | None = None,
        evaluate_every: int = 1,
        stretch: float = 1.0,
    ) -> tuple[Plan, list[Player]]:
        """Check the options of `fit` and return what follows from them: the plan, and the clients as engines see them.

        An epoch has `steps_per_epoch` steps; by default as many as the average client needs to see its samples once
        in batches of `batch_size`, 25 by default. With `steps_per_epoch` and no `batch_size`, each client's batch size
        is chosen so that an epoch is one pass over its own data. Clients communicate after every `local_steps` steps.
        `finetune_epochs` of the epochs are spent on fine-tuning after hard quantization; by default a sixth, at least
        the last of several rounds, and none where nobody quantizes. `clients_per_round` clients are sampled for each
        round; by default all take part. `evaluate_every` counts epochs. In a run that stands for a longer one,
        `stretch` epochs of the schedules of learning rate and lambda pass in one epoch.
        """
        members = self.members
        for what, value in (("batch_size", batch_size), ("steps_per_epoch", steps_per_epoch)):
            if value is not None:
                check_whole(what, value, 1)
        if steps_per_epoch is None:
            batch_size = batch_size or DEFAULT_BATCH_SIZE
            steps_per_epoch = math.ceil(sum(len(m.train) for m in members) / (len(members) * batch_size))
        plan = Plan(
            epochs=epochs,
            finetune_epochs=0 if finetune_epochs is None else finetune_epochs,
            steps_per_epoch=steps_per_epoch,
            local_steps=local_steps,
            lr=lr,
            lr_decay=lr_decay,
            clients_per_round=len(members) if clients_per_round is None else clients_per_round,
            evaluate_every=evaluate_every,
            stretch=stretch,
        )
        if finetune_epochs is None and any(m.client.bits < FULL_PRECISION for m in members):
            plan = plan.with_finetuning(max(1, round(epochs / 6)))
        if plan.clients_per_round > len(members):
            rule = f"at most {len(members)}, the number of clients"
            raise InvalidValueError(f"The clients_per_round must be {rule}, got {plan.clients_per_round}.")
        sgd = SGD(weight_decay, momentum)
        tasks = {id(m.task): replace(m.task, sgd=sgd) for m in members}
        return plan, [
            Player(
                name=m.client.name,
                task=tasks[id(m.task)],
                train=m.train,
                test=m.test,
                batch_size=batch_size or math.ceil(len(m.train) / steps_per_epoch),
            )
            for m in members
        ]

    def fit(
        self,
        *,
        workers: int | None = None,
        device: torch.device | str | None = None,
        checkpoints: Checkpoints | Path | str | None = None,
        checkpoint_every: int = 25,
        progress: Callable[[Progress], None] | None = None,
        **training: Unpack[Training],
    ) -> Fit:
        """Train, and return what was learned. The options of training are those of `prepare`.

        `workers` processes compute; by default one for each core on Linux. With 0, the default elsewhere, this process
        does. The result is the same. `progress` is called after every round.

        With `device`, such as "cuda", this process computes clients with the same network and bit-width at once, there.
        The result is the same up to rounding.

        With `checkpoints`, a folder, the run continues from the newest one, if there is any, and ends as if it had
        never been interrupted. One is written every `checkpoint_every` rounds, after the last one, and on SIGINT or
        SIGTERM, which then end the run with an `InterruptedRunError`.
        """
        began = time.monotonic()
        check_whole("checkpoint_every", checkpoint_every, 1)
        if workers is not None:
            check_whole("number of workers", workers, 0)
        check(device is None or not workers, "number of workers", "left out beside a device", workers)
        if isinstance(checkpoints, Path | str):
            checkpoints = Checkpoints(Path(checkpoints))
        known = checkpoints is None or isinstance(checkpoints, Checkpoints)
        check(known, "checkpoints", "the path of a folder", checkpoints)
        check(progress is None or callable(progress), "progress", "a function of a Progress", progress)
        if unknown := [option for option in training if option not in Training.__annotations__]:
            raise InvalidValueError(
                f"fit has no option '{unknown[0]}'. {nearest(unknown[0], Training.__annotations__)}"
            )
        plan, players = self.prepare(**training)
        members = self.members
        options = {"hyperparameters": asdict(self.algorithm), "training": asdict(plan) | asdict(players[0].task.sgd)}
        identity = self._identity(options, players) if checkpoints else {}
        sizes = {player.batch_size for player in players}
        options["training"]["batch_size"] = sizes.pop() if len(sizes) == 1 else None
        with ExitStack() as stack:
            stack.enter_context(FITTING)
            if checkpoints:
                stack.enter_context(exclusive(checkpoints.folder))
            engine = stack.enter_context(closing(self._engine(players, plan, workers, device)))
            stop = stack.enter_context(stop_signals()) if checkpoints else lambda: None
            shared, first, curve = self.algorithm.init_shared(players[0].task), 0, list[Evaluation]()
            if checkpoints and (found := checkpoint.load(checkpoints, engine, self.algorithm, players, identity)):
                shared, first, about = found
                curve = [Evaluation(**point) for point in about["curve"]]
                began -= about["seconds"]

            for told in run(self.algorithm, plan, len(players), self.seed, engine, shared, first):
                shared, clock = told.shared, told.clock
                seconds = round(time.monotonic() - began, 3)
                evaluation = None if told.scores is None else self._evaluation(told, told.scores, seconds)
                if evaluation is not None:
                    curve.append(evaluation)
                # Told before it is saved: a run that dies in between tells it again, and none goes untold.
                if progress is not None:
                    phase = clock.phase.value
                    progress(Progress(clock.round, plan.rounds, clock.epoch, phase, told.loss, evaluation))
                signal_number = stop()  # asked once: what comes after the checkpoint waits for the next round
                due = (clock.round + 1) % checkpoint_every == 0 or clock.round + 1 == plan.rounds
                if checkpoints is not None and (signal_number or due):
                    about = {"curve": [asdict(point) for point in curve], "seconds": seconds}
                    checkpoint.save(checkpoints, engine, shared, clock.round, identity, about)
                if signal_number is not None:
                    raise InterruptedRunError(clock.round, signal_number)
            # Copies: under some methods all clients have the same tensors, or those that a fit begins with.
            models = {p.name: tree.map_leaves(torch.clone, engine.deployed(shared, i)) for i, p in enumerate(players)}
        by_name = {m.client.name: m for m in members}
        w = shared.w if isinstance(shared, Global) else None
        taught = None if w is None else score_global(self._global, w, players, self.seed)
        return Fit(
            algorithm=self.algorithm.name,
            seed=self.seed,
            epochs=plan.epochs,
            rounds=plan.rounds,
            seconds=time.monotonic() - began,
            curve=curve,
            clients=[describe(by_name[name], models[name], curve[-1].accuracy[name]) for name in self._names],
            models={name: models[name] for name in self._names},
            networks={name: by_name[name].network for name in self._names},
            global_model=w,
            global_accuracy=None if taught is None else float(np.mean(taught)),
            global_network=self._global,
            options=options,
        )

    def _engine(
        self, players: Sequence[Player], plan: Plan, workers: int | None, device: torch.device | str | None
    ) -> Engine:
        if device is not None:
            return VmappedEngine(self.algorithm, players, plan, self.seed, device)
        count = usable_cores() if workers is None else workers
        if count == 0:
            return InlineEngine(self.algorithm, players, plan, self.seed)
        return ProcessEngine(self.algorithm, players, plan, self.seed, count)

    def _identity(self, options: Mapping[str, Any], players: Sequence[Player]) -> dict[str, str]:
        """Return what must be equal for one run to go on where another one stopped."""
        identity = {"seed": repr(self.seed), "algorithm": type(self.algorithm).__name__, **entries(options)}
        identity["global network"] = in_words(self._global)
        words = cache(in_words)  # many clients have one network
        for member, player in zip(self.members, players, strict=True):
            client = member.client
            identity[f"client '{client.name}'"] = (
                f"{words(member.network)}, {client.bits} bits for {', '.join(player.task.quantized) or 'nothing'}, "
                f"centers by {client.start}{' per channel' * client.per_channel}, batches of {player.batch_size} of "
                f"{len(member.train)} samples ({sum_of(member.train)}; tested on {sum_of(member.test)})"
            )
        return identity

    def _evaluation(self, told: RoundReport, scores: Sequence[float], seconds: float) -> Evaluation:
        found = dict(zip((m.client.name for m in self.members), scores, strict=True))
        return Evaluation(
            round=told.clock.round,
            epoch=told.clock.epoch,
            phase=told.clock.phase.value,
            loss=told.loss,
            accuracy={name: found[name] for name in self._names},
            seconds=seconds,
        )


def in_words(network: FunctionalNetwork) -> str:
    """Return a network in a few words, that differ if it does, or the weights that it starts with."""
    count = sum(value.numel() for value in network.initial.params.values())
    tensors = {**network.initial.params, **network.initial.buffers, **network.frozen}
    layers = zlib.crc32(repr((network.structure, {k: v.shape for k, v in tensors.items()})).encode())
    return f"{network.name} with {count} parameters (layers {layers:08x}, weights {crc(tensors.values()):08x})"


def sum_of(samples: Samples) -> str:
    """Return a checksum of all labels and of some inputs: enough to tell data apart that were scaled or chosen anew."""
    some = torch.linspace(0, len(samples) - 1, min(len(samples), 256)).long()
    with torch_seeded(0, "checksum"):  # data sets of PyTorch may be random
        inputs = samples.batch(some).inputs
    return f"{crc([samples.labels, *inputs]):08x}"


def crc(tensors: Iterable[Tensor]) -> int:
    """Return the CRC-32 of the content of tensors."""
    found = 0
    for tensor in tensors:
        found = zlib.crc32(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data, found)
    return found


def describe(member: Member, model: Model, accuracy: float) -> ClientReport:
    """Return what came out for one client."""
    client, task = member.client, member.task
    frozen = sum(value.numel() for value in member.network.frozen.values())
    return ClientReport(
        name=client.name,
        model=member.network.name,
        bits=task.bits,
        quantized=task.quantized,
        samples=len(member.train),
        accuracy=accuracy,
        parameters=sum(v.numel() for v in model.params.values()) + frozen,
        bytes_packed=packed_bytes(model, task.quantized, task.bits, per_channel=client.per_channel)
        + FLOAT_BYTES * frozen,
        bytes_float32=float_bytes(model) + FLOAT_BYTES * frozen,
    )
