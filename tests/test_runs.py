"""Run records: whole files or none."""

import json
import os
from pathlib import Path

import pytest

from quped.errors import RunError
from quped.runs import RunRecord, holds_run, versions, write_json


def test_a_record_has_config_curves_and_result(tmp_path: Path) -> None:
    """Curves grow by one line per evaluation; nothing else is left behind."""
    record = RunRecord(tmp_path / "a" / "run")
    record.config({"seed": 1})
    for i in range(3):
        record.point({"round": i})
    record.result({"accuracy": 0.5})
    names = {path.name for path in record.path.iterdir()}
    assert names == {"config.json", "curves.jsonl", "result.json"}
    lines = (record.path / "curves.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == [0, 1, 2]


def test_an_existing_run_is_refused_unless_told(tmp_path: Path) -> None:
    """Refused, even when unfinished, and left as it was; replaced when told."""
    RunRecord(tmp_path).config({"seed": 1})
    assert holds_run(tmp_path)
    with pytest.raises(RunError, match="already holds a run"):
        RunRecord(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text()) == {"seed": 1}
    (tmp_path / "notes.txt").write_text("mine")
    RunRecord(tmp_path, overwrite=True)
    assert not holds_run(tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    """A file in the way gets a clear error."""
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot be used"):
        RunRecord(tmp_path / "file" / "run")


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk in the middle of a write: the file before is still there, the draft is not."""
    write_json(tmp_path / "result.json", {"old": True})

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match="No space left on device"):
        write_json(tmp_path / "result.json", {"new": True})
    assert json.loads((tmp_path / "result.json").read_text()) == {"old": True}
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


def test_versions_name_what_results_depend_on() -> None:
    """quped, torch, numpy and Python."""
    assert set(versions()) == {"quped", "torch", "numpy", "python"}
