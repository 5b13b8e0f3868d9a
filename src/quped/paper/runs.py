"""Runs the cells of the paper's tables and keeps their results: one small JSON file each."""

import hashlib
import json
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from filelock import FileLock, Timeout

from quped.algorithms import FULL_PRECISION
from quped.data.download import store
from quped.errors import InvalidValueError, QupedError, RunError
from quped.experiments.run import Population
from quped.experiments.train import Epoch, Recipe, train
from quped.paper.table import ROWS, Cell, tables
from quped.records import RunRecord, read_json, revision, versions, write_json
from quped.result import Evaluation, Progress
from quped.simulation.schedule import DEFAULT_BATCH_SIZE

Result = dict[str, Any]
"""What the file of a run says."""

KEYS = {"config", "accuracy", "curve", "epochs", "full_epochs", "shortened", "seconds", "date", "versions"}
"""What every such file has, and a table needs."""

ANYTHING: Mapping[str, str] = {}
"""No demand on what a run began with."""

GUESSED_RATE = 600.0
"""Client-iterations of FedAvg per second, as long as no run has told."""


def stored(cell: Cell, folder: Path, begun_with: Mapping[str, str] = ANYTHING) -> Result | None:
    """Return the result of a cell if it was run with this very configuration, under this table or another one.

    With `begun_with`, only if that is its `origin`.
    """
    config = cell.config
    for name in (cell.table.name, *(name for name in tables() if name != cell.table.name)):
        path = folder / name / cell.path.relative_to(cell.table.name)
        if path.exists():
            result = read_json(path, *KEYS)
            if not sound(result, cell):
                raise RunError(f"{path} says what its run cannot have given: remove it and run anew.")
            if as_written_today(result["config"]) == config and begun_with.items() <= result.items():
                return result
    return None


def sound(result: Result, cell: Cell) -> bool:
    """Say whether a record is of this cell, and its accuracy one that it can have."""
    asked = {"column": cell.column.name, "method": cell.method, "seed": cell.seed}
    accuracy = result["accuracy"]
    mean = accuracy.get("mean") if isinstance(accuracy, dict) else None
    if not asked.items() <= result.items() or not isinstance(mean, float | int) or not 0 <= mean <= 1:
        return False
    clients = accuracy.get("per_client", {"": mean})
    return math.isclose(mean, sum(clients.values()) / len(clients), rel_tol=1e-9)


def as_written_today(config: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration with the hyperparameters that came later, at the values that it had without them."""
    if config.get("algorithm", {}).get("name") == "quped":
        return {**config, "algorithm": {"global_lr_ratio": 1.0, "warmup_epochs": 0.0, **config["algorithm"]}}
    return config


def run_cell(
    cell: Cell,
    folder: Path,
    *,
    workers: int | None = None,
    warm_start: Path | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Result | None:
    """Run a cell, or go on with it where it was interrupted, and store its result.

    `warm_start` is a folder with the weights that single networks begin with, such as resnet20.safetensors.

    Return None if another process is at it.
    """
    path = folder / cell.path
    config = cell.config
    begun_with = origin(cell, warm_start)
    scratch = folder / unfinished(cell, "".join(checksum[:8] for checksum in begun_with.values()))
    lock = scratch.with_suffix(".lock")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(lock, blocking=False):
            if (done := stored(cell, folder, begun_with)) is not None:
                return done  # by another process, since this one last looked
            scratch.mkdir(exist_ok=True)
            code = revision()  # now: it may be changed before the run ends
            tell = progress or (lambda _: None)
            if cell.recipe is None:
                came = run_federation(cell, scratch, workers, tell)
            else:
                came = run_network(started(cell.recipe, warm_start), scratch, tell)
            result = {
                **{"table": cell.table.name, "column": cell.column.name, "method": cell.method, "seed": cell.seed},
                **{"full_epochs": cell.full_epochs, "shortened": cell.shortened, **came, **begun_with},
                **{"versions": versions(), "revision": code, "date": f"{datetime.now(UTC):%Y-%m-%d}"},
                "config": config,
            }
            write_json(path, result)
            shutil.rmtree(scratch)
            lock.unlink()  # whoever still gets it finds the result
            return result
    except Timeout:
        return None
    except QupedError:
        with suppress(OSError):  # which says that there is a checkpoint in it
            scratch.rmdir()
            lock.unlink()
        raise


def origin(cell: Cell, warm_start: Path | None) -> dict[str, str]:
    """Return the SHA-256 of what a run begins with here: the weights of a network, a federation's data if fetched."""
    if cell.recipe is not None:
        weights = Path(str(started(cell.recipe, warm_start).warm_start))
        return {"weights": hashlib.sha256(weights.read_bytes()).hexdigest()}
    file = store.stored_file(cell.experiment.data.name)
    return {"data": store.read(file).checksum} if file.exists() else {}


def unfinished(cell: Cell, begun_with: str) -> str:
    """Return the folder of a run that is not done yet, by the checksum of what it begins with; "*" stands for any.

    It is of this configuration alone: after a change of the table, an old checkpoint is not gone on with.
    """
    key = hashlib.sha256(json.dumps(cell.config).encode()).hexdigest()[:8]
    return f"{cell.path.with_suffix('')}.{key}{begun_with}.partial"


def run_federation(cell: Cell, scratch: Path, workers: int | None, tell: Callable[[Progress], None]) -> Result:
    """Run a federation; return what is kept of it."""
    (method,) = cell.experiment.methods
    federation = Population(cell.experiment, cell.seed).federation(method.algorithm)
    checkpoints = RunRecord(scratch).checkpoints
    options = method.training.model_dump()
    fit = federation.fit(**options, workers=workers, checkpoints=checkpoints, checkpoint_every=100, progress=tell)
    return {
        "accuracy": fit.result()["accuracy"],
        "global_accuracy": fit.global_accuracy,
        "curve": [{"epoch": p.epoch, "accuracy": p.mean, "loss": p.loss} for p in fit.curve],
        **{"epochs": fit.epochs, "rounds": fit.rounds, "seconds": round(fit.seconds, 3)},
        "samples": sum(client.samples for client in fit.clients),
    }


def started(recipe: Recipe, folder: Path | None) -> Recipe:
    """Return the recipe with the weights that it begins with."""
    found = [] if folder is None else sorted(folder.glob(f"{recipe.model}*.safetensors"))
    if len(found) != 1:
        raise InvalidValueError(
            f"The network {recipe.model} starts from weights in full precision: pass --warm-start FOLDER with one file "
            f"{recipe.model}*.safetensors in it. `quped train {recipe.model} --method float --out DIR` makes one: "
            "DIR/models/model.safetensors, to be copied under that name."
        )
    return replace(recipe, warm_start=str(found[0]))


def run_network(recipe: Recipe, scratch: Path, tell: Callable[[Progress], None]) -> Result:
    """Train one network; return what is kept of it."""

    def told(news: Epoch | float) -> None:
        if isinstance(news, Epoch):
            point = Evaluation(news.epoch, news.epoch, news.phase, news.loss, {"test": news.accuracy}, news.seconds)
            tell(Progress(news.epoch, recipe.epochs, news.epoch, news.phase, news.loss, point))

    record = RunRecord(scratch)
    result = record.finished() or train(recipe, record, told)
    return {
        "accuracy": {"mean": result["accuracy"]},
        "curve": [{key: point[key] for key in ("epoch", "accuracy", "loss")} for point in result["curve"]],
        **{key: result[key] for key in ("seconds", "images_per_second", "threads")},
        "epochs": recipe.epochs,
    }


class Status(NamedTuple):
    """How much of a list of runs is there."""

    done: int
    begun: int
    """Of the missing ones, those that are under way or were interrupted."""
    missing: list[Cell]
    rate: float
    """Of the runs that are done, in steps of FedAvg per second."""

    @property
    def seconds_left(self) -> float:
        """How long the rest will take: a guess."""
        return sum(work(cell) for cell in self.missing) / self.rate


def status(
    cells: Sequence[Cell], folder: Path, warm_start: Path | None = None, usual_rate: float = GUESSED_RATE
) -> Status:
    """Return what is there of these runs; `usual_rate` is that of a run if none is done.

    Runs on other data than those fetched here are missing, and with `warm_start` those that began with other weights
    than the ones in that folder.
    """

    def result_of(cell: Cell) -> Result | None:
        result = stored(cell, folder)
        if result is None or (cell.recipe is not None and warm_start is None):
            return result
        return stored(cell, folder, origin(cell, warm_start))

    results = [(cell, result_of(cell)) for cell in cells]
    done = [(work(cell), float(result["seconds"])) for cell, result in results if result is not None]
    steps, seconds = sum(steps for steps, _ in done), sum(seconds for steps, seconds in done if steps)
    rate = steps / seconds if steps else usual_rate
    missing = [cell for cell, result in results if result is None]
    begun = sum(any(folder.glob(unfinished(cell, "*"))) for cell in missing)
    return Status(len(done), begun, missing, rate)


def work(cell: Cell) -> float:
    """Return the size of a run, in steps of FedAvg by one client."""
    if cell.recipe is not None:
        return cell.recipe.epochs * SAMPLES["cifar10"] * ROWS[cell.method].cost * NETWORK_COST[cell.recipe.model]
    experiment, clients = cell.experiment, sum(group.count for group in cell.column.clients)
    training = experiment.training
    batch = training.batch_size or DEFAULT_BATCH_SIZE
    steps = training.steps_per_epoch or SAMPLES[experiment.data.name] / clients / batch
    cost = 3.0 if any(g.bits not in (None, FULL_PRECISION) for g in cell.column.clients) else ROWS[cell.method].cost
    return training.epochs * steps * (training.clients_per_round or clients) * cost


NETWORK_COST = {"resnet20": 1.5, "resnet32": 2.5}
"""Of an image that it learns from, in steps of FedAvg by one client."""

SAMPLES = {"mnist": 60_000, "cifar10": 50_000, "ag_news": 10_000}
"""Training samples, for the guess of how long a run takes: loading the data would take longer than the answer may."""
