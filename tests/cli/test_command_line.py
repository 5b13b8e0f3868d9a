"""The program as a person runs it: a process, its output, its exit code and its files."""

import io
import json
import signal
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
from helpers.program import FILE, Done, fails, quped
from rich.console import Console
from torch import nn

from quped import load
from quped.cli._shared import notes
from quped.errors import InterruptedRunError
from quped.records import Checkpoints, RunRecord


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    """Return a small experiment file."""
    path = tmp_path / "mine.toml"
    path.write_text(FILE)
    return path


def test_the_program_is_installed(tmp_path: Path) -> None:
    """As a process of its own: version, and an error with exit code 2 and no traceback."""
    program = Path(sys.executable).with_name("quped")
    version = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=60, check=True)
    assert version.stdout.startswith("quped 0.")
    wrong = subprocess.run([program, "run", "quikstart"], capture_output=True, text=True, timeout=60, check=False)
    fails(Done(wrong.returncode, wrong.stdout, wrong.stderr), "Did you mean 'quickstart'")


def test_a_run_from_start_to_finish(experiment: Path, tmp_path: Path) -> None:
    """Tables on the screen; a record for the algorithm, and below it one for each it is compared with."""
    done = quped("run", experiment, "--out", "out", "--seed", "3", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for word in ("four devices", "QuPeD", "Local", "FedAvg", "client-0", "cnn1", "mlp", "accuracy", "kB", "out"):
        assert word in done.stdout
    assert "Traceback" not in done.stderr
    assert "validation" not in done.stdout

    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert result["algorithm"] == "quped"
    assert result["preset"] == "mine"
    assert result["seed"] == 3
    assert result["epochs"] == 2
    assert result["rounds"] >= 1
    assert result["seconds"] > 0
    assert set(result["versions"]) >= {"quped", "torch", "numpy", "python"}
    assert result["config"]["training"]["batch_size"] == 100
    accuracy = result["accuracy"]
    assert set(accuracy["per_client"]) == {f"client-{i}" for i in range(4)}
    values = list(accuracy["per_client"].values())
    assert accuracy["mean"] == pytest.approx(sum(values) / 4)
    clients = result["clients"]
    assert [set(c["bits"].values()) for c in clients] == [{2}, {2}, {1}, {1}]
    assert [c["network"] for c in clients] == ["cnn1", "cnn1", "mlp", "mlp"]
    assert all(c["bytes_packed"] < c["bytes_float32"] for c in clients)
    files = {path.stem: path.stat().st_size for path in (tmp_path / "out" / "models").iterdir()}
    assert files == {c["name"]: c["bytes_file"] for c in clients}
    assert [c["algorithm"] for c in result["comparison"]] == ["quped", "local", "fedavg"]
    assert [c["record"] for c in result["comparison"]] == [".", "local", "fedavg"]
    note = "note: Under FedAvg every client has the global network mlp and keeps full precision."
    assert done.stdout.count("note: Under") == done.stdout.count(note) == 1

    network = load(tmp_path / "out" / "models" / "client-0.quped")
    assert isinstance(network, nn.Module)
    assert len(set(network.get_parameter("features.1.weight").flatten().tolist())) <= 4
    assert len(list((tmp_path / "out" / "fedavg" / "models").iterdir())) == 4

    points = [json.loads(line) for line in (tmp_path / "out" / "curves.jsonl").read_text().splitlines()]
    assert points[-1]["mean"] == accuracy["mean"]
    for name in ("local", "fedavg"):
        peer = json.loads((tmp_path / "out" / name / "result.json").read_text())
        assert peer["algorithm"] == name
        assert peer["config"]["algorithm"]["name"] == name
    fedavg = json.loads((tmp_path / "out" / "fedavg" / "result.json").read_text())
    assert all(c["bits"] == {} for c in fedavg["clients"])
    assert (fedavg["config"]["training"]["lr"], result["config"]["training"]["lr"]) == (0.2, 0.1)


def test_methods_that_are_there_twice_are_told_apart(experiment: Path, tmp_path: Path) -> None:
    """By what differs, in table and sentences; those that are there once have their names alone."""
    peers = "[{algorithm={lambda_p=0.5},training={lr=0.2}},{algorithm={name='local'}}]"
    arguments = ("--set", f"compare={peers}", "--set", "training.epochs=1", "--set", "data.evaluate_on=validation")
    done = quped("run", experiment, *arguments, "--out", "out", cwd=tmp_path)
    for words in ("│ QuPeD, lambda_p 0.25, lr 0.1 ", "│ QuPeD, lambda_p 0.5, lr 0.2 ", "│ Local  ", "Under"):
        assert (words in done.stdout) == (words != "Under")
    assert "QuPeD, lambda_p 0.25, lr 0.1 is " in done.stdout
    assert done.stdout.count(", on validation samples") == 2
    assert [c["record"] for c in json.loads((tmp_path / "out" / "result.json").read_text())["comparison"]][1] == "quped"


def test_json_is_all_there_is_on_standard_output(experiment: Path, tmp_path: Path) -> None:
    """--json prints result.json; --set changes the experiment; the same seed gives the same numbers."""
    arguments = ("run", experiment, "--json", "--set", "compare=[]", "--set", "training.epochs=1")
    first, second = (quped(*arguments, "--out", name, cwd=tmp_path) for name in ("a", "b"))
    result = json.loads(first.stdout)
    assert result == json.loads((tmp_path / "a" / "result.json").read_text())
    assert result["epochs"] == 1
    assert len(result["comparison"]) == 1
    assert result["accuracy"] == json.loads(second.stdout)["accuracy"]


def test_quiet_says_nothing(experiment: Path, tmp_path: Path) -> None:
    """--quiet prints nothing; the record is there, in runs/ by default."""
    done = quped("run", experiment, "--quiet", "--set", "compare=[]", cwd=tmp_path)
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)
    assert len(list((tmp_path / "runs").glob("mine-*/result.json"))) == 1


def test_presets_and_help(tmp_path: Path) -> None:
    """The presets are listed, and help names every option."""
    assert "quickstart" in quped("presets", cwd=tmp_path).stdout
    text = quped("run", "--help", cwd=tmp_path).stdout
    for option in ("--set", "--seed", "--out", "--overwrite", "--quiet", "--json"):
        assert option in text


MISTAKES = [
    (["clients[0].bits=0"], ["clients[0].bits", "1..8 or 32", "got 0"]),
    (["clients[1].bits=9"], ["clients[1].bits", "1..8 or 32", "got 9"]),
    (["clients[0].bits=true"], ["clients[0].bits", "valid integer", "got True"]),
    (["training.epochs=true"], ["training.epochs", "whole number", "got True"]),
    (["clients[0].model.width=inf"], ["clients[0].model.cnn1.width", "less than or equal to 100"]),
    (["clients[1].model.hidden=[100000000000]"], ["clients[1].model.mlp.hidden[0]", "less than or equal to 100000"]),
    (["clients[1].model.hidden=[90000,90000]"], ["clients[1].model.mlp.hidden", "more than 1,000,000,000 weights"]),
    (["clients[0].count=60000", "clients[1].count=60000"], ["clients: these are more than 100,000 clients"]),
    (["clients[0].bits={'features.1.weight' = 9}"], ["clients[0].bits.features.1.weight", "1..8 or 32", "got 9"]),
    (["clients[0].end_bits=0"], ["clients[0].end_bits", "greater than or equal to 1", "got 0"]),
    (["clients[0].budget='8 pages'"], ["clients[0].budget", "number of bytes", "8 pages"]),
    (["clients[0].bits=two"], ["clients[0].bits", "integer", "'two'"]),
    (["algorithm.name=qupd"], ["algorithm", "'qupd' is no algorithm", "Did you mean 'quped'"]),
    (["algorithm.lambda=1"], ["quped has no hyperparameter 'lambda'", "lambda_p"]),
    (["algorithm.lambda_p=2"], ["lambda_p", "between 0 and 1", "got 2"]),
    (["data.name=digit"], ["data.name", "Did you mean 'digits'"]),
    (["clients[0].model=cnn7"], ["clients[0].model: must be one of 'cnn1', 'cnn2'", "cnn7"]),
    (["training.epoch=3"], ["training.epoch:", "Did you mean 'epochs'?"]),
    (["algorithm.name=fedavg", "algorithm.tau=2"], ["fedavg has no hyperparameter 'tau'. Known: server_momentum."]),
    (["data.partition=classes=11"], ["number of classes per client must be a whole number from 1 to 10, got 11"]),
    (
        ["data.partition=class=3"],
        ["data.partition", "classes=N, dirichlet=ALPHA, writers=N, people=N or iid", "'class=3'"],
    ),
    (["data.partition=writers=3"], ["writers of 'digits' are not known"]),
    (["clients[0].model=text"], ["text takes texts"]),
    (["clients[0].count=800"], ["use fewer clients"]),
    (["clients[0].model.widht=2"], ["clients[0].model.cnn1.widht: is not known. Did you mean 'width'?"]),
    (["training"], ["--set takes KEY=VALUE"]),
    (["clients[7].bits=1"], ["nothing at 'clients[7].bits' to set"]),
    (["training.clients_per_round=50"], ["clients_per_round must be at most 4"]),
    (["training.finetune_epochs=3"], ["finetune_epochs must be a whole number from 0 to 2"]),
    (["compare[1].training.finetune_epochs=3"], ["finetune_epochs must be a whole number from 0 to 2"]),
    (["clients[1].model.hidden=[1,1]"], ["network of client 'client-2' cannot be quantized"]),
    (["algorithm.quantization.eta_2=1"], ["algorithm.quantization.eta_2: is not known"]),
    (["compare[0].algorithm.name=locl"], ["compare[0].algorithm", "Did you mean 'local'"]),
    (["compare[1].training.lr=-1"], ["compare[1].training.lr", "above 0"]),
    # Python writes no decimal number of so many digits.
    ([f"training.epochs=0x{'f' * 5000}"], ["training.epochs", "whole number"]),
    ([f"clients[0].model.name=0x{'f' * 5000}"], ["clients[0].model: must be one of"]),
    # Every mistake at once.
    (
        ["training.epochs=0", "training.lr=-1", "clients[0].bits=3.5", "algorithm.lambda_p=7"],
        ["4 mistakes", "training.epochs", "training.lr", "clients[0].bits", "lambda_p"],
    ),
    (
        ["seed=1", "training.epoch=3", "training.lr=-1", "clients[0].model.widht=2", "clients[0].model.width=-1"],
        ["5 mistakes", "seed: is", "training.epoch:", "training.lr:", "cnn1.widht:", "cnn1.width: ", "(got -1)"],
    ),
]


@pytest.mark.parametrize(("changes", "words"), MISTAKES)
def test_mistakes_in_an_experiment(changes: list[str], words: list[str], experiment: Path, tmp_path: Path) -> None:
    """One clear message, exit code 2, and no half-written run."""
    arguments = [argument for change in changes for argument in ("--set", change)]
    fails(quped("run", experiment, "--out", "out", *arguments, cwd=tmp_path), *words)
    assert not (tmp_path / "out").exists()


def test_unknown_presets_and_files(tmp_path: Path) -> None:
    """The nearest preset is suggested; a missing or malformed file is named with its line."""
    fails(quped("run", "quikstart", cwd=tmp_path), "no preset 'quikstart'", "Did you mean 'quickstart'")
    fails(quped("run", "none.toml", cwd=tmp_path), "There is no experiment file none.toml")
    (tmp_path / "bad.toml").write_text("[data\nname = 3")
    fails(quped("run", "bad.toml", cwd=tmp_path), "bad.toml is not valid TOML", "line 1")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    fails(quped("run", "binary.toml", cwd=tmp_path), "binary.toml", "cannot be read")
    (tmp_path / "empty.toml").write_text("")
    fails(quped("run", "empty.toml", cwd=tmp_path), "data: is missing", "clients: is missing")
    assert not (tmp_path / "runs").exists()


def test_an_existing_run_is_not_overwritten(experiment: Path, tmp_path: Path) -> None:
    """Refused unless told; then replaced."""
    arguments = ("run", experiment, "--out", "out", "--quiet", "--set", "compare=[]", "--set", "training.epochs=1")
    assert quped(*arguments, cwd=tmp_path).returncode == 0
    before = (tmp_path / "out" / "result.json").read_bytes()
    fails(quped(*arguments, cwd=tmp_path), "out already holds a run", "--overwrite")
    assert (tmp_path / "out" / "result.json").read_bytes() == before
    assert quped(*arguments, "--overwrite", "--seed", "1", cwd=tmp_path).returncode == 0
    assert json.loads((tmp_path / "out" / "result.json").read_text())["seed"] == 1


def test_a_failing_run_is_told_without_a_traceback(experiment: Path, tmp_path: Path) -> None:
    """Divergence in the middle: the client, the round and the remedy; no result is written."""
    done = quped("run", experiment, "--out", "out", "--set", "training.lr=1e9", cwd=tmp_path)
    fails(done, "training loss of client", "lower the learning rate")
    assert not (tmp_path / "out" / "result.json").exists()


def test_a_folder_that_cannot_be_made_is_told_without_a_traceback(tmp_path: Path) -> None:
    """The error names it."""
    (tmp_path / "file").write_text("")
    done = quped("paper", "run", "femnist-cnn1", "--methods", "local", "--out", "file/below", cwd=tmp_path)
    assert done.returncode == 2
    assert "error: file/below/femnist-cnn1/femnist/local cannot be used: Not a directory" in " ".join(
        done.stderr.split()
    )
    assert "Traceback" not in done.stderr


def test_users_words_are_not_markup(experiment: Path, tmp_path: Path) -> None:
    """Brackets in a description or a path are shown as they are."""
    done = quped(
        "run", experiment, "--out", "out[red]", "--set", "description='a [/foo] b'", "--set", "compare=[]", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "a [/foo] b" in done.stdout
    assert "Record: out[red]" in done.stdout


def test_overwriting_leaves_nothing_of_the_old_run(experiment: Path, tmp_path: Path) -> None:
    """Records of methods that the new run does not have go too; other files stay."""
    arguments = ("run", experiment, "--out", "out", "--quiet", "--set", "training.epochs=1")
    peers = "compare=[{algorithm={name='local'}},{algorithm={lambda_p=0.5}}]"
    assert quped(*arguments, "--set", peers, cwd=tmp_path).returncode == 0
    (tmp_path / "out" / "local" / "notes.txt").write_text("mine")
    assert (tmp_path / "out" / "quped").is_dir()
    assert quped(*arguments, "--overwrite", "--set", "compare=[]", cwd=tmp_path).returncode == 0
    below = {path for name in ("local", "quped") for path in (tmp_path / "out" / name).rglob("*") if path.is_file()}
    assert {path.name for path in below} == {"notes.txt"}
    assert len(list((tmp_path / "out" / "models").iterdir())) == 4


def test_other_runs_below_are_left_alone(experiment: Path, tmp_path: Path) -> None:
    """Runs, and whatever else has a config.json, stay in the folder of another run, which may be replaced."""
    arguments = ("run", experiment, "--quiet", "--set", "training.epochs=1", "--set", "compare=[]")
    assert quped(*arguments, "--out", "runs/first", cwd=tmp_path).returncode == 0
    (tmp_path / "runs" / "bert").mkdir()
    (tmp_path / "runs" / "bert" / "config.json").write_text('{"hidden_size": 768}')

    def files() -> dict[Path, bytes]:
        below = (path for name in ("first", "bert") for path in (tmp_path / "runs" / name).rglob("*"))
        return {path: path.read_bytes() for path in below if path.is_file()}

    before = files()
    assert quped(*arguments, "--out", "runs", "--seed", "1", cwd=tmp_path).returncode == 0
    assert files() == before
    for seed in ("2", "0"):  # 0: that of the other run
        again = quped(*arguments, "--out", "runs", "--seed", seed, "--overwrite", cwd=tmp_path)
        assert again.returncode == 0
        assert files() == before


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("config.json", "5", "config.json is damaged, or no part of a record"),
        ("config.json", '{"preset": "x", "seed": 0, "config": 5}', "config.json is damaged, or no part of a record"),
        ("config.json", "[" * 50_000, "config.json cannot be read"),
        ("result.json", "[]", "result.json is damaged, or no part of a record"),
        ("result.json", "{}", "result.json is damaged, or no part of a record"),
    ],
)
def test_damaged_records_are_told_without_a_traceback(
    name: str, content: str, words: str, experiment: Path, tmp_path: Path
) -> None:
    """Whatever is in their files."""
    arguments = ("run", experiment, "--out", "out", "--quiet", "--set", "training.epochs=1", "--set", "compare=[]")
    assert quped(*arguments, cwd=tmp_path).returncode == 0
    (tmp_path / "out" / name).write_text(content)
    fails(quped("run", "--resume", "out", cwd=tmp_path), words)


def test_an_interrupted_run_says_how_to_go_on(
    experiment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C: where the record is, and the exit code of the signal."""

    def interrupted(*_: object) -> None:
        raise InterruptedRunError(6, signal.SIGINT)

    monkeypatch.setattr("quped.simulation.fit.simulate", interrupted)
    done = quped("run", experiment, "--out", "out", cwd=tmp_path)
    assert done.returncode == 130
    assert "Stopped by SIGINT after round 7, with a checkpoint. Continue with:\n  quped run --resume out" in done.stderr


def test_notes_are_shown_when_they_come() -> None:
    """What a run warns of is told at once, so also if it fails later; and only once."""
    screen = io.StringIO()
    with notes(Console(file=screen)):
        for _ in range(2):
            warnings.warn("The worker of client 'a' died.", stacklevel=1)
        assert screen.getvalue() == "note: The worker of client 'a' died.\n"


def test_a_resumed_run_is_one_run(experiment: Path, tmp_path: Path) -> None:
    """After an overwrite was interrupted, no result of the run before is taken for this one's; infinity survives."""
    settings = ("--set", "compare=[{algorithm={name='local',quantization={sharpness=inf}}}]")
    arguments = ("run", experiment, "--out", "out", "--quiet", *settings)
    assert quped(*arguments, cwd=tmp_path).returncode == 0

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("quped.simulation.fit.simulate", interrupted)
        assert quped(*arguments, "--overwrite", "--seed", "7", cwd=tmp_path).returncode == 130
    assert quped("run", "--resume", "out", "--quiet", cwd=tmp_path).returncode == 0
    for record in (".", "local"):
        result = json.loads((tmp_path / "out" / record / "result.json").read_text(), parse_constant=float.fromhex)
        assert result["seed"] == 7
    assert result["config"]["algorithm"]["quantization"]["sharpness"] == "inf"
    (tmp_path / "out" / "result.json").unlink()
    local = RunRecord(tmp_path / "out" / "local")
    local.config(local.read_config() | {"seed": 1})
    fails(quped("run", "--resume", "out", cwd=tmp_path), "holds another run", "cannot be continued")


def test_killed_between_two_configurations_a_run_can_begin_again(experiment: Path, tmp_path: Path) -> None:
    """Folders of other methods with nothing but a configuration are in nobody's way, unless it is not ours."""
    arguments = ("run", experiment, "--out", "out", "--quiet", "--workers", "0", "--set", "training.epochs=1")
    write = RunRecord.config

    def killed(record: RunRecord, values: dict[str, object]) -> None:
        if record.path == Path("out"):
            raise KeyboardInterrupt
        write(record, values)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunRecord, "config", killed)
        assert quped(*arguments, cwd=tmp_path).returncode == 130
    assert (tmp_path / "out" / "local" / "config.json").exists()
    theirs = tmp_path / "out" / "fedavg" / "config.json"
    ours = theirs.read_bytes()
    theirs.write_text('{"hidden_size": 768}')
    fails(quped(*arguments, cwd=tmp_path), "fedavg already holds a run")
    theirs.write_bytes(ours)
    assert quped(*arguments, cwd=tmp_path).returncode == 0


def test_checkpoints_beside_a_result_are_removed_on_resume(experiment: Path, tmp_path: Path) -> None:
    """Also those of a method that the first one is compared with: a kill may come between result and removal."""
    arguments = ("run", experiment, "--out", "out", "--quiet", "--workers", "0", "--set", "training.epochs=1")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpoints, "clear", lambda _: None)
        assert quped(*arguments, cwd=tmp_path).returncode == 0
    assert len(list((tmp_path / "out").rglob("round-*"))) == 3
    assert quped("run", "--resume", "out", "--quiet", cwd=tmp_path).returncode == 0
    assert not list((tmp_path / "out").rglob("*checkpoints*"))


def test_a_linked_folder_of_another_method_is_refused(experiment: Path, tmp_path: Path) -> None:
    """Nothing is written, or removed, where it leads."""
    (tmp_path / "out").mkdir()
    (tmp_path / "mine").mkdir()
    (tmp_path / "out" / "local").symlink_to(tmp_path / "mine")
    fails(quped("run", experiment, "--out", "out", cwd=tmp_path), "local is a symbolic link")
    assert not list((tmp_path / "mine").iterdir())


def test_damage_is_noted_and_repaired_on_resume(experiment: Path, tmp_path: Path) -> None:
    """A damaged line of the curves and a damaged checkpoint: two notes, and the result of an undisturbed run."""
    settings = ("compare=[]", "training.evaluate_every=1", "training.local_steps=1")
    changes = [word for setting in settings for word in ("--set", setting)]
    arguments: tuple[str | Path, ...] = ("run", experiment, "--workers", "0", *changes)
    assert quped(*arguments, "--out", "calm", "--quiet", cwd=tmp_path).returncode == 0
    save, rounds = Checkpoints.save, []

    def killed(*values: Any) -> None:
        save(*values)
        rounds.append(values[1])
        if len(rounds) == 6:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpoints, "save", killed)
        assert quped(*arguments, "--out", "out", "--checkpoint-every", "1", cwd=tmp_path).returncode == 130
    newest = sorted((tmp_path / "out" / "checkpoints").iterdir())[-1]
    newest.write_bytes(newest.read_bytes()[:-1] + b"\0")
    curves = tmp_path / "out" / "curves.jsonl"
    curves.write_text(curves.read_text().replace("round", "r0und"))
    done = quped("run", "--resume", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Resuming out, after round 5" in done.stdout
    assert done.stdout.count("is damaged") == 2
    results = [json.loads((tmp_path / name / "result.json").read_text()) for name in ("out", "calm")]
    assert results[0]["accuracy"] == results[1]["accuracy"]
    points = [(tmp_path / name / "curves.jsonl").read_text().splitlines() for name in ("out", "calm")]
    assert [json.loads(line)["accuracy"] for line in points[0]] == [json.loads(line)["accuracy"] for line in points[1]]
