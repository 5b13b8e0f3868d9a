"""Runs that begin where FedAvg has come: the same numbers as without it."""

from pathlib import Path
from typing import Any

import pytest
from helpers.paper import one_run, small_table

from quped.errors import RunError
from quped.paper.execute import execute
from quped.paper.starts import FOLDER

TABLE = """
title = "A small table"
source = "nowhere"

[rows]
fedavg = {}
fedavg-momentum = {}
fedavgft-2bit = {}
fedavgft-momentum = {}
qupedplus = {}
qupedplus-2bit = {}
qupedplus-2bit-channels = {}
quped-2bit-warmup = { algorithm.warmup_epochs = 5 }

[columns.digits]
title = "Digits"
data = { name = "digits", partition = "classes=4" }
clients = [{ count = 3, model = "cnn1" }]

[training]
epochs = 8
finetune_epochs = 1
batch_size = 60

[quantization.lam]
2 = { rate = 5e-6 }

[by_algorithm]
fedavgft = { algorithm.warmup_epochs = 6 }
"""


def outcome(record: dict[str, Any] | None) -> tuple[Any, ...]:
    """Return what must not depend on where a run began."""
    assert record is not None
    return record["accuracy"], record["global_accuracy"], record["rounds"], record["curve"][-1]


@pytest.mark.parametrize(
    "row", ["fedavgft-2bit", "fedavgft-momentum", "qupedplus", "qupedplus-2bit", "qupedplus-2bit-channels"]
)
def test_a_run_from_fedavgs_model_ends_as_a_whole_run(row: str, tmp_path: Path) -> None:
    table = small_table(tmp_path, text=TABLE)
    whole = execute(one_run(table, row), tmp_path / "whole", workers=0)
    execute(one_run(table, "fedavg" if row == "fedavgft-2bit" else "fedavg-momentum"), tmp_path / "begun", workers=0)
    begun = execute(one_run(table, row), tmp_path / "begun", workers=0)
    assert whole is not None
    assert begun is not None
    assert "start" not in whole
    assert begun["start"]["rounds"] > 0
    assert len(begun["curve"]) < len(whole["curve"])
    assert outcome(begun) == outcome(whole)


def test_other_clients_or_methods_do_not_start_there(tmp_path: Path) -> None:
    table = small_table(tmp_path, text=TABLE)
    execute(one_run(table, "fedavg"), tmp_path, workers=0)
    assert "start" not in (execute(one_run(table, "qupedplus"), tmp_path, workers=0) or {"start": None})
    execute(one_run(table, "fedavg-momentum"), tmp_path, workers=0)
    for other in (
        one_run(table, "quped-2bit-warmup"),
        one_run(table, "qupedplus", seed=1),
        one_run(small_table(tmp_path, "other", TABLE.replace("batch_size = 60", "batch_size = 50")), "qupedplus"),
        one_run(small_table(tmp_path, "fast", TABLE.replace("epochs = 8", "epochs = 8\nlr = 0.05")), "qupedplus"),
    ):
        record = execute(other, tmp_path, workers=0)
        assert record is not None
        assert "start" not in record


def test_a_damaged_start_is_refused(tmp_path: Path) -> None:
    table = small_table(tmp_path, text=TABLE)
    execute(one_run(table, "fedavg-momentum"), tmp_path, workers=0)
    for file in (tmp_path / FOLDER).glob("*/*/round-*"):
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.write_bytes(content)
    with pytest.warns(UserWarning, match="damaged"), pytest.raises(RunError, match="remove its"):
        execute(one_run(table, "qupedplus"), tmp_path, workers=0)
