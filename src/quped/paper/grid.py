"""The learning rate of every row, tried on validation samples: as many trials for each row."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from quped.paper.docs import suffix
from quped.paper.records import find_record
from quped.paper.runs import PaperRun, paper_runs
from quped.paper.table import Table
from quped.records import write_json


def trials(
    table: Table,
    methods: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    seeds: int = 1,
    epochs: int | None = None,
) -> list[PaperRun]:
    """Return the trials of a table, or of some of its rows and columns; with `epochs`, shortened."""
    runs = paper_runs(table, methods, columns, seeds, epochs)
    return [replace(run, trial_lr=lr) for run in runs for lr in table.grid]


def write(table: Table, folder: Path, seeds: int = 1, epochs: int | None = None) -> tuple[dict[str, Any], Path]:
    """Write the grid of a table, and what came out, beside its records; return it, and its file.

    It has the rows with a record of every trial. A trial that failed has an accuracy of 0.
    """
    columns: dict[str, list[dict[str, Any]]] = {name: [] for name in table.columns}
    for run in paper_runs(table, seeds=1, epochs=epochs):
        mine = trials(table, [run.row.name], [run.column.name], seeds, epochs)
        records = [(trial.trial_lr, find_record(trial, folder)) for trial in mine]
        found = [(lr, record["accuracy"]["mean"]) for lr, record in records if record is not None]
        if len(found) == len(mine):
            means = {lr: round(100 * float(np.mean([a for rate, a in found if rate == lr])), 4) for lr in table.grid}
            best = max(table.grid, key=lambda lr: means[lr])
            line = {"method": run.row.name, "accuracies": means, "best": best, "used": run.lr}
            columns[run.column.name].append(line)
    values = {"table": table.name, "on": "validation samples", "seeds": seeds, "epochs": epochs, "columns": columns}
    file = folder / table.name / f"grid{suffix(epochs)}.json"
    write_json(file, values)
    return values, file
