"""Execute the runs behind the paper's tables, and write their records."""

import hashlib
import json
import shutil
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from filelock import FileLock, Timeout

from quped._evaluate import Evaluation, over_clients
from quped._files import remove_drafts
from quped.algorithms import FedAvg
from quped.errors import BadUpdateError, QupedError
from quped.experiments.newcomers import welcome
from quped.experiments.population import Population
from quped.experiments.train import Epoch, Recipe, train
from quped.paper.records import NETWORK, Record, find_record, input_checksums, with_weights
from quped.paper.runs import PaperRun
from quped.paper.starts import Starts, fedavg_rounds
from quped.records import RunRecord, revision, versions, write_json
from quped.result import FORMAT
from quped.simulation import Observer, Round
from quped.simulation.engines import EngineChoice
from quped.simulation.fit import fit
from quped.typing import Clock, Phase

SIZES = "bytes_file", "bytes_packed"
"""The sizes of a model that records have; of those of clients, the mean."""


def execute(
    run: PaperRun,
    folder: Path,
    *,
    workers: int | None = None,
    warm_start: Path | None = None,
    observers: Sequence[Observer] = (),
) -> Record | None:
    """Execute a run, or continue it where it was interrupted, and write its record.

    `warm_start` is a folder with the weights that single networks start from, such as resnet20.safetensors.

    Return None if another process executes it.
    """
    path = folder / run.path
    inputs = input_checksums(run, warm_start)
    scratch = folder / scratch_folder(run, "".join(checksum[:8] for checksum in inputs.values()))
    lock = scratch.with_suffix(".lock")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(lock, blocking=False):
            if (done := find_record(run, folder, inputs)) is not None:
                lock.unlink()
                return done  # another process wrote it in the meantime
            scratch.mkdir(exist_ok=True)
            code = revision()  # now: the code may change before the run ends
            try:
                if run.recipe is None:
                    outcome = run_federation(run, folder, scratch, workers, observers)
                else:
                    outcome = run_network(with_weights(run.recipe, warm_start), scratch, observers)
            except BadUpdateError as error:
                if run.trial_lr is None:
                    raise
                outcome = failure(run, error)
            record = {
                "format": FORMAT,
                "table": run.table.name,
                "column": run.column.name,
                "method": run.row.recorded_as,
                "seed": run.seed,
                "full_epochs": run.full_epochs,
                "shortened": run.shortened,
                **outcome,
                **inputs,
                "versions": versions(),
                "revision": code,
                "date": f"{datetime.now(UTC):%Y-%m-%d}",
                "config": run.config,
            }
            write_json(path, record)
            shutil.rmtree(scratch)
            lock.unlink()  # a process that still gets it finds the record
            return record
    except Timeout:
        return None
    except QupedError:
        with suppress(OSError):  # there is a checkpoint in it
            scratch.rmdir()
            lock.unlink()
        raise


def remove_leftovers(runs: Iterable[PaperRun], folder: Path) -> None:
    """Remove what processes left beside the records of these runs when they were killed."""
    remove_drafts(folder)
    for run in runs:
        for lock in folder.glob(str(Path(scratch_folder(run, "*")).with_suffix(".lock"))):
            with suppress(Timeout), FileLock(lock, blocking=False):
                shutil.rmtree(lock.with_suffix(".partial"), ignore_errors=True)
                lock.unlink()


def run_federation(
    run: PaperRun, folder: Path, scratch: Path, workers: int | None, observers: Sequence[Observer]
) -> Record:
    """Run a federation, from where FedAvg has come if it begins so; return what its record keeps."""
    (method,) = run.experiment.methods
    population, where = Population(run.experiment, run.seed), EngineChoice(workers=workers)
    setup = population.federation(method.algorithm).setup(method.training)
    is_fedavg, momentum = isinstance(method.algorithm, FedAvg), getattr(method.algorithm, "server_momentum", 0.0)
    # Others need not know which run of FedAvg has their clients.
    starts = Starts(population, method.training, momentum, folder) if is_fedavg or fedavg_rounds(setup) else None
    found = None if starts is None else starts.find(setup)
    result = fit(
        setup,
        where=where,
        checkpoints=RunRecord(scratch).checkpoints,
        checkpoint_every=100,
        callbacks=[*observers, starts] if starts is not None and is_fedavg else observers,
        start=None if found is None else found.start,
    )
    begun = {} if found is None else {"start": {"rounds": found.start.round, "revision": found.revision}}
    return {
        **begun,
        "accuracy": over_clients(result.accuracy),
        "accuracy_own_classes": over_clients(result.accuracy_own_classes),
        "global_accuracy": result.global_accuracy,
        "global_accuracy_own_classes": result.global_accuracy_own_classes,
        "curve": [{"epoch": point.epoch, "accuracy": point.mean, "loss": point.loss} for point in result.curve],
        "epochs": result.epochs,
        "rounds": result.rounds,
        "seconds": round(result.seconds, 3),
        "samples": sum(len(client.train) for client in setup.clients),
        "test_samples": {client.name: client.test_samples for client in result.clients},
        **{size: float(np.mean([getattr(client, size) for client in result.clients])) for size in SIZES},
        **welcome(run.experiment, population, method, result, where),
    }


def run_network(recipe: Recipe, scratch: Path, observers: Sequence[Observer]) -> Record:
    """Train one network; return what its record keeps."""

    def report(news: Epoch | float) -> None:
        if isinstance(news, Epoch):
            for observer in observers:
                observer.after_round(as_round(news, recipe))

    record = RunRecord(scratch)
    result = record.finished() or train(recipe, record, report)
    return {
        "accuracy": {"mean": result["accuracy"]},
        "test_samples": {NETWORK: result["test_samples"]},
        **{size: result[size] for size in SIZES},
        "curve": [{key: point[key] for key in ("epoch", "accuracy", "loss")} for point in result["curve"]],
        "seconds": result["seconds"],
        "images_per_second": result["images_per_second"],
        "threads": result["threads"],
        "epochs": recipe.epochs,
    }


def failure(run: PaperRun, error: BadUpdateError) -> Record:
    """Return what the record of a trial keeps whose learning rate was too high: this is a result, too."""
    return {
        "accuracy": {"mean": 0.0},
        "curve": [],
        "epochs": run.training["epochs"],
        "seconds": 0.0,
        "failed": str(error),
    }


def as_round(epoch: Epoch, recipe: Recipe) -> Round:
    """Return an epoch of a single network as the round of a federation, which observers take."""
    n, phase = epoch.epoch, Phase(epoch.phase)
    point = Evaluation(n, n, phase, epoch.loss, {"test": epoch.accuracy}, epoch.seconds)
    clock = Clock(n, n, phase, n, recipe.lr, recipe.lr, n / recipe.epochs)
    return Round(clock, recipe.epochs, epoch.loss, point, None, epoch.seconds)


def scratch_folder(run: PaperRun, inputs: str) -> str:
    """Return the folder of an unfinished run, by the checksums of its inputs; "*" stands for any.

    It belongs to this configuration: after a change of the table, the run does not continue from an old checkpoint.
    """
    key = hashlib.sha256(json.dumps(run.config).encode()).hexdigest()[:8]
    return f"{run.path.with_suffix('')}.{key}{inputs}.partial"
