"""What a federation of many clients costs on one machine: time, memory and disk for n clients, 50 of them in a round.

    python benchmarks/scale.py [--json] [--clients 1000 10000 100000] [--rounds 12]

Each federation is a program of its own, and all of them take turns: a round of each, then the next. QuPeD, CNN1 at 2
bits, 40 training samples and 10 test samples per client, 5 steps per round, a checkpoint after half of the rounds and
after the last one. Pixels are random, since only costs are measured.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import torch
from torch import nn

from quped import Client, Federation, QuPeD, Round, TrainingOptions
from quped._rng import generator
from quped.data import Subset, TensorSamples
from quped.models import cnn1
from quped.simulation import checkpoint, fit, loop

SHAPE, CLASSES, POOL = (1, 8, 8), 10, 2000
TRAIN, TEST, SAMPLED, STEPS, EVALUATED, WORKERS = 40, 10, 50, 5, 500, 2

Result = TypeVar("Result")


class Watch:
    """Takes the time of what happens."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {}
        self.cpu: dict[str, list[float]] = {}

    @contextmanager
    def timing(self, what: str) -> Iterator[None]:
        """Take the time of a block: by the clock, and of this process alone."""
        began, worked = time.perf_counter(), time.process_time()
        yield
        self.seconds.setdefault(what, []).append(time.perf_counter() - began)
        self.cpu.setdefault(what, []).append(time.process_time() - worked)

    @contextmanager
    def calls(self, what: str, owner: object, name: str) -> Iterator[None]:
        """Take the time of every call of a function within the block."""
        function: Callable[..., Result] = getattr(owner, name)

        def timed(*arguments: Any) -> Result:
            with self.timing(what):
                return function(*arguments)

        with mock.patch.object(owner, name, timed):
            yield


class Turns:
    """Lets the other federations have their turn before every round, and takes the time of ours."""

    def __init__(self) -> None:
        self.rounds: list[float] = []
        self.began = self.ended = 0.0
        self.disk = 0

    def wait(self) -> None:
        """Wait for a turn."""
        print("ready", flush=True)
        sys.stdin.readline()
        self.began = time.perf_counter()

    def after_round(self, round_: Round) -> None:
        """Note how long a round took; the first, in which workers start, and the last, with an evaluation, are not."""
        self.ended = time.perf_counter()
        if round_.is_last:
            self.disk = unnamed_bytes()
            return
        if round_.clock.round:
            self.rounds.append(self.ended - self.began)
        self.wait()


def model() -> nn.Module:
    """Return the network of every client."""
    return cnn1(SHAPE, CLASSES)


def make_clients(count: int) -> list[Client]:
    """Return clients whose samples are drawn from one pool."""
    rng = torch.Generator().manual_seed(0)
    pool = TensorSamples(torch.rand(POOL, *SHAPE, generator=rng), torch.randint(0, CLASSES, (POOL,), generator=rng))
    drawn = torch.from_numpy(generator(0, "scale").integers(0, POOL, (count, TRAIN + TEST)))
    return [
        Client(f"c{i:06d}", Subset(pool, row[:TRAIN]), Subset(pool, row[TRAIN:]), model, bits=2)
        for i, row in enumerate(drawn)
    ]


def train(count: int, rounds: int) -> dict[str, Any]:
    """Train a federation, one round in each turn; return what that cost."""
    turns, watch = Turns(), Watch()
    clients = make_clients(count)
    data = resident()
    with watch.timing("federation"):
        federation = Federation(clients, QuPeD(), model)
    options = TrainingOptions(
        epochs=rounds,
        local_steps=STEPS,
        steps_per_epoch=STEPS,
        batch_size=25,
        finetune_epochs=1,
        clients_per_round=SAMPLED,
        evaluate_every=rounds,
        evaluate_clients=EVALUATED,
    )
    with (
        tempfile.TemporaryDirectory() as folder,
        watch.calls("identity", fit, "identity"),
        watch.calls("evaluation", loop, "evaluate"),
        watch.calls("checkpoint", checkpoint.Checkpointer, "after_round"),
    ):
        turns.wait()
        result = federation.fit(
            options,
            workers=WORKERS,
            checkpoints=folder,
            checkpoint_every=rounds // 2,
            callbacks=[turns],
            progress=False,
        )
        returned = time.perf_counter()
        files = {file.name: file.stat().st_size for file in Path(folder).glob("*.safetensors")}
    with watch.timing("model"):
        result.models[clients[0].name]
    schedule = federation.setup(options).schedule
    per_client = {what: round(1e3 * watch.cpu[what][0] / count, 4) for what in ("federation", "identity")}
    return {
        "clients": count,
        "took_part": len({i for r in range(rounds) for i in loop.sample_clients(schedule, count, federation.seed, r)}),
        "round_seconds": turns.rounds,
        "federation_seconds": round(watch.seconds["federation"][0], 2),
        "identity_seconds": round(watch.seconds["identity"][0], 2),
        "cpu_ms_per_client": per_client | {"sum": round(sum(per_client.values()), 4)},
        "evaluation_ms_per_client": round(1e3 * watch.seconds["evaluation"][0] / EVALUATED, 3),
        "checkpoint_seconds": round(watch.seconds["checkpoint"][-1], 3),
        "checkpoint_bytes": sum(size for name, size in files.items() if f"{rounds - 1:09d}" in name),
        "checkpoints_bytes": sum(files.values()),
        "seconds_after_last_round": round(returned - turns.ended, 3),
        "model_ms": round(1e3 * watch.seconds["model"][0], 2),
        "tmpdir_mb": round(turns.disk / 1e6, 1),
        "memory_mb": {
            "data": round(data / 1e6),
            "main_on_top": round((peak(resource.RUSAGE_SELF) - data) / 1e6),
            "worker": round(peak(resource.RUSAGE_CHILDREN) / 1e6),
        },
    }


def unnamed_bytes() -> int:
    """Return the bytes on the disk of the files without a name that this process has open."""
    links = [link for link in Path("/proc/self/fd").iterdir() if os.path.realpath(link).endswith("(deleted)")]
    return sum(link.stat().st_blocks * 512 for link in links)


def resident() -> int:
    """Return the bytes of memory that this process has now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def peak(who: int) -> int:
    """Return the most bytes of memory that this process, or one of its children, ever had."""
    return resource.getrusage(who).ru_maxrss * 1024


def measure(counts: Sequence[int], rounds: int) -> list[dict[str, Any]]:
    """Train federations of these sizes side by side; return the costs of each, with its round beside the first's."""
    with ExitStack() as stack:
        programs = [stack.enter_context(start(count, rounds)) for count in counts]
        for program in programs:
            said(program)
        for turn in range(rounds):
            for program in programs:
                assert program.stdin is not None
                program.stdin.write("go\n")
                program.stdin.flush()
                if turn < rounds - 1:
                    said(program)
        costs = [json.loads(said(program)) for program in programs]
    first = costs[0]["round_seconds"]
    for cost in costs:
        ratios = [mine / other for mine, other in zip(cost["round_seconds"], first, strict=True)]
        cost["round_over_first"] = round(statistics.median(ratios), 3)
        cost["round_seconds"] = round(statistics.median(cost["round_seconds"]), 4)
    return costs


def start(count: int, rounds: int) -> "subprocess.Popen[str]":
    """Start the program of one federation."""
    command = [sys.executable, __file__, "--train", str(count), "--rounds", str(rounds)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def said(program: "subprocess.Popen[str]") -> str:
    """Return the next line of a program."""
    assert program.stdout is not None
    line = program.stdout.readline()
    if not line:
        raise SystemExit("A federation ended before its time: its error is above.")
    return line


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--json", action="store_true", help="print the costs as JSON")
    parser.add_argument("--train", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.train is not None:
        print(json.dumps(train(arguments.train, arguments.rounds)), flush=True)
        return
    costs = measure(arguments.clients, arguments.rounds)
    if arguments.json:
        print(json.dumps(costs, indent=2))
        return
    for name in costs[0]:
        print(f"{name:26s}", *(f"{cost[name]!s:>24}" for cost in costs))


if __name__ == "__main__":
    main()
