"""The live view of a run."""

import io
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.made_records import make_run
from helpers.program import FILE, fails, quped
from rich.console import Console

from quped.cli import watch
from quped.records import CURVES, RESULT, RunRecord, in_use
from quped.report.live import braille, resample, sparkline


def test_curves_in_characters() -> None:
    """From the lowest to the highest value, whatever their number."""
    assert sparkline([0, 0.5, 1], 24) == "▁▅█"
    assert sparkline([1, 1], 24) == "▁▁"
    assert sparkline([], 24) == ""
    assert sparkline(list(range(100)), 8) == "▁▂▃▄▅▆▇█"
    assert resample(range(10), 5) == [1, 3, 5, 7, 9]
    assert braille([0, 1], 2, 1) == ["⡠⠊"]
    assert braille([0, 0], 1, 2) == ["⠀", "⣀"]


def test_a_finished_run(tmp_path: Path) -> None:
    """Every method, the curve of the first one, and the clients behind the others; without a terminal, at once."""
    make_run(tmp_path / "run", [f"client-{i}" for i in range(9)], 10)
    done = quped("watch", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "run" / RESULT).read_text())
    assert "run is finished." in done.stdout
    assert f"epoch 10/10  {result['accuracy']['mean']:.1%}" in done.stdout
    assert "Mean accuracy of QuPeD, rounds 1 to 10" in done.stdout
    for name in ("QuPeD", "Local", "FedAvg"):
        assert name in done.stdout
    last = result["accuracy"]["per_client"]
    listed = [line.split() for line in done.stdout.splitlines() if line.startswith("client-")]
    assert [line[0] for line in listed] == sorted(last, key=lambda name: last[name])[:5]
    slowest = [f"client-{i} {time} s 0.1 s" for i, time in enumerate(("0.5", "0.4", "0.3"))]
    assert [" ".join(line[3:]) for line in listed] == [*slowest, "", ""]
    fails(quped("watch", tmp_path, cwd=tmp_path), "holds no run")


def test_a_run_is_followed_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that was interrupted, and begins again at an earlier checkpoint."""
    folder = tmp_path / "run"
    make_run(folder, ["a", "b"], 8, compare=(), finished=False)
    whole = (folder / CURVES).read_text().splitlines(keepends=True)
    (folder / CURVES).write_text("".join(whole[:5]))
    make_run(tmp_path / "other", ["a", "b"], 8, compare=())
    steps = iter((3, 6, 8))

    def pass_time(_: float) -> None:
        done = next(steps)
        (folder / CURVES).write_text("".join(whole[:done]))
        if done == 8:
            (folder / RESULT).write_bytes((tmp_path / "other" / RESULT).read_bytes())

    screen = io.StringIO()
    monkeypatch.setattr(time, "sleep", pass_time)
    monkeypatch.setattr(watch, "make_console", lambda: Console(file=screen, force_terminal=True, width=100))
    watch.watch_command(folder)
    text = " ".join(screen.getvalue().split())  # lines are wrapped
    assert "Continue it with: quped run --resume" in text
    assert [f"epoch {n}/8" in text for n in (5, 3, 6, 8)] == [True] * 4
    assert text.index("epoch 5/8") < text.index("epoch 3/8") < text.index("epoch 6/8") < text.index("epoch 8/8")
    assert "is finished." in text


@pytest.mark.parametrize("told", [True, False], ids=["at once", "older record"])
def test_a_run_without_times_of_clients(told: bool, tmp_path: Path) -> None:
    """If clients were computed at once, the view says so; of an older record, it says nothing."""
    make_run(tmp_path / "run", ["a", "b"], 3, compare=(), finished=False)
    points = [json.loads(line) for line in (tmp_path / "run" / CURVES).read_text().splitlines()]
    for point in points:
        del point["slowest"], point["median_seconds"]
        point |= {"slowest": {}, "median_seconds": None} if told else {}
    (tmp_path / "run" / CURVES).write_text("".join(json.dumps(point) + "\n" for point in points))
    shown = quped("watch", "run", cwd=tmp_path).stdout
    assert ("this engine computes clients at once" in " ".join(shown.split())) == told
    assert "Slowest clients" not in shown


@pytest.mark.slow
def test_a_killed_run_is_seen_to_be_stopped(tmp_path: Path) -> None:
    """SIGKILL leaves the file of the lock, which nobody holds then."""
    (tmp_path / "mine.toml").write_text(FILE.replace("epochs = 2", "epochs = 500\nevaluate_every = 1"))
    program = str(Path(sys.executable).with_name("quped"))
    run = subprocess.Popen([program, "run", "mine.toml", "--out", "a run", "--quiet"], cwd=tmp_path)
    try:
        wait_for(lambda: (tmp_path / "a run" / CURVES).exists(), 120)
        assert "a run is under way." in quped("watch", "a run", cwd=tmp_path).stdout
        assert "Slowest clients" in quped("watch", "a run", cwd=tmp_path).stdout
    finally:
        run.kill()
        run.wait()
    # Workers hold the lock, too, and die with the run.
    wait_for(lambda: not in_use(tmp_path / "a run"), 10)
    assert (tmp_path / "a run" / ".lock").exists()
    shown = quped("watch", "a run", cwd=tmp_path).stdout
    assert "a run is not running now.\nContinue it with: quped run --resume 'a run'" in shown
    assert "under way" not in shown
    (tmp_path / "a run" / ".lock").unlink()
    assert "is not running now" in quped("watch", "a run", cwd=tmp_path).stdout


def wait_for(condition: Callable[[], bool], seconds: float) -> None:
    """Wait until something is so."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.05)


def test_a_failed_run_says_why(tmp_path: Path) -> None:
    """With the message of its error."""
    make_run(tmp_path / "run", ["a", "b"], 3, compare=(), finished=False)
    RunRecord(tmp_path / "run").fail("The training loss of client 'a' became nan.")
    assert "run ended with an error: The training loss" in quped("watch", "run", cwd=tmp_path).stdout
