"""Run records: whole files or none."""

import json
import math
import os
import subprocess
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from quped.errors import RunError
from quped.records import (
    Checkpoints,
    RunRecord,
    exclusive,
    has_failed,
    holds_run,
    read_json,
    revision,
    versions,
    write_json,
)


def test_a_record_has_config_curves_and_result(tmp_path: Path) -> None:
    """Curves grow by one line per evaluation; nothing else is left behind."""
    record = RunRecord.create(tmp_path / "a" / "run")
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
    RunRecord.create(tmp_path).config({"seed": 1})
    assert holds_run(tmp_path)
    with pytest.raises(RunError, match="already holds a run"):
        RunRecord.create(tmp_path)
    assert RunRecord(tmp_path).read_config() == {"seed": 1}
    (tmp_path / "notes.txt").write_text("mine")
    RunRecord.create(tmp_path, overwrite=True)
    assert not holds_run(tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    """A file in the way gets a clear error."""
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot be used"):
        RunRecord.create(tmp_path / "file" / "run")


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk in the middle of a write: the file before is still there, the draft is not."""
    write_json(tmp_path / "result.json", {"old": True})

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match="No space left on device"):
        write_json(tmp_path / "result.json", {"new": True})
    assert read_json(tmp_path / "result.json") == {"old": True}
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


def test_a_point_that_does_not_fit_is_an_error(tmp_path: Path) -> None:
    """A directory that is gone, or a full disk: the record says so."""
    record = RunRecord(tmp_path / "gone")
    with pytest.raises(RunError, match=r"curves.jsonl cannot be written: No such file"):
        record.point({"round": 0})


def test_a_point_that_was_written_in_part_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that fills up takes a part of a line without complaint."""

    class Full(nullcontext["Full"]):
        """A file that takes all but one byte."""

        def __enter__(self) -> "Full":
            """Return itself."""
            return self

        def write(self, line: bytes) -> int:
            """Say how much was written."""
            return len(line) - 1

    record = RunRecord.create(tmp_path)
    monkeypatch.setattr(Path, "open", lambda *_, **__: Full())
    with pytest.raises(RunError, match=r"curves.jsonl cannot be written: only a part could be written"):
        record.point({"round": 0})


def test_numbers_that_json_has_not_are_words(tmp_path: Path) -> None:
    """Infinity and NaN, at any depth."""
    write_json(tmp_path / "a.json", {"p": [math.inf, {"q": math.nan}], "r": 1.5})
    assert read_json(tmp_path / "a.json", sealed=True) == {"p": ["inf", {"q": "nan"}], "r": 1.5}


def test_rewinding_drops_later_points(tmp_path: Path) -> None:
    """A run that continues after two rounds writes the points of later ones again."""
    record = RunRecord.create(tmp_path)
    record.rewind([])
    for i in range(5):
        record.point({"round": i})
    with (tmp_path / "curves.jsonl").open("a") as file:
        file.write('{"round": 5')  # cut off, as by a full disk
    record.rewind([{"round": 0}, {"round": 1}])
    record.point({"round": 2})
    lines = (tmp_path / "curves.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == [0, 1, 2]


@pytest.mark.parametrize("content", ['{"round": 7}\n{"round": 1}\n', "\0" * 26, '{"round": 0}\n', ""])
def test_damaged_curves_are_written_again(content: str, tmp_path: Path) -> None:
    """From the checkpoint, which has all of them, with a note."""
    record = RunRecord.create(tmp_path)
    (tmp_path / "curves.jsonl").write_text(content)
    with pytest.warns(UserWarning, match=r"curves.jsonl is damaged: .* again from the checkpoint"):
        record.rewind([{"round": 0}, {"round": 1}])
    assert (tmp_path / "curves.jsonl").read_text() == '{"round": 0}\n{"round": 1}\n'


def test_checkpoints_keep_the_last_two(tmp_path: Path) -> None:
    """The newest one is found; if it is damaged, the one before, and it is said; if all are, nothing is begun anew."""
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    assert checkpoints.latest() is None
    assert checkpoints.rounds() == 0
    same = torch.arange(6.0).reshape(2, 3)
    for i in range(4):
        checkpoints.save(i, {"a": same + i, "b": (same + i).T.contiguous()}, {"round": i})
    files = sorted((tmp_path / "checkpoints").iterdir())
    assert [file.name for file in files] == ["round-000000002.safetensors", "round-000000003.safetensors"]
    found = checkpoints.latest()
    assert found is not None
    assert torch.equal(found[0]["b"], (same + 3).T)
    assert checkpoints.rounds() == 4
    files[1].write_bytes(files[1].read_bytes()[:-5])
    with pytest.warns(UserWarning, match=r"round-000000003.safetensors is damaged .* before it is used"):
        assert checkpoints.rounds() == 3
    save_file({"mine": same}, files[0])
    with pytest.warns(UserWarning, match="is damaged"), pytest.raises(RunError, match=r"No checkpoint in .* remove"):
        checkpoints.latest()
    checkpoints.clear()
    assert not (tmp_path / "checkpoints").exists()


def test_what_is_said_of_a_checkpoint_may_be_long(tmp_path: Path) -> None:
    """Longer than the header of the format may be: the curves of ten thousand clients."""
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(7, {"a": torch.zeros(2)}, {"round": 7, "curve": "x" * 101_000_000})
    found = checkpoints.latest()
    assert found is not None
    assert list(found[0]) == ["a"]
    assert len(found[1]["curve"]) == 101_000_000


def test_a_folder_in_use_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By another run, which may end in between; nothing is left of the lock."""
    monkeypatch.setattr("quped.records.files.PATIENCE", 0.1)
    folder = tmp_path / "a" / "b"
    with exclusive(folder), pytest.raises(RunError, match="b is in use by another process"), exclusive(folder):
        pass
    assert not folder.exists()
    with exclusive(folder):
        (folder / "file").write_text("")
    assert [path.name for path in folder.iterdir()] == ["file"]
    with pytest.raises(RunError, match="cannot be used"), exclusive(folder / "file"):
        pass


def test_a_lock_is_never_held_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor if one waits for it while its holder, which removes its file, comes to an end."""
    monkeypatch.setattr("quped.records.files.PATIENCE", 0.1)
    first, second = exclusive(tmp_path), exclusive(tmp_path)
    first.__enter__()
    unlink = Path.unlink

    def slow_unlink(path: Path, missing_ok: bool = False) -> None:
        monkeypatch.undo()
        monkeypatch.setattr("quped.records.files.PATIENCE", 0.1)
        with pytest.raises(RunError, match="in use"):  # at the moment before the file goes
            second.__enter__()
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", slow_unlink)
    first.__exit__(None, None, None)
    with exclusive(tmp_path), pytest.raises(RunError, match="in use"), exclusive(tmp_path):
        pass


@pytest.mark.parametrize("name", ["models/mine.quped", "checkpoints/round-1.safetensors"])
def test_a_users_own_files_are_not_taken_for_a_runs(name: str, tmp_path: Path) -> None:
    """In a folder that holds no run they stay, whatever may be overwritten."""
    (tmp_path / name).parent.mkdir()
    (tmp_path / name).write_text("precious")
    for overwrite in (False, True):
        with pytest.raises(RunError, match=r"holds no run, but .*, which would be lost: choose another"):
            RunRecord.create(tmp_path, overwrite=overwrite)
    assert (tmp_path / name).read_text() == "precious"


@pytest.mark.parametrize("content", ["[]", "5", '{"a": 1}', '{"accuracy": 1}', '{"accuracy": 1, "sha256": "0"}'])
def test_a_file_of_something_else_is_no_record(content: str, tmp_path: Path) -> None:
    """It is JSON, but not what a record has."""
    (tmp_path / "result.json").write_text(content)
    with pytest.raises(RunError, match=r"result.json is damaged, or no part of a record: remove it"):
        RunRecord(tmp_path).finished("accuracy")


def test_a_finished_record_has_no_checkpoints(tmp_path: Path) -> None:
    """They are removed with the result, and by a new run in their place."""
    record = RunRecord.create(tmp_path)
    record.checkpoints.save(0, {"a": torch.zeros(1)}, {"round": 0})
    assert record.finished() is None
    record.result({"accuracy": 1})
    assert record.finished() == {"accuracy": 1}
    assert not (tmp_path / "checkpoints").exists()


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    """A draft of a checkpoint goes with the next one, and stands in the way of nothing; other files stay."""
    record = RunRecord.create(tmp_path)
    draft = record.checkpoints.folder / ".round-000000001.safetensors.123"
    record.checkpoints.save(0, {"a": torch.zeros(1)}, {"round": 0})
    draft.write_bytes(b"half of it")
    record.checkpoints.save(1, {"a": torch.zeros(1)}, {"round": 1})
    assert not draft.exists()
    draft.write_bytes(b"half of it")
    (record.checkpoints.folder / "notes.txt").write_text("mine")
    record.result({"accuracy": 1})
    assert [path.name for path in record.checkpoints.folder.iterdir()] == ["notes.txt"]
    draft.write_bytes(b"half of it")
    RunRecord.create(tmp_path, overwrite=True)
    assert not draft.exists()


def test_versions_name_what_results_depend_on() -> None:
    """quped, torch, numpy and Python."""
    assert set(versions()) == {"quped", "torch", "numpy", "python"}


def test_a_flipped_bit_in_a_checkpoint_is_noticed(tmp_path: Path) -> None:
    """Wherever it is: the older of the two is used, with a note."""
    checkpoints = Checkpoints(tmp_path)
    for round_ in (0, 1):
        checkpoints.save(round_, {"a": torch.full((50,), float(round_))}, {"round": round_, "about": {"seconds": 1.5}})
    newest = checkpoints.files()[0]
    content = newest.read_bytes()
    for position in range(0, len(content), 7):
        damaged = bytearray(content)
        damaged[position] ^= 1 << position % 8
        newest.write_bytes(damaged)
        with pytest.warns(UserWarning, match="is damaged"):
            latest = checkpoints.latest()
        assert latest is not None
        assert latest[1]["round"] == 0
        assert bool((latest[0]["a"] == 0).all())


def test_a_flipped_bit_in_a_json_file_is_noticed(tmp_path: Path) -> None:
    """Wherever it is: in a number, a key or the digest. Only between them it does not matter."""
    values = {"seed": 3, "lr": 0.1, "nested": {"curve": [1.5, "nan", None]}}
    record = RunRecord.create(tmp_path)
    record.config(values)
    file = tmp_path / "config.json"
    content = file.read_bytes()
    for position in range(8 * len(content)):
        damaged = bytearray(content)
        damaged[position // 8] ^= 1 << position % 8
        file.write_bytes(damaged)
        with suppress(RunError):
            assert record.read_config() == values


@pytest.mark.parametrize("content", ["[" * 100_000, '{"a": ' * 100_000, f'{{"a": {"9" * 5000}}}', "\ud800"])
def test_json_that_python_cannot_read_is_an_error_with_a_remedy(content: str, tmp_path: Path) -> None:
    """Deep nesting, absurd numbers, bytes that are no text."""
    (tmp_path / "result.json").write_bytes(content.encode(errors="surrogatepass"))
    with pytest.raises(RunError, match=r"result.json cannot be read: .*repeat the run"):
        read_json(tmp_path / "result.json")


def test_files_of_older_versions_have_no_digest(tmp_path: Path) -> None:
    """They can be read, but no run is continued from them."""
    (tmp_path / "config.json").write_text('{"seed": 1}')
    assert read_json(tmp_path / "config.json") == {"seed": 1}
    with pytest.raises(RunError, match="is damaged"):
        RunRecord(tmp_path).read_config()


@pytest.mark.parametrize("name", ["models", "checkpoints", "curves.jsonl", "config.json"])
def test_nothing_is_written_through_a_link_in_a_record(name: str, tmp_path: Path) -> None:
    """A record that somebody else made may have links to the user's own files."""
    mine, run = tmp_path / "mine", tmp_path / "run"
    mine.mkdir()
    run.mkdir()
    (mine / "a.safetensors").write_text("precious")
    write_json(run / "config.json", {"seed": 1})
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(mine)
    for overwrite in (False, True):
        with pytest.raises(RunError, match=f"{name} is a symbolic link.*remove the link"):
            RunRecord.create(run, overwrite=overwrite)
    with pytest.raises(RunError, match=f"{name} is a symbolic link"):
        RunRecord(run)
    assert (mine / "a.safetensors").read_text() == "precious"


def test_a_draft_is_a_new_file(tmp_path: Path) -> None:
    """Not one that a link of its name leads to."""
    (tmp_path / "mine").write_text("precious")
    (tmp_path / f".a.json.{os.getpid()}.draft").symlink_to(tmp_path / "mine")
    write_json(tmp_path / "a.json", {"seed": 1})
    assert (tmp_path / "mine").read_text() == "precious"
    assert {path.name for path in tmp_path.iterdir()} == {"a.json", "mine"}


def test_drafts_of_killed_processes_are_removed_when_a_folder_is_used_next(tmp_path: Path) -> None:
    """Also in the folders below; those of running processes, and other files, stay."""
    ended = subprocess.Popen(["true"])
    ended.wait()
    (tmp_path / "models").mkdir()
    gone = [tmp_path / f".config.json.{ended.pid}.draft", tmp_path / "models" / f".a.safetensors.{ended.pid}.draft"]
    kept = [tmp_path / f".config.json.{os.getppid()}.draft", tmp_path / ".mine.draft"]
    for file in (*gone, *kept):
        file.write_text("half")
    with exclusive(tmp_path):
        assert not any(file.exists() for file in gone)
        assert all(file.exists() for file in kept)


@pytest.mark.parametrize("name", ["curves.jsonl", "models/a.quped"])
@pytest.mark.parametrize("damage", ["changed", "missing"])
def test_damaged_files_of_a_finished_run_are_noticed(name: str, damage: str, tmp_path: Path) -> None:
    """Its checkpoint, from which they could be repaired, is gone."""
    record = RunRecord.create(tmp_path)
    record.point({"round": 0})
    record.model("a", b"a network")
    record.result({"accuracy": 1})
    assert record.finished() == {"accuracy": 1}
    if damage == "changed":
        (tmp_path / name).write_bytes(b"another network")
    else:
        (tmp_path / name).unlink()
    with pytest.raises(RunError, match=rf"{name} is damaged, missing .*repeat the run"):
        record.finished()


def test_a_finished_run_never_counts_as_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even if the process is killed when the result was just written: a failed run may be replaced."""
    record = RunRecord.create(tmp_path)
    record.config({"seed": 1})
    record.fail("the disk was full")
    assert has_failed(tmp_path)

    def killed(_: Checkpoints) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Checkpoints, "clear", killed)
    with pytest.raises(KeyboardInterrupt):
        record.result({"accuracy": 1})
    assert record.finished() == {"accuracy": 1}
    assert not has_failed(tmp_path)


def test_a_revision_that_git_could_not_tell_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """A git that was killed says nothing: neither that the code is as committed, nor that it differs."""
    if revision() is None:
        pytest.skip("not in a checkout")
    run = subprocess.run

    def killed(command: list[str], **options: Any) -> subprocess.CompletedProcess[Any]:
        return subprocess.CompletedProcess(command, -9) if "diff" in command else run(command, **options)

    monkeypatch.setattr(subprocess, "run", killed)
    assert revision.__wrapped__() is None
