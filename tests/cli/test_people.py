"""What a person meets: narrow terminals, interruptions, runs that failed, output without a terminal."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers.program import FILE, fails, quped
from helpers.small_federation import Net, samples
from rich.console import Console

from quped import Client, Federation, Local, QupedError
from quped.report.terminal import client_table, comparison_table


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(FILE)
    return path


def test_a_failed_run_does_not_block_its_folder(experiment: Path, tmp_path: Path) -> None:
    arguments = ("run", experiment, "--out", "out", "--set", "compare=[]", "--set", "training.epochs=1")
    fails(quped(*arguments, "--set", "training.lr=1e9", cwd=tmp_path), "lower the learning rate")
    assert "lower the learning rate" in (tmp_path / "out" / "failed.txt").read_text()
    assert quped(*arguments, cwd=tmp_path).returncode == 0
    assert not (tmp_path / "out" / "failed.txt").exists()
    fails(quped(*arguments, cwd=tmp_path), "already holds a run")


def test_without_a_terminal_a_run_prints_lines(experiment: Path, tmp_path: Path) -> None:
    done = quped("run", experiment, "--out", "out", cwd=tmp_path)
    for method in ("QuPeD", "Local", "FedAvg"):
        assert f"{method}: round " in done.stdout


def test_a_byte_order_mark_is_no_mistake(tmp_path: Path) -> None:
    (tmp_path / "bom.toml").write_text(FILE, encoding="utf-8-sig")
    done = quped("run", "bom.toml", "--out", "out", "--set", "compare=[]", "--set", "training.epochs=1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_numbers_in_quotes_are_refused(experiment: Path, tmp_path: Path) -> None:
    experiment.write_text(FILE.replace("bits = 2", 'bits = "2"'))
    fails(quped("run", experiment, cwd=tmp_path), "clients[0].bits", "integer", "'2'")


@pytest.mark.slow
@pytest.mark.parametrize("width", [60, 80, 120])
def test_tables_fit_into_the_terminal(width: int, experiment: Path, tmp_path: Path) -> None:
    done = quped("run", experiment, "--out", "out", "--json", cwd=tmp_path)
    result = json.loads(done.stdout)
    peer = json.loads((tmp_path / "out" / "fedavg" / "result.json").read_text())
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(client_table(result, width))
    console.print(comparison_table([result, peer], width))
    text = console.export_text()
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    for client in result["clients"]:
        assert f"{client['samples']}" in text


def start(*arguments: str, cwd: Path) -> subprocess.Popen[str]:
    program = str(Path(sys.executable).with_name("quped"))
    return subprocess.Popen(
        [program, "run", *arguments],
        cwd=cwd,
        text=True,
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


@pytest.mark.slow
def test_interrupts_are_acknowledged_and_resuming_says_from_where(experiment: Path, tmp_path: Path) -> None:
    """The first stops after the round, the second at once; both say how to continue."""
    settings = ("--set", "compare=[]", "--set", "training.epochs=100000", "--checkpoint-every", "1")
    process = start("mine.toml", "--out", "out", *settings, cwd=tmp_path)
    while not list(tmp_path.glob("out/checkpoints/round-*")):
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    output = process.communicate(timeout=60)[0]
    assert process.returncode == 130
    assert "Stopping after this round" in output
    assert "quped run --resume out" in output
    before = max(tmp_path.glob("out/checkpoints/round-*"))
    with start("--resume", "out", cwd=tmp_path) as process:
        assert process.stdout is not None
        assert any("Resuming out, after round" in line for line in iter(process.stdout.readline, ""))
        # Within a round: Python may lose an interrupt that comes while it imports modules.
        while max(tmp_path.glob("out/checkpoints/round-*")) == before:
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGINT)
        try:
            assert "quped run --resume out" in process.communicate(timeout=60)[0]
        finally:
            process.kill()
    assert process.returncode == 130


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("training.lr=" + "9" * 5000, "training.lr"),
        ("training.lr=1" + "0" * 400, "training.lr"),
        ("clients=" + "[" * 50_000, "clients"),
        ("clients[0].count=1000000000", "clients[0].count"),
    ],
    ids=["digits", "overflow", "brackets", "count"],
)
def test_absurd_values_are_refused_in_a_sentence(change: str, words: str, experiment: Path, tmp_path: Path) -> None:
    fails(quped("run", experiment, "--set", change, cwd=tmp_path), words)
    experiment.write_text(f"{change.replace('[0].', '.')}\n{FILE}")
    fails(quped("run", experiment, cwd=tmp_path), "mine.toml")


def test_a_bug_is_reported_as_one(experiment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("unexpected")

    monkeypatch.setattr("quped.experiments.run.run_method", broken)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    fails(quped("run", experiment, cwd=tmp_path), "bug of quped", "quped-bug-")
    (details,) = tmp_path.glob("quped-bug-*.txt")
    assert "ZeroDivisionError: unexpected" in details.read_text()


def run_program(command: str, cwd: Path) -> tuple[int, str]:
    """Run a shell command with the program as $QUPED; return its exit code and what it printed as errors."""
    environment = {**os.environ, "QUPED": str(Path(sys.executable).with_name("quped")), "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(["bash", "-c", command], cwd=cwd, env=environment, capture_output=True, timeout=120)
    return done.returncode, done.stderr.decode()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("set -o pipefail; $QUPED presets | head -1; [ $? -ne 120 ]", ""),
        ("$QUPED presets > /dev/full", "cannot be used: No space left"),
        ("$QUPED presets >&-", ""),
        ("ulimit -n 6; $QUPED run digits", "raise the limit"),
        ("$QUPED run $'\\xff.toml'", "There is no experiment file"),
        ("$QUPED run digits --set $'description=\\xff' --set data.name=x", "data.name"),
    ],
)
def test_output_that_cannot_be_written_gets_a_sentence(command: str, words: str, tmp_path: Path) -> None:
    """A pipe whose reader has gone, a full disk, a closed output, words that are no text."""
    code, errors = run_program(command, tmp_path)
    assert code == (2 if words else 0), errors
    assert words in errors
    assert "Traceback" not in errors
    assert "Exception ignored" not in errors


def test_names_of_clients_are_text() -> None:
    """They become names of files."""
    with pytest.raises(QupedError, match=r"name of a client .*surrogates"):
        Federation([Client("\ud800", train=samples(0, 20), test=samples(1, 12), model=Net)], Local())
