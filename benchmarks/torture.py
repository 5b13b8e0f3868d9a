"""Does harm to runs and to the files that they trust, and counts what goes wrong.

    python benchmarks/torture.py --minutes 60 --seed 0 --json

Five kinds of harm:

- *files*: a file that quped reads is changed at random (bits, blocks, length, keys and values). Its reader must return
  what was written, or refuse with one sentence.
- *kills*: `run`, `train`, `paper run`, `export` and `fit(checkpoints=)` are killed at every file operation in turn, and
  then at random operations and moments: the program, a worker, or all of them. Continued, a run must end bit for bit as
  if nothing had happened.
- *disks*: the disk of a run, or that of its temporary files, is full. The run must say so, and continue when it is not.
- *resumes*: the files of an interrupted run are changed, and it is continued. It must end as an undisturbed run, or
  refuse with one sentence.
- *lies*: a client returns numbers or tensors that nobody can use. The run must name it, or go on without it.

The trials follow from the seed; a failure names the trial, which `--only NAME:NUMBER` repeats.
"""

import argparse
import base64
import contextlib
import ctypes
import dataclasses
import gzip
import hashlib
import importlib
import io
import itertools
import json
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from quped import Client, FedAvg, Federation, QuPeD, load, save
from quped._digest import tensor_digest
from quped._native import build, codebook
from quped.algorithms import Global
from quped.cli import main as command_line
from quped.data.datasets import REMOTE
from quped.data.download import store
from quped.data.download.sources import read_members
from quped.errors import QupedError
from quped.experiments.run import Population
from quped.experiments.schema import load as load_experiment
from quped.models import mlp
from quped.paper.records import find_record
from quped.paper.runs import PaperRun, paper_runs
from quped.paper.table import load_table
from quped.records import Checkpoints, RunRecord, write_json
from quped.records.checkpoints import PARTS
from quped.records.checkpoints import read as read_checkpoint

PATIENCE = 120.0
"""Seconds after which a run hangs: of computing, or without any. On a busy machine it may take longer otherwise."""

EXPERIMENT = """
[data]
name = "digits"
partition = "classes=5"

[[clients]]
count = 2
model = { name = "mlp", hidden = [16, 8] }
bits = 1

[training]
epochs = 3
local_steps = 2
batch_size = 360

[algorithm]
warmup_epochs = 0

[[compare]]
algorithm = { name = "fedavg" }
"""

TABLE = """
title = "A small table"
source = "nowhere"

[rows]
quped-2bit = { paper.digits = [90.0, 0.5] }
fedavg = { paper.digits = [80.0, 0.25], training.lr = 0.05 }

[columns.digits]
title = "Digits"
data = { name = "digits", partition = "iid" }
clients = [{ count = 2, model = { name = "mlp", hidden = [16, 8] } }]

[training]
epochs = 2
finetune_epochs = 1
local_steps = 2
batch_size = 240

[quantization.lam]
2 = { rate = 5e-6 }
"""


class WrongError(Exception):
    """A result that differs from the one of an undisturbed run."""


class LitterError(Exception):
    """Files or processes that stay behind."""


class HangError(Exception):
    """A process that does not end."""


class CrashError(Exception):
    """A traceback instead of a sentence."""


FAILURES = {
    WrongError: "wrong",
    LitterError: "litter",
    HangError: "hangs",
    CrashError: "tracebacks",
}

Trial = Callable[[int, random.Random], bool]
"""Does harm number so-and-so. Returns whether it was refused; raises one of the above if something went wrong."""


# Harm to bytes


def harmed(content: bytes, rng: random.Random) -> bytes:
    """Return a file's content after an accident."""
    data = bytearray(content)
    place, length = rng.randrange(len(data) or 1), rng.choice([1, 4, 64, 512])
    kind = rng.choice(["bit", "bit", "bits", "cut", "zeros", "noise", "lost", "twice", "more", "empty"])
    if not data or kind == "more":
        return bytes(data) + rng.randbytes(length)
    match kind:
        case "bit":
            data[place] ^= 1 << rng.randrange(8)
        case "bits":
            for _ in range(length):
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        case "cut":
            del data[place:]
        case "zeros":
            data[place : place + length] = bytes(len(data[place : place + length]))
        case "noise":
            data[place : place + length] = rng.randbytes(len(data[place : place + length]))
        case "lost":
            del data[place : place + length]
        case "twice":
            data[place:place] = data[place : place + length]
        case "empty":
            data.clear()
    return bytes(data)


ODD_VALUES: tuple[Any, ...] = (None, True, -1, 0, 10**400, 1e308, "", "x" * 5000, "\ud800", [], {}, [[[]]], "nan")


def harmed_json(content: bytes, rng: random.Random) -> bytes:
    """Return the content of a JSON file in which a value is odd, missing or in another's place; or any bytes."""
    kind = rng.choice(["bytes", "value", "key", "swap", "deep", "digits"])
    if kind == "bytes":
        return harmed(content, rng)
    values = json.loads(content)
    places = list(places_in(values))
    holder, key = rng.choice(places)
    match kind:
        case "value":
            holder[key] = rng.choice(ODD_VALUES)
        case "key":
            del holder[key]
        case "swap":
            other, place = rng.choice(places)
            holder[key], other[place] = other[place], holder[key]
        case "deep":
            return b'{"a":' * 100_000
        case "digits":
            holder[key] = "DIGITS"
    with contextlib.suppress(ValueError, RecursionError):  # a value may now hold itself
        return json.dumps(values).encode().replace(b'"DIGITS"', b"9" * 5000)
    return b"{}"


def harmed_toml(content: bytes, rng: random.Random) -> bytes:
    """Return the content of a TOML file in which a value is odd; or any bytes."""
    if rng.random() < 0.5:
        return harmed(content, rng)
    odd = rng.choice(['""', "[]", "{}", "-1", "0", "true", "nan", "1e308", "1000000000", "1" + "0" * 400, "9" * 5000])
    value = rng.choice(list(re.finditer(rb"(?<== )[^{\s][^\n,}]*", content)))
    return content[: value.start()] + odd.encode() + content[value.end() :]


def places_in(values: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every list or dictionary with each of its keys."""
    for key, value in list(values.items() if isinstance(values, dict) else enumerate(values)):
        yield values, key
        if isinstance(value, dict | list):
            yield from places_in(value)


# Files


def file_trial(file: Path, read: Callable[[], Any], harm: Callable[[bytes, random.Random], bytes] = harmed) -> Trial:
    """Return a trial that changes a file and reads it again; the reader's result must be as before, or refused."""
    original = file.read_bytes()
    expected = read()

    def trial(_: int, rng: random.Random) -> bool:
        changed = harm(original, rng)
        file.write_bytes(changed)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)
                found = read()
        except QupedError:
            return True
        finally:
            file.write_bytes(original)
        if found != expected:
            raise WrongError(f"{file.name} was read with another content")
        return False

    return trial


def make_file_trials(folder: Path) -> dict[str, Trial]:
    """Return trials for every kind of file that is read again."""
    checkpoints = Checkpoints(folder / "checkpoints")
    name, digest = checkpoints.save_part("clients", {"c": torch.randn(9, 5)}, {"groups": [[0, 1]]})
    tensors = {"a": torch.randn(20, 7), "b": torch.arange(5)}
    checkpoints.save(3, tensors, {"round": 3, "about": {"curve": [1.5]}}, {name: digest})

    def checkpoint() -> Any:
        latest = checkpoints.latest()
        part, about = checkpoints.part(name)
        return None if latest is None else (tensor_digest(latest[0] | part), latest[1], about)

    record = RunRecord.create(folder / "record")
    record.config({"format": 2, "preset": "x", "seed": 3, "config": {"training": {"lr": 0.1}, "compare": [1, 2]}})
    record.point({"round": 0, "accuracy": {"a": 0.25, "b": 0.75}})
    record.result({"accuracy": {"mean": 0.5, "per_client": {"a": 0.25, "b": 0.75}}, "seconds": 1.5})

    os.environ["QUPED_CACHE"] = str(folder)
    data = store.stored_file("mnist")
    store.write(data, small_images(), "torture", folder)

    def cached() -> str:
        store.VERIFIED.clear()
        dataset = REMOTE["mnist"].load()
        inputs = dataset.train.batch(torch.arange(10)).inputs[0]
        return tensor_digest({"x": inputs, "train": dataset.train.labels, "test": dataset.test.labels})

    archive = folder / "raw.tgz"
    with contextlib.redirect_stdout(io.StringIO()):
        (folder / "member").write_bytes(random.Random(0).randbytes(20_000))
        shutil.make_archive(str(folder / "raw"), "gztar", folder, "member")
    (folder / "raw.tar.gz").rename(archive)

    model = folder / "model.quped"
    network = small_net()
    middle = network.get_parameter("layers.2.weight")
    middle.data = 0.25 * middle.data.sign()
    save(network, model, bits=1)

    toml = folder / "mine.toml"
    toml.write_text(EXPERIMENT)

    def experiment() -> bool:
        asked = load_experiment(toml)
        for method in asked.methods:
            Population(asked, 0).federation(method.algorithm).setup(method.training)
        return True  # whatever it says is what the user wrote

    table = folder / "small.toml"
    table.write_text(TABLE)
    run, *_ = paper_runs(load_table(table), seeds=1)
    write_paper_record(folder / run.path, run)

    def tabulated() -> bool:
        return all(run.config for run in paper_runs(load_table(table)))

    trials = {
        "checkpoint": file_trial(checkpoints.files()[0], checkpoint),
        "part": file_trial(checkpoints.folder / name, checkpoint),
        "config": file_trial(record.path / "config.json", record.read_config, harmed_json),
        "result": file_trial(record.path / "result.json", record.finished, harmed_json),
        "curves": file_trial(record.path / "curves.jsonl", record.finished),
        "paper": file_trial(folder / run.path, lambda: find_record(run, folder), harmed_json),
        "table": file_trial(table, tabulated, harmed_toml),
        "data": file_trial(data, cached),
        "model": file_trial(model, lambda: tensor_digest(load(model, small_net()).state_dict())),
        "archive": file_trial(archive, lambda: read_members(archive, ["member"])),
        "experiment": file_trial(toml, experiment, harmed_toml),
    }
    if build.library("codebook", (("CENTERS", 2),), codebook.SIGNATURES) is not None:
        (library,) = (folder / "native").glob("*.so")
        copy = folder / "copy" / library.name
        copy.parent.mkdir()
        for file in library.parent.iterdir():
            shutil.copy(file, copy.parent)
        trials["library"] = lambda _, rng: library_trial(copy, rng)
    return trials


def write_paper_record(path: Path, run: PaperRun) -> None:
    """Write the record of a run of the small table."""
    path.parent.mkdir(parents=True)
    names = {"table": run.table.name, "column": run.column.name, "method": run.row.name, "seed": run.seed}
    result = {"accuracy": {"mean": 0.5}, "curve": [{"epoch": 0, "accuracy": 0.5, "loss": 1.0}], "seconds": 1.5}
    length = {"epochs": 2, "full_epochs": 2, "shortened": False}
    about = {"format": 2, "date": "2026-01-02", "versions": {"torch": "2"}, "config": run.config}
    write_json(path, names | result | length | about)


def library_trial(library: Path, rng: random.Random) -> bool:
    """Change a compiled library or its digest: it must not be trusted any more."""
    file = rng.choice([library, build.digest_file(library)])
    original = file.read_bytes()
    changed = harmed(original, rng)
    file.write_bytes(changed)
    try:
        if changed != original and build.is_trusted(library):
            raise WrongError(f"a damaged {file.suffix} is trusted")
    finally:
        file.write_bytes(original)
    return True


def small_images() -> dict[str, torch.Tensor]:
    """Return a data set in the form of MNIST."""
    generator = torch.Generator().manual_seed(0)
    return {
        f"{half}_{what}": torch.randint(0, high, shape, generator=generator, dtype=dtype)
        for half, count in (("train", 20), ("test", 10))
        for what, high, shape, dtype in (
            ("images", 256, (count, 1, 28, 28), torch.uint8),
            ("labels", 10, (count,), torch.int64),
        )
    }


# Lies

LIES: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    lambda w: w * torch.nan,
    lambda w: w / 0,
    lambda w: torch.full_like(w, 3e38),
    lambda w: w.mean(),
    lambda w: w[:1],
    lambda w: w[None],
    lambda w: w.double(),
    lambda w: w.long(),
)


MARK = 7.0
"""What the last input of a client that lies always is."""


@dataclass(frozen=True)
class Liar(FedAvg):
    """FedAvg with a client that spoils one tensor in one round."""

    lie: int = 0
    when: int = 0
    tensor: int = 0

    def finish(self, spec: Any, work: Any, batch: Any, clock: Any) -> Any:
        personal, payload = super().finish(spec, work, batch, clock)
        if clock.round != self.when or batch.inputs[0][0, -1] != MARK:
            return personal, payload
        name = list(payload.w.params)[self.tensor]
        params = {**payload.w.params, name: LIES[self.lie](payload.w.params[name])}
        return personal, Global(payload.w._replace(params=params))


def lie(_: int, rng: random.Random) -> bool:
    """Let a client lie: it must be named, in the round in which it lied, or be skipped by every engine alike."""
    liar = Liar(rng.randrange(len(LIES)), rng.randrange(6), rng.randrange(4))
    members = [dataclasses.replace(client, bits=32) for client in small_clients()]
    culprit = rng.choice(members)
    culprit.train[0][:, -1] = MARK

    def learn(workers: int, bad_updates: str) -> str:
        options = {"epochs": 3, "local_steps": 2, "batch_size": 10, "workers": workers, "bad_updates": bad_updates}
        result = Federation(members, liar, small_net).fit(**options, progress=False)
        return tensor_digest({f"{name} {k}": v for name, m in result.models.items() for k, v in m.state.params.items()})

    named = f"client '{culprit.name}' in round {liar.when + 1} "
    if rng.random() < 0.5:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            digests = {learn(workers, "skip") for workers in (0, 2)}
        if len(digests) > 1 or len(told) < 2 or not all(named in str(note.message) for note in told):
            raise WrongError(f"{liar} is not skipped alike, or not named: {[str(note.message) for note in told]}")
        return False
    try:
        learn(rng.choice([0, 0, 2]), "stop")
    except QupedError as error:
        if named not in str(error):
            raise WrongError(f"another one is blamed than {named}: {error}") from error
        return True
    raise WrongError(f"{liar} is believed")


# Runs


class Child:
    """A copy of this process that runs a command in a session of its own."""

    def __init__(self, folder: Path, work: Callable[[], None]) -> None:
        self._output = folder / "output.txt"
        self.pid = os.fork()
        if self.pid == 0:
            os.setsid()
            tempfile.tempdir = str(folder / "tmp")
            code = 1
            try:
                with self._output.open("wb", buffering=0) as file:
                    os.dup2(file.fileno(), 1)
                    os.dup2(file.fileno(), 2)
                sys.stdout = sys.stderr = os.fdopen(2, "w", closefd=False)
                work()
                code = 0
            except SystemExit as stop:
                code = stop.code if isinstance(stop.code, int) else 1
            except QupedError as error:
                print(f"error: {error}")
                code = 2
            except BaseException:
                traceback.print_exc()
            finally:
                with contextlib.suppress(OSError):
                    sys.stdout.flush()
                os._exit(code)

    def wait(self, seconds: float) -> int | None:
        """Return the exit code, negative for a signal; None if it is still running after so many seconds."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._check_output()
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.005)
        return None

    def finish(self) -> int:
        """Wait for the end; a process that takes too long hangs."""
        seen, since = 0.0, time.monotonic()
        while (code := self.wait(1.0)) is None:
            spent = self.computed()
            if spent > seen + 0.02:
                seen, since = spent, time.monotonic()
            if spent > PATIENCE or time.monotonic() > since + PATIENCE:
                os.killpg(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
                raise HangError(f"still running after {spent:.0f} s of computing")
        return code

    def computed(self) -> float:
        """Return the seconds that its processes have computed so far."""
        ticks = 0
        for pid in self.members():
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                ticks += sum(map(int, words[11:15]))
        return ticks / os.sysconf("SC_CLK_TCK")

    def members(self) -> list[int]:
        """Return the processes of its session that are running, itself included."""
        found = []
        for entry in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                words = entry.read_text().rpartition(")")[2].split()
                if int(words[3]) == self.pid and words[0] != "Z":
                    found.append(int(entry.parent.name))
        return found

    def _check_output(self) -> None:
        text = self._output.read_text(errors="replace")
        if any(sign in text for sign in ("Traceback", "bug of quped", "Exception ignored")):
            raise CrashError(text[-2000:])


def is_fork(pid: int) -> bool:
    """Say whether a process runs this program: a worker does, and git or a compiler does not."""
    try:
        return Path(f"/proc/{pid}/exe").readlink() == Path("/proc/self/exe").readlink()
    except OSError:
        return False


def call(*arguments: str | Path) -> None:
    """Run the command line in this process."""
    sys.argv = ["quped", *map(str, arguments)]
    command_line()


@dataclass(frozen=True)
class Program:
    """A program that can be interrupted and continued."""

    name: str
    begin: Callable[[Path, int], None]
    resume: Callable[[Path, int], None]
    uses_workers: bool = True

    def start(self, folder: Path, workers: int) -> None:
        """Begin, or continue if there is something to continue: what a person does after a crash."""
        begun = (folder / "out" / "config.json").exists()
        (self.resume if begun else self.begin)(folder, workers)


def run_options(workers: int) -> tuple[str, ...]:
    return ("--quiet", "--workers", str(workers), "--checkpoint-every", "1")


def fit(folder: Path, workers: int) -> None:
    """Train by the Python interface, with checkpoints, and write the digest of what came out."""
    result = Federation(small_clients(), QuPeD(warmup_epochs=0), small_net).fit(
        epochs=3, local_steps=2, batch_size=10, workers=workers, checkpoints=folder / "out", checkpoint_every=1
    )
    tensors = {f"{name} {key}": v for name, model in result.models.items() for key, v in model.state.params.items()}
    (folder / "digest").write_text(tensor_digest(tensors) + json.dumps([vars(p)["accuracy"] for p in result.curve]))


def small_clients() -> list[Client]:
    generator = torch.Generator().manual_seed(0)
    clients = []
    for name in "abc":
        inputs = torch.randn(40, 6, generator=generator)
        labels = (inputs[:, 0] > 0).long()
        clients.append(Client(name, train=(inputs, labels), test=(inputs[:9], labels[:9]), model=small_net, bits=2))
    return clients


def small_net() -> torch.nn.Module:
    return mlp((6,), 2, hidden=(8, 8))


def tabulate(folder: Path, workers: int) -> None:
    """Run a table of the paper's kind."""
    call("paper", "run", folder / "small.toml", "--out", folder / "out", "--seeds", "1", "--workers", str(workers))


def make_programs(finished: Path) -> tuple[Program, ...]:
    """Return the programs to kill; one of them exports the models of a finished run."""

    def export(folder: Path, _: int) -> None:
        call("export", finished, "--format", "html", "--out", folder / "out")

    return (
        Program(
            "run",
            lambda folder, workers: call("run", folder / "mine.toml", "--out", folder / "out", *run_options(workers)),
            lambda folder, workers: call("run", "--resume", folder / "out", *run_options(workers)),
        ),
        Program(
            "train",
            lambda folder, _: call("train", "mlp", "--epochs", "3", "--batch-size", "600", "--out", folder / "out"),
            lambda folder, _: call("train", "--resume", folder / "out"),
            uses_workers=False,
        ),
        Program("paper", tabulate, tabulate),
        Program("fit", fit, fit),
        Program("export", export, export, uses_workers=False),
    )


PRELOADED = ("matplotlib.backends.backend_agg", "matplotlib.figure", "sklearn.datasets", "torch._dynamo")
PRELOADED += ("torch.fx.experimental.symbolic_shapes", *(f"quped.cli.{name}" for name in ("run", "train", "paper")))
"""Modules that children would import: this takes longer than their runs."""

CLOCK = {"seconds", "median_seconds", "slowest", "images_per_second", "threads", "date", "sha256", "files", "folder"}
"""What differs between equal runs."""


def outcome(folder: Path) -> dict[str, str]:
    """Return a digest of every file that a run left, without what a clock told, and the parts of checkpoints.

    Which checkpoint wrote a part that several use depends on the kills.
    """
    found, parts = {}, set[str]()
    for file in folder.rglob("round-*"):
        with contextlib.suppress(QupedError, OSError, SafetensorError, ValueError):  # it may be harmed
            parts |= read_checkpoint(file)[1].get(PARTS, {}).keys()
    for file in sorted(path for path in folder.rglob("*") if path.is_file() and path.name not in parts):
        content = file.read_bytes()
        if file.suffix in (".json", ".jsonl"):
            lines = [content] if file.suffix == ".json" else content.splitlines()
            content = b"".join(map(comparable, lines))
        if file.name == "report.html":
            content = COMPRESSED.sub(lambda data: comparable(gzip.decompress(base64.b64decode(data[0]))), content)
        timed = file.suffix in (".png", ".md") or file.name.startswith("round-")  # these hold seconds, too
        found[str(file.relative_to(folder))] = "" if timed else hashlib.sha256(content).hexdigest()
    return found


COMPRESSED = re.compile(rb"H4sI[A-Za-z0-9+/=]+")
"""The data of a report: JSON, compressed by gzip, in base64."""


def comparable(content: bytes) -> bytes:
    """Return JSON without what a clock told."""
    return json.dumps(timeless(json.loads(content))).encode()


def timeless(values: Any) -> Any:
    """Return values without what a clock told."""
    if isinstance(values, dict):
        return {key: timeless(value) for key, value in values.items() if key not in CLOCK}
    return [timeless(value) for value in values] if isinstance(values, list) else values


STRIDE = 1009
"""From one file operation to the next one that a run is killed at: a prime, so that all have their turn."""


@dataclass
class Calm:
    """A run that nothing happens to."""

    outcome: dict[str, str]
    operations: int
    """Its file operations."""
    seconds: float


class Runs:
    """Trials with whole runs, compared with one that nothing happened to."""

    def __init__(self, folder: Path) -> None:
        for name in PRELOADED:
            importlib.import_module(name)
        self._folder = folder
        self._calm: dict[str, Calm] = {}
        self.kills: Counter[str] = Counter()
        """By what died: at a file operation, or at any moment the program, a worker, or all of them."""
        finished = folder / "finished"
        self.programs = make_programs(finished)
        for program in self.programs:
            place = self._place()
            counter = place.parent / "operations"
            began = time.monotonic()
            child = Child(place.parent, lambda p=program, f=place, c=counter: (count_operations(c), p.begin(f, 0)))
            if child.finish():
                raise SystemExit((place.parent / "output.txt").read_text())
            self._calm[program.name] = Calm(outcome(place), len(counter.read_text()), time.monotonic() - began)
            if program.name == "run":
                shutil.move(place / "out", finished)
            shutil.rmtree(place.parent)
        self._can_mount = in_fork(lambda: mount_disk(folder, 64_000))

    @property
    def operations(self) -> dict[str, int]:
        """The file operations of each program."""
        return {name: calm.operations for name, calm in self._calm.items()}

    def kill(self, program: Program, number: int, rng: random.Random) -> bool:
        """Kill a run at one file operation after the other, and a few times more before it may end."""
        place = self._place()
        workers = rng.choice([0, 2]) if program.uses_workers else 0
        operations = self._calm[program.name].operations
        self._kill_at(program, place, workers, number * STRIDE % operations)
        for _ in range(rng.randint(0, 4)):
            kind = rng.choice(["operation", "operation", "group", "program", *["worker"] * workers])
            if kind == "operation":
                self._kill_at(program, place, workers, rng.randrange(operations // 2))
            else:
                self._kill_in_time(program, place, workers, kind, rng)
        self._end(program, place, workers)
        return False

    def disk(self, number: int, rng: random.Random) -> bool:
        """Let the disk of a run, or that of its temporary files, be full, and then not any more."""
        program, place = self.programs[number % len(self.programs)], self._place()
        workers = rng.choice([0, 2]) if program.uses_workers else 0
        size = int(10 ** rng.uniform(3.6, 5.3))
        if not self._can_mount:
            self._fill(program, place, workers, lambda: limit_files(size))
            self._end(program, place, workers)
            return False
        disk = rng.choice([place, place, place.parent / "tmp"])

        def trial() -> bool:
            mount_disk(disk, size)
            self._furnish(place)
            self._fill(program, place, workers, lambda: None)
            mount_disk(disk, 100_000_000, again=True)
            self._end(program, place, workers)
            return False

        in_fork(trial)
        shutil.rmtree(place.parent, ignore_errors=True)
        return False

    def _fill(self, program: Program, place: Path, workers: int, prepare: Callable[[], None]) -> None:
        code = Child(place.parent, lambda: (prepare(), program.start(place, workers))).finish()
        if code not in (0, 2):
            raise WrongError(f"{program.name} ends with {code} when the disk is full")

    def resume(self, number: int, rng: random.Random) -> bool:
        """Change a file of an interrupted run."""
        program, place = self.programs[number % len(self.programs)], self._place()
        operations = self._calm[program.name].operations
        self._kill_at(program, place, 0, rng.randrange(operations // 3, operations))
        files = [path for path in (place / "out").rglob("*") if path.is_file()]
        for file in rng.sample(files, min(len(files), rng.randint(1, 2))):
            harm = harmed_json if file.suffix == ".json" and file.stat().st_size else harmed
            file.write_bytes(harm(file.read_bytes(), rng))
        if Child(place.parent, lambda: program.start(place, 0)).finish() == 2:
            shutil.rmtree(place.parent)
            return True
        self._compare(program, place)
        return False

    def _kill_at(self, program: Program, place: Path, workers: int, operation: int) -> None:
        child = Child(place.parent, lambda: (die_at(operation), program.start(place, workers)))
        self.kills["at a file operation"] += child.finish() == -signal.SIGKILL
        self._check_alone(child)

    def _kill_in_time(self, program: Program, place: Path, workers: int, kind: str, rng: random.Random) -> None:
        child = Child(place.parent, lambda: program.start(place, workers))
        if kind == "worker":
            others: list[int] = []
            while not others:
                if child.wait(rng.uniform(0.0, 0.2)) is not None:
                    return
                others = [pid for pid in child.members() if pid != child.pid and is_fork(pid)]
            with contextlib.suppress(ProcessLookupError):
                os.kill(rng.choice(others), signal.SIGKILL)
                self.kills[kind] += 1
            child.finish()
        elif child.wait(rng.uniform(0.0, self._calm[program.name].seconds / 2)) is not None:
            return
        else:
            with contextlib.suppress(ProcessLookupError):  # a busy system may not have made its group yet
                (os.killpg if kind == "group" else os.kill)(child.pid, signal.SIGKILL)
            self.kills[kind] += child.finish() == -signal.SIGKILL
        self._check_alone(child)

    def _check_alone(self, child: Child) -> None:
        """Raise if processes of a run outlive it by more than a moment."""
        end = time.monotonic() + 60
        while child.members():
            if time.monotonic() > end:
                os.killpg(child.pid, signal.SIGKILL)
                raise LitterError("workers outlive the program")
            time.sleep(0.01)

    def _end(self, program: Program, place: Path, workers: int) -> None:
        code = Child(place.parent, lambda: program.start(place, workers)).finish()
        if code:
            raise WrongError(f"{program.name} cannot continue: {(place.parent / 'output.txt').read_text()[-500:]}")
        self._compare(program, place)

    def _compare(self, program: Program, place: Path) -> None:
        found, calm = outcome(place), self._calm[program.name].outcome
        if litter := found.keys() - calm.keys():
            raise LitterError(f"{program.name} left {', '.join(litter)}")
        if found != calm:
            raise WrongError(f"{program.name}: {', '.join(k for k in calm if found.get(k) != calm[k])} differ")
        left = [path.name for path in (place.parent / "tmp").iterdir() if not path.name.startswith("torchinductor")]
        if left:
            raise LitterError(f"{program.name} left {', '.join(left)} among the temporary files")
        shutil.rmtree(place.parent, ignore_errors=True)  # where a disk was mounted, folders stay

    def _place(self) -> Path:
        """Return a new folder for a run, beside one for its temporary files."""
        home = Path(tempfile.mkdtemp(dir=self._folder))
        (home / "work").mkdir()
        (home / "tmp").mkdir()
        self._furnish(home / "work")
        return home / "work"

    def _furnish(self, place: Path) -> None:
        """Write the files that programs begin with."""
        (place / "mine.toml").write_text(EXPERIMENT)
        (place / "small.toml").write_text(TABLE)


OPERATIONS = ("replace", "unlink", "mkdir", "rmdir", "fsync")


def intercept(act: Callable[[], object]) -> None:
    """Call something before every file operation of this process, but not of its children."""
    me = os.getpid()

    def wrapped(operation: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            if os.getpid() == me:
                act()
            return operation(*args, **options)

        return call

    for name in OPERATIONS:
        setattr(os, name, wrapped(getattr(os, name)))
    open_ = io.open

    def opened(file: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
        writes = isinstance(file, os.PathLike) and set(mode) & set("wax")
        return wrapped(open_)(file, mode, *args, **options) if writes else open_(file, mode, *args, **options)

    io.open = opened


def count_operations(counter: Path) -> None:
    """Write a letter to a file for every file operation."""
    descriptor = os.open(counter, os.O_WRONLY | os.O_CREAT)
    intercept(lambda: os.write(descriptor, b"x"))


def die_at(number: int) -> None:
    """End this process, as by a power cut, before a file operation."""
    seen = iter(range(number))

    def die() -> None:
        if next(seen, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)

    intercept(die)


def limit_files(size: int) -> None:
    """Let no file grow beyond a size, as on a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


CLONE_NEWNS, MS_REMOUNT, MS_REC, MS_PRIVATE = 0x20000, 0x20, 0x4000, 0x40000
"""From linux/sched.h and linux/mount.h."""


def mount_disk(folder: Path, size: int, *, again: bool = False) -> bool:
    """Put a small disk in the place of a folder, seen by this process and its children only; or change its size."""
    system = ctypes.CDLL(None, use_errno=True)
    steps = [lambda: system.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", MS_REMOUNT * again, b"size=%d" % size)]
    if not again:
        private = MS_REC | MS_PRIVATE
        steps = [lambda: system.unshare(CLONE_NEWNS), lambda: system.mount(b"none", b"/", None, private, None), *steps]
    return all(step() == 0 for step in steps)


def in_fork(work: Callable[[], bool]) -> bool:
    """Do something in a fork, which may then have disks of its own, and return or raise what it does."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            answer = ["", work()]
        except tuple(FAILURES) as error:
            answer = [type(error).__name__, str(error)]
        except BaseException:
            answer = [CrashError.__name__, traceback.format_exc()]
        os.write(writer, json.dumps(answer).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as file:
        name, said = json.loads(file.read())
    os.waitpid(pid, 0)
    kinds = {kind.__name__: kind for kind in FAILURES}
    if name:
        raise kinds[name](said)
    return bool(said)


# The whole


@dataclass
class Report:
    """What happened."""

    trials: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    mutations: int = 0
    """Files that were changed and read again."""
    kills: Counter[str] = field(default_factory=Counter)
    operations: dict[str, int] = field(default_factory=dict)
    """The file operations of each program. Every trial begins with a kill at another one of them."""
    wrong: int = 0
    tracebacks: int = 0
    hangs: int = 0
    litter: int = 0
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def is_clean(self) -> bool:
        return not self.failures

    def add(self, name: str, number: int, seed: int, trial: Trial) -> None:
        """Do a trial, and count what came out of it."""
        self.trials[name] += 1
        try:
            self.refused[name] += trial(number, random.Random(f"{seed} {name} {number}"))
        except tuple(FAILURES) as error:
            self._fail(name, number, FAILURES[type(error)], str(error))
        except Exception:
            self._fail(name, number, "tracebacks", traceback.format_exc())

    def _fail(self, name: str, number: int, kind: str, text: str) -> None:
        setattr(self, kind, getattr(self, kind) + 1)
        self.failures.append(f"{name}:{number} {kind}: {text}")
        print(self.failures[-1], file=sys.stderr, flush=True)


def torture(folder: Path, seed: int, seconds: float) -> Report:
    """Do trials of every kind in turn for some time, and return what happened."""
    report = Report()
    began = time.monotonic()
    files, others, runs = make_trials(folder)
    with contextlib.suppress(KeyboardInterrupt):  # then it tells what happened so far
        for turn in itertools.count():
            if turn and time.monotonic() - began > seconds:
                break
            for name, trial in files.items():
                # Reading a file takes a thousandth of a run: many of those for each of these.
                for number in range(turn * READS, (turn + 1) * READS):
                    report.add(name, number, seed, trial)
                    report.mutations += 1
            for name, trial in others.items():
                report.add(name, turn, seed, trial)
            print(f"{turn + 1} turns, {runs.kills.total()} kills", file=sys.stderr, flush=True)
    report.kills, report.operations, report.seconds = runs.kills, runs.operations, time.monotonic() - began
    return report


READS = 50


def make_trials(folder: Path) -> tuple[dict[str, Trial], dict[str, Trial], Runs]:
    """Return the trials with single files by their names, all others, and what does those with whole runs."""
    torch.set_num_threads(1)
    files, runs = folder / "files", folder / "runs"
    files.mkdir()
    runs.mkdir()
    reads = make_file_trials(files)
    whole = Runs(runs)
    kills = {f"kill-{program.name}": partial(whole.kill, program) for program in whole.programs}
    return reads, {"lie": lie, **kills, "disk": whole.disk, "resume": whole.resume}, whole


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print the counts as JSON")
    parser.add_argument("--only", metavar="NAME:NUMBER", help="repeat one trial")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="torture-") as folder:
        if options.only:
            name, number = options.only.split(":")
            files, others, _ = make_trials(Path(folder))
            report = Report()
            report.add(name, int(number), options.seed, (files | others)[name])
        else:
            report = torture(Path(folder), options.seed, 60 * options.minutes)
    if options.json:
        print(json.dumps({**vars(report), "seed": options.seed, "seconds": round(report.seconds)}, indent=2))
    else:
        for name, count in report.trials.items():
            print(f"{name:12} {count:7} trials, {report.refused[name]:7} refused")
        counts = {name: getattr(report, name) for name in ("mutations", "wrong", "tracebacks", "hangs", "litter")}
        print(f"{report.kills.total()} kills", *(f"{count} {name}" for name, count in counts.items()), sep=", ")
    sys.exit(not report.is_clean)


if __name__ == "__main__":
    main()
