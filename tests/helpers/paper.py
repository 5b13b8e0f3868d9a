"""A table that runs in a second, and records of runs that were never made."""

from pathlib import Path
from typing import Any

from quped.paper.records import Record
from quped.paper.runs import PaperRun, paper_runs
from quped.paper.table import Table, find_table, load_table
from quped.records import write_json

SMALL = """
title = "A small table"
source = "nowhere"

[rows]
quped-2bit = { paper.digits = [90.0, 0.5] }
fedavg = { paper.digits = [80.0, 0.25], training.lr = 0.05 }
quped-2bit-ste = {}

[columns.digits]
title = "Digits"
data = { name = "digits", partition = "iid" }
clients = [{ count = 3, model = "mlp" }]

[training]
epochs = 4
finetune_epochs = 2
batch_size = 60

[quantization.lam]
2 = { rate = 5e-6 }
"""


def small_table(folder: Path, name: str = "small", text: str = SMALL) -> Table:
    """Write a table to a file and load it."""
    path = folder / f"{name}.toml"
    path.write_text(text)
    return load_table(path)


def one_run(table: Table | str, method: str, seed: int = 0, epochs: int | None = None) -> PaperRun:
    """Return a run of a row in the last column of a table."""
    table = find_table(table) if isinstance(table, str) else table
    return paper_runs(table, [method], [list(table.columns)[-1]], seed + 1, epochs)[-1]


def over(*accuracies: float) -> dict[str, Any]:
    """Return the accuracies of clients, as a record has them."""
    return {"mean": sum(accuracies) / len(accuracies), "per_client": {f"c{i}": a for i, a in enumerate(accuracies)}}


def write_record(folder: Path, run: PaperRun, accuracy: float | dict[str, Any], **changes: Any) -> Record:
    """Write the record of a run without making it."""
    epochs, values = run.training["epochs"], accuracy if isinstance(accuracy, dict) else {"mean": accuracy}
    record: Record = {
        "format": 2,
        "table": run.table.name,
        "column": run.column.name,
        "method": run.row.recorded_as,
        "seed": run.seed,
        "full_epochs": run.full_epochs,
        "shortened": run.shortened,
        "accuracy": values,
        "curve": [{"epoch": i, "accuracy": values["mean"], "loss": 1.0} for i in range(max(1, epochs))],
        "epochs": epochs,
        "seconds": 1800.0,
        "data": "abc",
        "versions": {"torch": "2"},
        "date": "2026-01-02",
        "config": run.config,
        **changes,
    }
    path = folder / run.path
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, record)
    return record
