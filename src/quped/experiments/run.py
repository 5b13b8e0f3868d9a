"""From an experiment file to run records."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from quped._evaluate import Evaluation
from quped.errors import QupedError, RunError
from quped.experiments.newcomers import welcome
from quped.experiments.population import Population
from quped.experiments.schema import Experiment
from quped.records import (
    CONFIG,
    RunRecord,
    compared_folders,
    distinct,
    exclusive,
    has_failed,
    holds_run,
    plain,
    read_json,
    refuse_link,
)
from quped.report.hurt import REFERENCES, share_below
from quped.result import FORMAT, FitResult
from quped.simulation import Observer, Round, Setup
from quped.simulation.checkpoint import recorded_curve
from quped.simulation.engines import EngineChoice
from quped.simulation.fit import fit

Result = dict[str, Any]
"""The content of a `result.json`."""

Follow = Callable[[str], Sequence[Observer]]
"""Returns the observers of the run of a method with a title, such as its progress bar."""


def run_experiment(
    experiment: Experiment,
    *,
    preset: str,
    seed: int,
    out: Path,
    overwrite: bool = False,
    resume: bool = False,
    where: EngineChoice,
    checkpoint_every: int = 25,
    follow: Follow | None = None,
) -> list[Result]:
    """Run all algorithms of an experiment and record them: the first in `out`, the others in folders below it.

    Everything is checked before the first file is written. With `resume`, finished methods are read from the records,
    and the others continue from their last checkpoint. Returns the content of each `result.json`.
    """
    methods = experiment.methods
    population = Population(experiment, seed)
    for method in methods:
        population.warn_of_replacements(method.algorithm)
    setups = [population.federation(method.algorithm).setup(method.training) for method in methods]
    whole = plain(experiment.model_dump())
    configs = [{"format": FORMAT, "preset": preset, "seed": seed, "config": whole}]
    if population.facts is not None:
        configs[0]["own_data"] = plain(population.facts)
    configs += [configs[0] | {"config": whole | {**plain(method.config()), "compare": []}} for method in methods[1:]]
    folders = [out, *(out / name for name in distinct([m.algorithm.name for m in methods[1:]]))]
    with exclusive(out):
        if resume:
            population.check_unchanged(RunRecord(out).read_config(), out)
        records = claim(folders, configs, overwrite=overwrite, resume=resume)
        results: list[Result] = []
        titles = distinct([type(setup.algorithm).__name__ for setup in setups])
        for method, setup, record, config, title in zip(methods, setups, records, configs, titles, strict=True):
            result = record.finished("algorithm", "accuracy", "clients", "seconds")
            if result is None:
                observers = [] if follow is None else follow(title)
                try:
                    after = partial(welcome, experiment, population, method, where=where)
                    result = run_method(setup, record, config, where, checkpoint_every, observers, after)
                except QupedError as error:
                    record.fail(str(error))
                    records[0].fail(str(error))
                    raise
            record.checkpoints.clear()  # also those that a kill left beside the result
            results.append(result)
        results[0]["comparison"] = [
            {**summary(result, results), "record": str(folder.relative_to(out))}
            for result, folder in zip(results, folders, strict=True)
        ]
        records[0].result(results[0])
        return results


def run_method(
    setup: Setup,
    record: RunRecord,
    config: Result,
    where: EngineChoice,
    checkpoint_every: int,
    observers: Sequence[Observer],
    after: Callable[[FitResult], Result],
) -> Result:
    """Run one algorithm, from its last checkpoint on if there is one, and record it, with what comes after it."""
    record.rewind([point_of(evaluation) for evaluation in recorded_curve(record.checkpoints)])
    trained = fit(
        setup,
        where=where,
        checkpoints=record.checkpoints,
        checkpoint_every=checkpoint_every,
        callbacks=[Recorder(record), *observers],
    )
    for client, content in trained.files.items():
        record.model(client, content)
    result = {"preset": config["preset"], **trained.to_dict(), **after(trained), "config": config["config"]}
    record.result(result)
    return result


class Recorder:
    """Writes every evaluation to a record."""

    def __init__(self, record: RunRecord) -> None:
        self._record = record

    def after_round(self, round_: Round) -> None:
        """Write the evaluation of a round, if it has one."""
        if round_.evaluation is not None:
            self._record.point(point_of(round_.evaluation))


def point_of(evaluation: Evaluation) -> dict[str, Any]:
    """Return an evaluation as a point of the curves."""
    return {**vars(evaluation), "mean": evaluation.mean}


def claim(folders: list[Path], configs: list[Result], *, overwrite: bool, resume: bool) -> list[RunRecord]:
    """Make the record of every algorithm, or continue it, before the first one runs.

    A run that is overwritten is removed at once, with the methods that it was compared with: nothing of an older run
    can be taken for this one's. A run that failed is overwritten without asking.
    """
    for folder in (*folders[1:], *peers(folders[0])):
        refuse_link(folder)
    if resume:
        records = []
        for folder, config in zip(folders, configs, strict=True):
            record = RunRecord(folder)
            if record.read_config() != config:
                raise RunError(f"{folder} holds another run than {folders[0]} describes: it cannot be continued.")
            records.append(record)
        return records
    failed = has_failed(folders[0])
    # A process that was killed before it wrote the first configuration leaves those of the others.
    begun = [] if holds_run(folders[0]) else [folder for folder in folders[1:] if is_only_begun(folder)]
    for folder in folders:
        if holds_run(folder) and folder not in begun and not overwrite and not failed:
            raise RunError(f"{folder} already holds a run: choose another directory, or pass --overwrite or --resume.")
    for peer in peers(folders[0]):
        RunRecord.create(peer, overwrite=True)
    records = [RunRecord.create(folder, overwrite=overwrite or failed or folder in begun) for folder in folders]
    # The first one last: `--resume` begins with it, and finds the others complete.
    for record, config in zip(records[::-1], configs[::-1], strict=True):
        record.config(config)
    return records


def is_only_begun(folder: Path) -> bool:
    """Say whether a folder holds the configuration of one of our runs, and nothing that the run computed."""
    with suppress(RunError):
        asked = read_json(folder / CONFIG, "preset", "seed", "config", sealed=True)
        return asked["config"] != {} and [path.name for path in folder.iterdir()] == [CONFIG]
    return False


def peers(folder: Path) -> list[Path]:
    """Return the folders below a record that it tells of, and that have its preset and seed: others are not its own."""
    folders = []
    with suppress(RunError, KeyError, TypeError, AttributeError):  # there is no record yet, or it is damaged
        mine = read_json(folder / CONFIG)
        for path in (folder / name for name in compared_folders(mine)):
            with suppress(RunError):  # it holds no run
                theirs = read_json(path / CONFIG)
                if all(theirs.get(key) == mine[key] for key in ("preset", "seed")):
                    folders.append(path)
    return folders


def summary(result: Result, results: Sequence[Result]) -> Result:
    """Return a method's line in the comparison."""
    return {
        "algorithm": result["algorithm"],
        "accuracy": result["accuracy"]["mean"],
        "worst_tenth": result["accuracy"].get("worst_tenth"),
        **{f"below_{reference}": share_below(result, results, reference) for reference in REFERENCES},
        "bytes_file": round(float(np.mean([client["bytes_file"] for client in result["clients"]]))),
        "seconds": result["seconds"],
    }
