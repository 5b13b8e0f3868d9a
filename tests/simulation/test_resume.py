"""A run that was interrupted, however, ends as if it had not been."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.program import fails, quped
from helpers.small_federation import Net, Rounds, algorithms, assert_same, clients, samples, wide_net

from quped import Client, Federation, FitResult, InterruptedRunError, Local, Quantization, QuPeD, QupedError, Round
from quped.algorithms import AnyAlgorithm
from quped.records import Checkpoints
from quped.simulation.checkpoint import stop_signals

ROUNDS = 9


def other_weights() -> Net:
    """Return a network that starts elsewhere."""
    net = Net()
    net.middle.weight.data.mul_(2)
    return net


class StopError(Exception):
    """Stands for whatever ends a process between two rounds."""


def fit(
    algorithm: AnyAlgorithm, checkpoints: Checkpoints | None, workers: int, stop_after: int = ROUNDS, seed: int = 3
) -> FitResult:
    """Train for nine rounds with sampling, momentum and both phases; raise after a round if told."""

    def stop(round_: Round) -> None:
        if round_.clock.round == stop_after:
            raise StopError

    return Federation(clients(algorithm, 4), algorithm, Net, seed=seed).fit(
        epochs=6,
        finetune_epochs=2,
        local_steps=2,
        batch_size=8,
        momentum=0.9,
        clients_per_round=3,
        workers=workers,
        checkpoints=checkpoints,
        checkpoint_every=2,
        callbacks=[Rounds(stop)],
    )


@pytest.mark.parametrize("name", sorted(algorithms()))
def test_resumed_equals_never_interrupted(name: str, tmp_path: Path) -> None:
    """For every algorithm: stopped in both phases, continued by the other engine each time, the same bits."""
    algorithm, checkpoints = algorithms()[name](), Checkpoints(tmp_path)
    whole = fit(algorithm, None, workers=0)
    assert whole.rounds == ROUNDS
    for stop_after, workers in ((0, 0), (2, 2), (6, 0)):
        with pytest.raises(StopError):
            fit(algorithm, checkpoints, workers, stop_after)
    assert checkpoints.rounds() == 6
    assert_same(fit(algorithm, checkpoints, workers=2), whole)


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    """The error says what differs."""
    with pytest.raises(StopError):
        fit(QuPeD(), Checkpoints(tmp_path), 0, stop_after=4)
    with pytest.raises(QupedError, match="of a run with another seed: 3 instead of 4"):
        fit(QuPeD(), Checkpoints(tmp_path), 0, seed=4)
    with pytest.raises(QupedError, match=r"another hyperparameters\.lambda_p: 0\.25 instead of 0\.5"):
        fit(QuPeD(lambda_p=0.5), Checkpoints(tmp_path), 0)
    with pytest.raises(QupedError, match=r"another hyperparameters\.quantization\.eta2: 0\.0001 instead of 0\.01"):
        fit(QuPeD(quantization=Quantization(eta2=0.01)), Checkpoints(tmp_path), 0)
    with pytest.raises(QupedError, match="another algorithm: QuPeD instead of Local"):
        fit(Local(), Checkpoints(tmp_path), 0)


def test_a_finished_run_is_not_run_again(tmp_path: Path) -> None:
    """A checkpoint is left after the last round, whichever it is: nothing is computed, and the result is the same."""
    whole = fit(QuPeD(), Checkpoints(tmp_path), 0)
    assert ROUNDS % 2  # a checkpoint every 2 rounds would miss it
    kept = Checkpoints(tmp_path).files()
    (tmp_path / "round-000000001.safetensors").touch()  # of a process that was killed before it removed it
    assert_same(fit(QuPeD(), Checkpoints(tmp_path), 0, stop_after=ROUNDS - 1), whole)
    assert Checkpoints(tmp_path).files() == kept


def test_an_interruption_is_no_error_that_a_program_recovers_from() -> None:
    """Who tries the next seed after a `QupedError` does not do so after Ctrl-C."""
    assert not issubclass(InterruptedRunError, Exception)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"init_centers": "kmeans"}, "client 'a': .* centers by range, .* instead of .* centers by kmeans"),
        ({"per_channel": True}, "client 'a': .* instead of .* per channel"),
        ({"quantize": ["last.weight"]}, "client 'a': .* bits: middle.weight 2, .* instead of .* bits: last.weight 2"),
        ({"model": wide_net}, "client 'a': SmallNet with 163 parameters .* instead of SmallNet with 291 parameters"),
        ({"train": samples(7, 30)}, "training.batch_size: 10 instead of 15"),
        ({"train": (samples(0, 20)[0], samples(0, 20)[1].flip(0))}, "client 'a': .* of 20 samples"),
        ({"train": (100 * samples(0, 20)[0], samples(0, 20)[1])}, "client 'a': .* of 20 samples"),
        ({"test": samples(2, 12)}, "client 'a': .* tested on"),
        ({"model": other_weights}, "client 'a': .* weights .* instead of .* weights"),
        ({"name": "b"}, "client 'b': none instead of"),
    ],
)
def test_a_checkpoint_of_other_clients_is_refused(
    change: dict[str, Any], what: str, workers: int, tmp_path: Path
) -> None:
    """Also if states would fit; and before anything is done with a state that would not."""
    client = Client("a", train=samples(0, 20), test=samples(1, 12), model=Net, bits=2)
    options: dict[str, Any] = {"steps_per_epoch": 2, "checkpoints": tmp_path, "checkpoint_every": 1, "epochs": 2}
    Federation([client], QuPeD(), Net).fit(**options, workers=0)
    with pytest.raises(QupedError, match=f"is of a run with another {what}.*Remove its round"):
        Federation([replace(client, **change)], QuPeD(), Net).fit(**options, workers=workers)
    with pytest.raises(QupedError, match=r"another training.batch_size: 10 instead of 5"):
        Federation([client], QuPeD(), Net).fit(**options, batch_size=5, workers=workers)
    with pytest.raises(QupedError, match="another global network"):
        Federation([client], QuPeD(), wide_net).fit(**options, workers=workers)


def test_a_folder_that_cannot_be_used_is_told_at_once(tmp_path: Path) -> None:
    """Not when the first checkpoint is due."""
    (tmp_path / "file").write_text("")
    seen = Rounds()
    client = Client("a", train=samples(0, 20), test=samples(1, 12), model=Net)
    with pytest.raises(QupedError, match="file cannot be used"):
        Federation([client], QuPeD()).fit(checkpoints=tmp_path / "file", callbacks=[seen], workers=0)
    assert not seen.rounds


def test_clients_of_one_kind_share_tensors_in_a_checkpoint(tmp_path: Path) -> None:
    """So the file of a large federation has no more of them than that of a small one."""
    counts = []
    for count in (2, 40):
        members = [Client(f"c{i}", samples(i, 9), samples(1, 5), Net, bits=2 + i % 2) for i in range(count)]
        folder = tmp_path / str(count)
        Federation(members, QuPeD(), Net).fit(epochs=2, checkpoints=folder, checkpoint_every=1, workers=0)
        found = Checkpoints(folder).latest()
        assert found is not None
        counts.append(len(found[0]))
    assert counts[0] == counts[1]


def test_time_spent_counts_from_the_checkpoint_on(tmp_path: Path) -> None:
    """A resumed run knows how long it took before, evaluated or not."""
    members = clients(QuPeD(), 2)

    def stop(round_: Round) -> None:
        if round_.clock.round == 0:
            time.sleep(0.4)
        if round_.clock.round == 2:
            raise StopError

    options: dict[str, Any] = {"epochs": 4, "local_steps": 1, "evaluate_every": 4, "workers": 0}
    with pytest.raises(StopError):
        Federation(members, QuPeD(), Net).fit(
            **options, checkpoints=tmp_path, checkpoint_every=2, callbacks=[Rounds(stop)]
        )
    first = Checkpoints(tmp_path).latest()
    assert first is not None
    spent = first[1]["about"]["seconds"]
    resumed = Federation(members, QuPeD(), Net).fit(**options, checkpoints=tmp_path)
    assert resumed.seconds > spent > 0.4


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_signal_stops_after_the_round_with_a_checkpoint(tmp_path: Path, number: signal.Signals, workers: int) -> None:
    """The round that is being computed is finished and kept; handlers are as they were."""
    before = signal.getsignal(number)
    timers = []

    def later(round_: Round) -> None:
        if round_.clock.round == 1:
            timers.append(threading.Timer(0.02, os.kill, (os.getpid(), number)))
            timers[0].start()

    federation = Federation(clients(QuPeD(), 4), QuPeD(), Net)
    with pytest.raises(InterruptedRunError, match=f"Stopped by {number.name} after round") as stopped:
        federation.fit(epochs=10_000, workers=workers, checkpoints=Checkpoints(tmp_path), callbacks=[Rounds(later)])
    timers[0].join()
    assert stopped.value.signal_number == number
    assert f"after round {Checkpoints(tmp_path).rounds()}," in str(stopped.value)
    assert Checkpoints(tmp_path).rounds() >= 2
    assert signal.getsignal(number) is before


def interrupt(times: int, seen: list[int | None]) -> None:
    """Raise SIGINT so often in a block that holds it back; keep what the block was told before, and after each."""
    with stop_signals() as stop:
        seen.append(stop())
        for _ in range(times):
            signal.raise_signal(signal.SIGINT)
            seen.append(stop())


def test_the_second_interrupt_is_obeyed_at_once() -> None:
    """The first is noted; who presses Ctrl-C again does not want to wait for the round."""
    seen: list[int | None] = []
    with pytest.raises(KeyboardInterrupt):
        interrupt(2, seen)
    assert seen == [None, signal.SIGINT]


def test_a_signal_after_the_last_round_is_not_forgotten() -> None:
    """It comes again when the block is over, or a list of runs would go on with the next one."""
    seen: list[int | None] = []
    # Where tests run in the background, it is ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            interrupt(1, seen)
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == [None, signal.SIGINT]


def test_in_another_thread_a_run_has_checkpoints_too(tmp_path: Path) -> None:
    """Signals are left to the main thread."""
    found: list[FitResult] = []
    thread = threading.Thread(target=lambda: found.append(fit(QuPeD(), Checkpoints(tmp_path), 0)))
    thread.start()
    thread.join()
    assert found[0].rounds == ROUNDS
    assert Checkpoints(tmp_path).rounds() == ROUNDS


EXPERIMENT = """
[data]
name = "digits"
partition = "classes=5"

[[clients]]
count = 4
model = { name = "mlp", hidden = [16, 8] }
bits = 1

[training]
epochs = 24
local_steps = 4
batch_size = 60
evaluate_every = 2

[[compare]]
algorithm = { name = "fedavg" }
"""


def start(*arguments: str, cwd: Path) -> subprocess.Popen[bytes]:
    """Start the program in a process group of its own."""
    program = str(Path(sys.executable).with_name("quped"))
    return subprocess.Popen([program, "run", *arguments, "--quiet"], cwd=cwd, start_new_session=True)


def without_times(path: Path) -> list[dict[str, object]]:
    """Read a record's files but for what a clock told."""
    values = [json.loads(line) for line in (path / "curves.jsonl").read_text().splitlines()]
    result = json.loads((path / "result.json").read_text())
    del result["sha256"], result["files"]["curves.jsonl"]
    for value in (*values, result, *result.get("comparison", [])):
        for key in ("seconds", "slowest", "median_seconds"):
            value.pop(key, None)
    return [*values, result]


@pytest.mark.slow
def test_killed_at_random_moments_the_record_is_the_same(tmp_path: Path) -> None:
    """SIGKILL to the program and its workers, soon after they got on; after each, quped run --resume."""
    (tmp_path / "mine.toml").write_text(EXPERIMENT)
    assert start("mine.toml", "--out", "calm", cwd=tmp_path).wait(120) == 0
    rng = random.Random(0)  # moments, not mathematics
    process = start("mine.toml", "--out", "shaken", "--checkpoint-every", "1", cwd=tmp_path)
    for _ in range(3):
        before = sorted((tmp_path / "shaken").rglob("round-*.safetensors"))
        while sorted((tmp_path / "shaken").rglob("round-*.safetensors")) == before and process.poll() is None:
            time.sleep(0.01)
        time.sleep(rng.uniform(0.0, 0.2))
        assert process.poll() is None, "it ended before it could be killed"
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process = start("--resume", "shaken", "--checkpoint-every", "1", cwd=tmp_path)
    assert process.wait(120) == 0
    for record in (".", "fedavg"):
        assert without_times(tmp_path / "shaken" / record) == without_times(tmp_path / "calm" / record)
    assert not list((tmp_path / "shaken").rglob("*checkpoints*"))


def test_resume_takes_everything_from_the_record(tmp_path: Path) -> None:
    """Other options are refused, and a folder without a run is named."""
    fails(quped("run", "--resume", "nowhere", cwd=tmp_path), "holds no run: there is no config.json")
    fails(quped("run", "--resume", "nowhere", "--seed", "1", cwd=tmp_path), "give no other options of it")
