"""Observers, each with the real library, which writes to a folder."""

import importlib.util
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.program import FILE, fails, quped
from helpers.small_federation import fit

from quped import FitResult, QuPeD
from quped.errors import QupedError
from quped.observers import open_log


def expected(result: FitResult) -> dict[int, float]:
    """Return the mean accuracies of a run, by the round from 1."""
    return {point.round + 1: point.mean for point in result.curve}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard(tmp_path: Path) -> None:
    """Curves with the numbers of the run, and the distribution over clients."""
    pytest.importorskip("tensorboard")
    accumulator = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    from quped.observers.tensorboard import TensorBoard

    result = fit(QuPeD(), callbacks=[TensorBoard(tmp_path, "mine", "QuPeD")])
    events = accumulator.EventAccumulator(str(tmp_path / "mine" / "QuPeD")).Reload()
    assert {e.step: e.value for e in events.Scalars("accuracy/mean")} == pytest.approx(expected(result), abs=1e-6)
    assert len(events.Scalars("loss")) == result.rounds
    assert [e.histogram_value.num for e in events.Histograms("accuracy/clients")][-1] == len(result.accuracy)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One MLflow run per method, all in the experiment of the run."""
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow = pytest.importorskip("mlflow")
    from quped.observers.mlflow import MLflow

    result = fit(QuPeD(), callbacks=[MLflow(tmp_path, "mine", "QuPeD")])
    fit(QuPeD(), callbacks=[MLflow(tmp_path, "mine", "again")])
    client = mlflow.MlflowClient(tracking_uri=tmp_path.as_uri())
    runs = client.search_runs([client.get_experiment_by_name("mine").experiment_id])
    assert {run.info.run_name for run in runs} == {"QuPeD", "again"}
    assert {run.info.status for run in runs} == {"FINISHED"}
    (first,) = [run for run in runs if run.info.run_name == "QuPeD"]
    history = client.get_metric_history(first.info.run_id, "accuracy/mean")
    assert {metric.step: metric.value for metric in history} == pytest.approx(expected(result))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An offline run, whose file holds the numbers of the run."""
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    pytest.importorskip("wandb")
    from quped.observers.wandb import WandB

    result = fit(QuPeD(), callbacks=[WandB(tmp_path / "logs", "mine", "QuPeD")])
    wanted, until = expected(result), time.monotonic() + 30
    # A process of W&B's writes the file, and may be late on a busy machine.
    while stored_history(tmp_path / "logs") != pytest.approx(wanted) and time.monotonic() < until:
        time.sleep(0.2)
    assert stored_history(tmp_path / "logs") == pytest.approx(wanted)


def stored_history(folder: Path) -> dict[int, float]:
    """Read the mean accuracies from the file of an offline run."""
    (file,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    found = {}
    for data in pieces(file.read_bytes()):
        record = importlib.import_module("wandb.proto.wandb_internal_pb2").Record()
        record.ParseFromString(data)
        items = {item.key or "/".join(item.nested_key): item.value_json for item in record.history.item}
        if "accuracy/mean" in items:
            found[int(items["_step"])] = float(items["accuracy/mean"])
    return found


def pieces(log: bytes) -> Iterator[bytes]:
    """Yield the records of a log in LevelDB's format: blocks of 32 KiB, in which long records are continued."""
    place, whole = 7, b""
    while place + 7 <= len(log):
        if 32768 - place % 32768 < 7:
            place += 32768 - place % 32768
            continue
        _, length, kind = struct.unpack_from("<IHB", log, place)
        whole += log[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # the whole record, or its last part
            yield whole
            whole = b""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_run_logs_every_method(tmp_path: Path) -> None:
    """In folders of their own."""
    pytest.importorskip("tensorboard")
    (tmp_path / "mine.toml").write_text(FILE)
    settings = ("--set", "training.epochs=1", "--set", "compare=[{algorithm={lambda_p=0.5}}]")
    done = quped("run", "mine.toml", "--quiet", "--out", "out", "--log", "tensorboard:logs", *settings, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in (tmp_path / "logs" / "mine").iterdir()} == {"QuPeD-1", "QuPeD-2"}


def test_mistakes_are_told_before_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unknown tool, no folder, and a library that is not installed."""
    fails(quped("run", "--log", "tensorbord:logs", "--out", "out", cwd=tmp_path), "Did you mean 'tensorboard'")
    fails(quped("run", "--log", "wandb", "--out", "out", cwd=tmp_path), "--log takes TOOL:DIR", "got 'wandb'")
    assert not (tmp_path / "out").exists()
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.delitem(sys.modules, "quped.observers.wandb", raising=False)
    with pytest.raises(QupedError, match=r"pip install 'quped\[wandb\]'"):
        open_log("wandb:logs", "mine")


def test_observers_are_short() -> None:
    for tool in ("tensorboard", "mlflow", "wandb"):
        source = importlib.util.find_spec(f"quped.observers.{tool}")
        assert source is not None
        assert source.origin is not None
        assert len(Path(source.origin).read_text().splitlines()) < 60


def test_a_result_as_a_table() -> None:
    """One row per client and evaluation."""
    pytest.importorskip("pandas")
    result = fit(QuPeD())
    frame = result.to_frame()
    assert len(frame) == sum(len(point.accuracy) for point in result.curve)
    columns = ("round", "epoch", "phase", "loss", "seconds", "client", "accuracy", "accuracy_own_classes")
    assert tuple(frame) == columns
    last = [
        dict(zip(columns, values, strict=True)) for values in zip(*(frame[c].tolist() for c in columns), strict=True)
    ]
    final = {row["client"]: row["accuracy"] for row in last if row["round"] == result.curve[-1].round}
    assert final == result.accuracy
