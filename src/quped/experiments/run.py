"""From an experiment file to run records."""

import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from quped.admission import Client
from quped.algorithms import FULL_PRECISION, AnyAlgorithm
from quped.data import DATASETS, Dataset, Samples, Subset
from quped.data.partition import Indices, Share
from quped.data.scheme import split
from quped.errors import RunError
from quped.experiments.schema import DEFAULT_ALGORITHM, Experiment
from quped.federation import Federation
from quped.fit import Progress
from quped.rng import generator
from quped.runs import CONFIG, RunRecord, exclusive, holds_run, plain, read_json

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
    for method in methods:
        tell_replaced(experiment, method.algorithm)
    population = Population(experiment, seed)
    federations = [population.federation(method.algorithm) for method in methods]
    for method, federation in zip(methods, federations, strict=True):
        federation.prepare(**method.training.model_dump())
    whole = plain(experiment.model_dump())
    asked = [{"preset": preset, "seed": seed, "config": whole}]
    asked += [asked[0] | {"config": whole | {**plain(method.config()), "compare": []}} for method in methods[1:]]
    folders = [out, *(out / name for name in distinct([m.algorithm.name for m in methods[1:]]))]
    with exclusive(out):
        records = claim(folders, asked, overwrite=overwrite, resume=resume)
        results: list[Result] = []
        for method, federation, record, told in zip(methods, federations, records, asked, strict=True):
            result = record.finished("algorithm", "accuracy", "clients", "seconds")
            if result is None:
                record.rewind(record.checkpoints.rounds())
                fit = federation.fit(
                    **method.training.model_dump(),
                    workers=workers,
                    checkpoints=record.checkpoints,
                    checkpoint_every=checkpoint_every,
                    progress=recording(record, progress(method.algorithm)),
                )
                for client in fit.models:
                    record.model(client, fit.module(client).state_dict())
                result = {"preset": preset, **fit.result(), "config": told["config"]}
                record.result(result)
            results.append(result)
        results[0]["comparison"] = [
            {**summary(result), "record": str(folder.relative_to(out))}
            for result, folder in zip(results, folders, strict=True)
        ]
        records[0].result(results[0])
        return results


def claim(folders: list[Path], asked: list[Result], *, overwrite: bool, resume: bool) -> list[RunRecord]:
    """Make the record of every algorithm, or go on with it, before the first one runs.

    What is overwritten goes at once, with the methods it was compared with: nothing of an older run can be taken for
    this one's.
    """
    if resume:
        records = []
        for folder, told in zip(folders, asked, strict=True):
            if read_json(folder / CONFIG) != told:
                raise RunError(f"{folder} holds another run than {folders[0]} tells of: it cannot be continued.")
            records.append(RunRecord(folder))
        return records
    for folder in folders:
        if holds_run(folder) and not overwrite:
            raise RunError(f"{folder} already holds a run: choose another directory, or pass --overwrite or --resume.")
    for peer in peers(folders[0]):
        RunRecord.create(peer, overwrite=True)
    records = [RunRecord.create(folder, overwrite=overwrite) for folder in folders]
    # The first one last: `--resume` begins with it, and finds the others complete.
    for record, told in zip(records[::-1], asked[::-1], strict=True):
        record.config(told)
    return records


def peers(folder: Path) -> list[Path]:
    """Return the folders below a record that it tells of, and that have its preset and seed: others are not its own."""
    found = []
    with suppress(RunError, KeyError, TypeError, AttributeError):  # there is no record yet, or it is damaged
        mine = read_json(folder / CONFIG)
        compared = [peer["algorithm"].get("name", DEFAULT_ALGORITHM) for peer in mine["config"]["compare"]]
        for path in (folder / name for name in distinct(compared)):
            with suppress(RunError):  # it holds no run
                told = read_json(path / CONFIG)
                if all(told.get(key) == mine[key] for key in ("preset", "seed")):
                    found.append(path)
    return found


def tell_replaced(experiment: Experiment, algorithm: AnyAlgorithm) -> None:
    """Warn of what clients do not get as the experiment has it, since the method cannot do so."""
    told = []
    if algorithm.meets_in == "same" and any(group.model != experiment.meeting for group in experiment.clients):
        told.append(f"has the global network {experiment.meeting.name}")
    if not algorithm.quantizes and any(group.bits < FULL_PRECISION for group in experiment.clients):
        told.append("keeps full precision")
    if told:
        warnings.warn(f"Under {type(algorithm).__name__} every client {' and '.join(told)}.", stacklevel=3)


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
        meeting = self._experiment.meeting
        clients = [
            Client(
                name=f"client-{i:0{len(str(len(self._groups) - 1))}d}",
                train=train,
                test=test,
                model=self._maker(meeting if algorithm.meets_in == "same" else group.model),
                bits=group.bits if algorithm.quantizes else FULL_PRECISION,
                quantize=group.quantize if algorithm.meets_in != "same" or group.model == meeting else None,
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
