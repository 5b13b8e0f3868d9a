"""From an experiment file to run records."""

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from quped.algorithms import FULL_PRECISION, AnyAlgorithm
from quped.data import DATASETS, Dataset, Samples, Subset
from quped.data.partition import Indices, Share
from quped.data.scheme import split
from quped.errors import RunError
from quped.experiments.schema import Experiment
from quped.federation import Client, Federation
from quped.fit import Progress
from quped.rng import generator
from quped.runs import RunRecord, holds_run

VALIDATION_FRACTION = 0.2

Result = dict[str, Any]
"""What a `result.json` says."""

ProgressOf = Callable[[AnyAlgorithm], Callable[[Progress], None]]
"""For each algorithm, what to tell after each of its rounds."""


def run_experiment(
    experiment: Experiment,
    *,
    preset: str,
    seed: int,
    out: Path,
    overwrite: bool = False,
    resume: bool = False,
    workers: int | None = None,
    checkpoint_every: int = 25,
    progress: ProgressOf = lambda _: lambda _: None,
) -> list[Result]:
    """Run all algorithms of an experiment and record them: the first in `out`, the others in folders below it.

    Everything is checked before the first file is written. With `resume`, what is finished is read from the records,
    and what is not goes on from its last checkpoint. Returns what `result.json` of each says.
    """
    methods = experiment.methods
    population = Population(experiment, seed)
    federations = [population.federation(method.algorithm) for method in methods]
    folders = [out, *(out / name for name in distinct([m.algorithm.name for m in methods[1:]]))]
    for folder in folders:
        if holds_run(folder) and not (overwrite or resume):
            raise RunError(f"{folder} already holds a run: choose another directory, or pass --overwrite or --resume.")
    whole = experiment.model_dump(mode="json")
    results: list[Result] = []
    for method, federation, folder in zip(methods, federations, folders, strict=True):
        training = method.training.model_dump()
        config = whole | {"algorithm": method.options, "training": training}
        if folder != out:
            config["compare"] = []
        record = RunRecord(folder) if resume and holds_run(folder) else RunRecord.create(folder, overwrite=overwrite)
        result = record.finished()
        if result is None:
            record.config({"preset": preset, "seed": seed, "config": config})
            record.rewind(record.checkpoints.rounds())
            fit = federation.fit(
                **training,
                workers=workers,
                checkpoints=record.checkpoints,
                checkpoint_every=checkpoint_every,
                progress=recording(record, progress(method.algorithm)),
            )
            result = {"preset": preset, **fit.result(), "config": config}
            record.result(result)
        results.append(result)
    results[0]["comparison"] = [summary(result) for result in results]
    RunRecord(out).result(results[0])
    return results


def recording(record: RunRecord, tell: Callable[[Progress], None]) -> Callable[[Progress], None]:
    """Write every evaluation to the record, then tell of it."""

    def told(progress: Progress) -> None:
        if progress.evaluation is not None:
            record.point({**vars(progress.evaluation), "mean": progress.evaluation.mean})
        tell(progress)

    return told


def summary(result: Result) -> Result:
    """Return a method's line in the comparison."""
    return {
        "algorithm": result["algorithm"],
        "accuracy": result["accuracy"]["mean"],
        "bytes_packed": round(float(np.mean([client["bytes_packed"] for client in result["clients"]]))),
        "seconds": result["seconds"],
    }


def distinct(names: list[str]) -> list[str]:
    """Return folder names: a repeated name gets a number."""
    return [name if names.count(name) == 1 else f"{name}-{names[:i].count(name) + 1}" for i, name in enumerate(names)]


class Population:
    """The clients of an experiment, with the same data for every algorithm."""

    def __init__(self, experiment: Experiment, seed: int) -> None:
        """Load the data and share it out."""
        self._experiment = experiment
        self._seed = seed
        self._groups = [group for group in experiment.clients for _ in range(group.count)]
        data = DATASETS[experiment.data.name]()
        self._samples = share_out(data, experiment, len(self._groups), seed)
        # One function per network, so that clients with the same network form a group.
        self._maker = cache(lambda choice: partial(choice.build, data.input_shape, data.classes))

    def federation(self, algorithm: AnyAlgorithm) -> Federation:
        """Return the clients under an algorithm.

        One that needs the global network at every client, or full precision, gets clients that have it: this is how
        methods are compared that cannot all do the same.
        """
        meeting = self._experiment.global_model or self._experiment.clients[0].model
        clients = [
            Client(
                name=f"client-{i:0{len(str(len(self._groups) - 1))}d}",
                train=train,
                test=test,
                model=self._maker(meeting if algorithm.meets_in == "same" else group.model),
                bits=group.bits if algorithm.quantizes else FULL_PRECISION,
                per_channel=group.per_channel,
                start=group.start,
            )
            for i, (group, (train, test)) in enumerate(zip(self._groups, self._samples, strict=True))
        ]
        return Federation(clients, algorithm, self._maker(meeting), self._seed)


def share_out(data: Dataset, experiment: Experiment, clients: int, seed: int) -> list[tuple[Samples, Samples]]:
    """Return the training samples and the samples to evaluate on of every client."""
    shares = split(data, experiment.data.partition, clients, seed)
    if experiment.data.evaluate_on == "test":
        return [(subset(data.train, share.train), subset(data.test, share.test)) for share in shares]
    held = [hold_out(share.train, generator(seed, "validation", i)) for i, share in enumerate(shares)]
    return [(subset(data.train, share.train), subset(data.train, share.test)) for share in held]


def hold_out(indices: Indices, rng: np.random.Generator) -> Share:
    """Split off a fifth of a client's training samples for validation."""
    shuffled = rng.permutation(indices)
    count = max(1, round(len(indices) * VALIDATION_FRACTION))
    return Share(np.sort(shuffled[count:]), np.sort(shuffled[:count]))


def subset(samples: Samples, indices: Indices) -> Samples:
    """Return some of the samples."""
    return Subset(samples, torch.from_numpy(indices))
