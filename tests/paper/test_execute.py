"""Runs on a small table: their records, and when a record counts."""

import hashlib
import json
from pathlib import Path

import pytest
import safetensors.torch
import torch
from filelock import FileLock
from helpers.paper import SMALL, one_run, small_table, write_record

from quped.data.download import store
from quped.errors import InvalidValueError, RunError
from quped.models import build
from quped.paper.execute import execute, remove_leftovers, scratch_folder
from quped.paper.records import find_record
from quped.paper.runs import PaperRun, paper_runs
from quped.paper.status import status
from quped.paper.table import find_table
from quped.records import write_json
from quped.simulation import Round


@pytest.fixture
def run(tmp_path: Path) -> PaperRun:
    return one_run(small_table(tmp_path), "fedavg")


def test_a_record_is_found_and_not_made_again(run: PaperRun, tmp_path: Path) -> None:
    record = execute(run, tmp_path, workers=0)
    assert record is not None
    assert record["config"] == run.config
    assert (record["epochs"], record["full_epochs"], record["shortened"]) == (4, 4, False)
    assert len(record["curve"]) == 4
    assert record["test_samples"] == {"client-0": 119, "client-1": 118, "client-2": 118}
    assert find_record(run, tmp_path) == record
    assert execute(run, tmp_path, workers=0) == record  # its seconds too
    assert [path.name for path in (tmp_path / run.path).parent.iterdir()] == ["seed-0.json"]
    twin = one_run(small_table(tmp_path, "twin"), "fedavg")
    assert find_record(twin, tmp_path) == record  # another table has the same run


def test_a_record_with_other_options_does_not_count(run: PaperRun, tmp_path: Path) -> None:
    write_record(tmp_path, run, 0.9)
    assert find_record(run, tmp_path) is not None
    changed = small_table(tmp_path, text=SMALL.replace("training.lr = 0.05", "training.lr = 0.3"))
    assert find_record(one_run(changed, "fedavg"), tmp_path) is None


def test_an_option_that_came_after_a_record_has_its_default(run: PaperRun, tmp_path: Path) -> None:
    config = {**run.config, "data": {"name": "digits", "partition": "iid"}}
    write_record(tmp_path, run, 0.9, config=config)
    assert find_record(run, tmp_path) is not None
    write_record(tmp_path, run, 0.9, config={**config, "gone": 1})
    with pytest.raises(InvalidValueError, match=r"seed-0\.json has.*\n.*gone"):
        find_record(run, tmp_path)


@pytest.mark.parametrize(
    "changes",
    [
        {"format": 1},
        {"accuracy": {"mean": 7.5}},
        {"accuracy": {"mean": 0.5, "per_client": {"a": 0.1}}},
        {"accuracy": 0.9},
        {"seed": 7},
        {"method": "local"},
        {"config": None},
    ],
)
def test_a_record_that_cannot_be_is_refused(changes: dict[str, object], run: PaperRun, tmp_path: Path) -> None:
    record = {**write_record(tmp_path, run, 0.9), **changes}
    write_json(tmp_path / run.path, {key: value for key, value in record.items() if value is not None})
    with pytest.raises(RunError, match=r"seed-0\.json.*remove it and repeat"):
        find_record(run, tmp_path)


def test_a_record_that_was_edited_is_refused(run: PaperRun, tmp_path: Path) -> None:
    write_record(tmp_path, run, 0.9)
    path = tmp_path / run.path
    path.write_text(path.read_text().replace('"seconds": 1800.0', '"seconds": 1801.0'))
    with pytest.raises(RunError, match=r"seed-0\.json.*remove it and repeat"):
        find_record(run, tmp_path)


def test_a_run_that_fails_leaves_nothing(tmp_path: Path) -> None:
    text = SMALL.replace("training.lr = 0.05", "training.lr = 1e30")
    run = one_run(small_table(tmp_path, text=text), "fedavg")
    with pytest.raises(RunError, match="training loss"):
        execute(run, tmp_path, workers=0)
    assert status([run], tmp_path).begun == 0
    assert list((tmp_path / "small").rglob("seed*")) == []


class Outside:
    """Looks at a run while it is under way."""

    def __init__(self, run: PaperRun, changed: PaperRun, folder: Path) -> None:
        self.run, self.changed, self.folder = run, changed, folder
        self.seen: list[object] = []

    def after_round(self, _: Round) -> None:
        if not self.seen:
            begun = [status([run], self.folder).begun for run in (self.run, self.changed)]
            self.seen = [execute(self.run, self.folder, workers=0), *begun]


def test_what_a_kill_leaves_beside_a_record_is_removed(run: PaperRun, tmp_path: Path) -> None:
    """The checkpoints of a run with a record, their lock, and drafts; not what another process holds."""
    write_record(tmp_path, run, 0.9)
    folder = (tmp_path / run.path).parent
    scratch = tmp_path / scratch_folder(run, "0123abcd")
    lock = scratch.with_suffix(".lock")
    (scratch / "checkpoints").mkdir(parents=True)
    (folder / ".table.md.999999999.draft").touch()
    with FileLock(lock):
        remove_leftovers([run], tmp_path)
        assert scratch.exists()
        assert lock.exists()
    remove_leftovers([run], tmp_path)
    assert [path.name for path in folder.iterdir()] == ["seed-0.json"]


def test_a_run_of_another_process_is_left_to_it(run: PaperRun, tmp_path: Path) -> None:
    changed = small_table(tmp_path, text=SMALL.replace("training.lr = 0.05", "training.lr = 0.3"))
    outside = Outside(run, one_run(changed, "fedavg"), tmp_path)
    assert execute(run, tmp_path, workers=0, observers=[outside]) is not None
    assert outside.seen == [None, 1, 0]  # a run with other options is not begun
    assert status([run], tmp_path).begun == 0


def test_the_status_counts_and_estimates(tmp_path: Path) -> None:
    runs = paper_runs(small_table(tmp_path), seeds=2)
    write_record(tmp_path, runs[0], 0.9)  # seed 0 of quped-2bit
    state = status(runs, tmp_path)
    assert state.done == 1
    assert [run.row.name for run in state.missing] == ["fedavg", "quped-2bit-ste", *(run.row.name for run in runs[3:])]
    # Three seeds to go cost 3.8, 3.9 and 3.9 beside the 3.8 that took 1800 s, and two cost 1.
    assert state.seconds_left == pytest.approx(1800 / 3.8 * (3.8 + 2 * 3.9 + 2 * 1))


def test_a_run_on_other_data_is_missing(run: PaperRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUPED_CACHE", str(tmp_path))

    def fetch(rows: int) -> str:
        file = store.stored_file("digits")
        (tmp_path / "scratch").mkdir(exist_ok=True)
        store.write(file, {"rows": torch.arange(rows)}, "a test", tmp_path / "scratch")
        return store.read(file).checksum

    write_record(tmp_path, run, 0.9, data=fetch(10))
    assert status([run], tmp_path).missing == []
    whole = fetch(120)
    assert status([run], tmp_path).missing == [run]
    record = execute(run, tmp_path, workers=0)
    assert record is not None
    assert record["data"] == whole


def test_a_column_of_one_size_keeps_its_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Data of another size are stored: what is recorded stays, and what is not is no run to make."""
    monkeypatch.setenv("QUPED_CACHE", str(tmp_path))
    text = SMALL.replace('title = "Digits"', 'title = "Digits"\nsamples = 10\nexact = true')
    done, undone = (one_run(small_table(tmp_path, text=text), name) for name in ("fedavg", "quped-2bit"))
    write_record(tmp_path, done, 0.9, data="of then")
    for rows, missing, impossible in ((10, [done, undone], []), (120, [], [undone])):
        (tmp_path / "scratch").mkdir(exist_ok=True)
        store.write(store.stored_file("digits"), {"train_labels": torch.arange(rows)}, "a test", tmp_path / "scratch")
        state = status([done, undone], tmp_path)
        assert (state.missing, state.impossible) == (missing, impossible)


def test_rows_that_read_one_record_are_one_run() -> None:
    runs = paper_runs(find_table("mnist"), ["fedavg", "fedavg-own"], ["4-classes"], seeds=1)
    assert [run.path for run in runs] == [Path("mnist/4-classes/fedavg/seed-0.json")]
    (alone,) = paper_runs(find_table("mnist"), ["fedavg-own"], ["4-classes"], seeds=1)
    assert (alone.path, alone.config) == (runs[0].path, runs[0].config)


def test_a_network_from_other_weights_is_missing(tmp_path: Path) -> None:
    run = one_run("table1", "float")
    weights = tmp_path / "resnet32.safetensors"
    weights.write_bytes(b"some")
    write_record(tmp_path, run, 0.9, weights="others")
    assert status([run], tmp_path).missing == []
    assert status([run], tmp_path, warm_start=tmp_path).missing == [run]
    write_record(tmp_path, run, 0.9, weights=hashlib.sha256(b"some").hexdigest())
    assert status([run], tmp_path, warm_start=tmp_path).missing == []
    weights.unlink()
    with pytest.raises(InvalidValueError, match=r"--warm-start FOLDER.*resnet32\*"):
        execute(one_run("table1", "centers-1bit"), tmp_path, warm_start=tmp_path)


NETWORK = """
title = "One network"
source = "nowhere"
rows.centers-2bit = {}
columns.mlp = { title = "MLP", recipe = { model = "mlp", data = "digits" } }
training = { epochs = 2, finetune_epochs = 1, lr = 0.003 }
"""


class Rounds(list[Round]):
    """Keeps the rounds of a run."""

    def after_round(self, round_: Round) -> None:
        self.append(round_)


def test_a_network_reports_epochs_as_rounds(tmp_path: Path) -> None:
    safetensors.torch.save_file(build("mlp", (1, 8, 8), 10).state_dict(), tmp_path / "mlp.safetensors")
    run, rounds = one_run(small_table(tmp_path, text=NETWORK), "centers-2bit"), Rounds()
    record = execute(run, tmp_path, warm_start=tmp_path, observers=[rounds])
    assert record is not None
    assert find_record(run, tmp_path) == record
    assert [(r.clock.round, r.rounds, r.clock.phase) for r in rounds] == [(0, 2, "train"), (1, 2, "finetune")]
    assert [r.evaluation and r.evaluation.mean for r in rounds] == [point["accuracy"] for point in record["curve"]]


def test_the_projects_records_of_a_column_have_equal_inputs() -> None:
    root = Path(__file__).parents[2] / "results"
    inputs: dict[Path, set[str]] = {}
    for path in root.rglob("seed-*.json"):
        record = json.loads(path.read_text())
        column = root / record["table"] / record["column"]
        inputs.setdefault(column, set()).add(record["weights"] if record["table"] == "table1" else record["data"])
        assert record["method"] in find_table(record["table"]).rows, path
    assert inputs
    assert {len(checksums) for checksums in inputs.values()} == {1}
