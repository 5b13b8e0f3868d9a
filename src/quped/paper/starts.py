"""Rounds that runs have in common: QuPeD+, and FedAvg with fine-tuning, begin as FedAvg does, with the same w.

FedAvg's run keeps w at every evaluation. Such a run starts from there, and ends with the same bits as if it had run all
rounds, since the random numbers of a round follow from its number.
"""

import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

from quped import _tree
from quped.algorithms import FedAvg, FedAvgFT, QuPeDPlus
from quped.algorithms.base import Global
from quped.algorithms.qupedplus import GLOBAL
from quped.experiments.population import Population
from quped.records import Checkpoints, revision
from quped.simulation import Round, Setup, Start, TrainingOptions
from quped.simulation.checkpoint import identity

FOLDER = "starts"
"""Below the folder of all records."""


class Found(NamedTuple):
    """Where a run starts, and the revision of the code that ran the rounds before."""

    start: Start
    revision: str | None


class Starts:
    """The models that FedAvg had during its run on the clients of an experiment."""

    def __init__(self, population: Population, training: TrainingOptions, momentum: float, folder: Path) -> None:
        fedavg = population.federation(FedAvg(server_momentum=momentum))
        self._setup = fedavg.setup(replace(training, finetune_epochs=0))
        words = json.dumps(identity(self._setup)._asdict(), sort_keys=True)
        self._folder = folder / FOLDER / hashlib.sha256(words.encode()).hexdigest()[:16]
        self._revision = revision()

    def after_round(self, round_: Round) -> None:
        """Keep w of a round with an evaluation."""
        if round_.evaluation is not None:
            number = round_.clock.round
            info = {"round": number, "revision": self._revision}
            self._at(number + 1).save(number, dict(_tree.items(round_.shared)), info)

    def find(self, setup: Setup) -> Found | None:
        """Return the latest start of another method's run, if it has one."""
        rounds = fedavg_rounds(setup)
        for number in sorted(self._rounds(), reverse=True):
            if number <= rounds and (kept := self._at(number).latest()) is not None:
                tensors, info = kept
                template = self._setup.algorithm.init_shared(self._setup.clients[0].spec)
                w = _tree.unflatten(template, tensors, "")
                return Found(Start(number, shared_of(setup, w)), info.get("revision"))
        return None

    def _rounds(self) -> Iterator[int]:
        """Return after how many rounds there is a model."""
        return (int(path.name) for path in self._folder.glob("[0-9]*"))

    def _at(self, rounds: int) -> Checkpoints:
        return Checkpoints(self._folder / str(rounds))


def fedavg_rounds(setup: Setup) -> int:
    """Return after how many rounds a run has FedAvg's w, and no personal state that earlier rounds have a part in."""
    algorithm, schedule = setup.algorithm, setup.schedule
    if not isinstance(algorithm, FedAvgFT | QuPeDPlus) or getattr(algorithm, "frozen_head", False):
        return 0
    if schedule.clients_per_round < len(setup.clients) or not all(c.spec.has_global_network for c in setup.clients):
        return 0
    common = sum(1 for _ in takewhile(algorithm.is_common, map(schedule.clock, range(schedule.rounds))))
    # A client passes through all of its samples within two epochs: QuPeD+ notes which classes it has.
    return max(0, common - 2 * math.ceil(schedule.steps_per_epoch / schedule.local_steps))


def shared_of(setup: Setup, w: Global) -> Any:
    """Return the shared state of a method with this w and its velocity."""
    if not isinstance(setup.algorithm, QuPeDPlus):
        return w
    shared = setup.algorithm.init_shared(replace(setup.clients[0].spec, global_initial=w.w))
    return shared._replace(server=shared.server | {GLOBAL: w.server})
