"""Does harm to runs and to the files that they trust, and counts what goes wrong.

    python benchmarks/torture.py --minutes 60 --seed 0 --json

Four kinds of harm:

- *files*: a file that quped reads is changed at random (bits, blocks, length, keys and values of JSON). Its reader must
  return what was written, or refuse with one sentence.
- *kills*: a run is killed at a random moment or at a random file operation (the program, its workers, or all of them),
  perhaps several times, or its disk fills up. Continued, it must end bit for bit as if nothing had happened.
- *resumes*: the files of an interrupted run are changed, and it is continued. It must end as an undisturbed run, or
  refuse with one sentence.
- *lies*: a client returns numbers or tensors that nobody can use. The run must end with the client's name.

The trials follow from the seed; a failure names the trial, which `--only NAME:NUMBER` repeats.
"""

import argparse
import contextlib
import dataclasses
import hashlib
import io
import json
import os
import random
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
from pathlib import Path
from typing import Any

import torch

from quped import Client, FedAvg, Federation, QuPeD, load, save
from quped._digest import tensor_digest
from quped._native import build, codebook
from quped.algorithms import Global
from quped.cli import main as command_line
from quped.data.datasets import REMOTE
from quped.data.download import store
from quped.data.download.sources import read_members
from quped.errors import QupedError
from quped.experiments.schema import load as load_experiment
from quped.models import mlp
from quped.records import Checkpoints, RunRecord

PATIENCE = 120.0
"""Seconds after which a run hangs."""

EXPERIMENT = """
[data]
name = "digits"
partition = "classes=5"

[[clients]]
count = 3
model = { name = "mlp", hidden = [16, 8] }
bits = 1

[training]
epochs = 4
local_steps = 2
batch_size = 240
evaluate_every = 2

[algorithm]
warmup_epochs = 0

[[compare]]
algorithm = { name = "fedavg" }
"""


class WrongError(Exception):
    """A result that differs from the one of an undisturbed run."""


class LitterError(Exception):
    """Files or processes that stay behind."""


class HangError(Exception):
    """A process that does not end."""


class CrashError(Exception):
    """A traceback instead of a sentence."""


Trial = Callable[[random.Random], bool]
"""Does one kind of harm. Returns whether it was refused; raises one of the above if something went wrong."""


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

    def trial(rng: random.Random) -> bool:
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
    checkpoints.save(3, {"a": torch.randn(20, 7), "b": torch.arange(5)}, {"round": 3, "about": {"curve": [1.5]}})

    def checkpoint() -> Any:
        latest = checkpoints.latest()
        return None if latest is None else (tensor_digest(latest[0]), latest[1])

    record = RunRecord.create(folder / "record")
    record.config({"format": 2, "preset": "x", "seed": 3, "config": {"training": {"lr": 0.1}, "compare": [1, 2]}})
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
        load_experiment(toml)
        return True  # whatever it says is what the user wrote

    trials = {
        "checkpoint": file_trial(checkpoints.files()[0], checkpoint),
        "config": file_trial(record.path / "config.json", record.read_config, harmed_json),
        "result": file_trial(record.path / "result.json", record.finished, harmed_json),
        "data": file_trial(data, cached),
        "model": file_trial(model, lambda: tensor_digest(load(model, small_net()).state_dict())),
        "archive": file_trial(archive, lambda: read_members(archive, ["member"])),
        "experiment": file_trial(toml, experiment),
    }
    if build.library("codebook", (("CENTERS", 2),), codebook.SIGNATURES) is not None:
        (library,) = (folder / "native").glob("*.so")
        copy = folder / "copy" / library.name
        copy.parent.mkdir()
        for file in library.parent.iterdir():
            shutil.copy(file, copy.parent)
        trials["library"] = lambda rng: library_trial(copy, rng)
    return trials


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


@dataclass(frozen=True)
class Liar(FedAvg):
    """FedAvg with clients that spoil one tensor in one round."""

    lie: int = 0
    when: int = 0
    tensor: int = 0

    def finish(self, spec: Any, work: Any, batch: Any, clock: Any) -> Any:
        personal, payload = super().finish(spec, work, batch, clock)
        if clock.round != self.when:
            return personal, payload
        name = list(payload.w.params)[self.tensor]
        params = {**payload.w.params, name: LIES[self.lie](payload.w.params[name])}
        return personal, Global(payload.w._replace(params=params))


def lie(rng: random.Random) -> bool:
    """Let clients lie: they must be named, in the round in which they lied."""
    liar = Liar(rng.randrange(len(LIES)), rng.randrange(12), rng.randrange(4))
    members = [dataclasses.replace(client, bits=32) for client in small_clients()]
    try:
        Federation(members, liar, small_net).fit(
            epochs=6, local_steps=2, batch_size=10, workers=rng.choice([0, 0, 2]), progress=False
        )
    except QupedError as error:
        if f"in round {liar.when + 1} " not in str(error):
            raise WrongError(f"another round is blamed: {error}") from error
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
        code = self.wait(PATIENCE)
        if code is None:
            os.killpg(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            raise HangError(f"still running after {PATIENCE:.0f} s")
        return code

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
        if "Traceback" in text or "bug of quped" in text:
            raise CrashError(text[-2000:])


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

    def start(self, folder: Path, workers: int) -> None:
        """Begin, or continue if there is something to continue: what a person does after a crash."""
        begun = (folder / "out" / "config.json").exists()
        (self.resume if begun else self.begin)(folder, workers)


def run_options(workers: int) -> tuple[str, ...]:
    return ("--quiet", "--workers", str(workers), "--checkpoint-every", "1")


def fit(folder: Path, workers: int) -> None:
    """Train by the Python interface, with checkpoints, and write the digest of what came out."""
    result = Federation(small_clients(), QuPeD(warmup_epochs=0), small_net).fit(
        epochs=6, local_steps=2, batch_size=10, workers=workers, checkpoints=folder / "out", checkpoint_every=1
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


PROGRAMS = (
    Program(
        "run",
        lambda folder, workers: call("run", folder / "mine.toml", "--out", folder / "out", *run_options(workers)),
        lambda folder, workers: call("run", "--resume", folder / "out", *run_options(workers)),
    ),
    Program(
        "train",
        lambda folder, _: call("train", "mlp", "--epochs", "3", "--batch-size", "240", "--out", folder / "out"),
        lambda folder, _: call("train", "--resume", folder / "out"),
    ),
    Program("fit", fit, fit),
)

CLOCK = {"seconds", "images_per_second", "threads", "sha256", "files"}
"""What differs between equal runs."""


def outcome(folder: Path) -> dict[str, str]:
    """Return a digest of every file that a run left, without what a clock told."""
    found = {}
    for file in sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "output.txt"):
        content = file.read_bytes()
        if file.suffix in (".json", ".jsonl"):
            lines = [content] if file.suffix == ".json" else content.splitlines()
            content = json.dumps([timeless(json.loads(line)) for line in lines]).encode()
        timed = file.suffix == ".png" or file.name.startswith("round-")  # these hold seconds, too
        found[str(file.relative_to(folder))] = "" if timed else hashlib.sha256(content).hexdigest()
    return found


def timeless(values: Any) -> Any:
    """Return values without what a clock told."""
    if isinstance(values, dict):
        return {key: timeless(value) for key, value in values.items() if key not in CLOCK}
    return [timeless(value) for value in values] if isinstance(values, list) else values


class Runs:
    """Trials with whole runs, compared with one that nothing happened to."""

    def __init__(self, folder: Path, programs: tuple[Program, ...] = PROGRAMS) -> None:
        self._folder = folder
        self._programs = programs
        self._calm: dict[str, dict[str, str]] = {}
        self._operations: dict[str, int] = {}
        self.kills = 0
        for program in programs:
            place = self._place()
            counter = place.parent / "operations"
            child = Child(place.parent, lambda p=program, f=place, c=counter: (count_operations(c), p.begin(f, 0)))
            if child.finish():
                raise SystemExit((place.parent / "output.txt").read_text())
            self._calm[program.name] = outcome(place)
            self._operations[program.name] = len(counter.read_text())
            shutil.rmtree(place.parent)

    def kill(self, rng: random.Random) -> bool:
        """Kill a run, once or several times; or let its disk be full."""
        program, place = rng.choice(self._programs), self._place()
        workers = 0 if program.name == "train" else rng.choice([0, 2])
        for _ in range(rng.randint(1, 3)):
            self._harm(program, place, workers, rng)
        self._end(program, place, workers)
        return False

    def resume(self, rng: random.Random) -> bool:
        """Change a file of an interrupted run."""
        program, place = rng.choice(self._programs), self._place()
        operation = rng.randrange(self._operations[program.name] // 3, self._operations[program.name])
        Child(place.parent, lambda: (die_at(operation, before=True), program.start(place, 0))).finish()
        files = [path for path in (place / "out").rglob("*") if path.is_file()]
        for file in rng.sample(files, min(len(files), rng.randint(1, 2))):
            harm = harmed_json if file.suffix == ".json" else harmed
            file.write_bytes(harm(file.read_bytes(), rng))
        if Child(place.parent, lambda: program.start(place, 0)).finish() == 2:
            shutil.rmtree(place.parent)
            return True
        self._compare(program, place)
        return False

    def _harm(self, program: Program, place: Path, workers: int, rng: random.Random) -> None:
        kind = rng.choice(["operation", "operation", "group", "program", "worker", "disk"])
        if kind == "operation":
            operation, before = rng.randrange(self._operations[program.name]), rng.random() < 0.5
            child = Child(place.parent, lambda: (die_at(operation, before), program.start(place, workers)))
            self.kills += child.finish() == -signal.SIGKILL
            return
        if kind == "disk":
            limit = int(10 ** rng.uniform(1, 5))
            Child(place.parent, lambda: (limit_files(limit), program.start(place, workers))).finish()
            return
        child = Child(place.parent, lambda: program.start(place, workers))
        if child.wait(rng.uniform(0.0, 1.5)) is not None:
            return
        if kind == "worker":
            others = [pid for pid in child.members() if pid != child.pid]
            if others:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(rng.choice(others), signal.SIGKILL)
                    self.kills += 1
            child.finish()
            return
        if kind == "group":
            os.killpg(child.pid, signal.SIGKILL)
        else:
            os.kill(child.pid, signal.SIGKILL)
        self.kills += child.wait(PATIENCE) == -signal.SIGKILL
        end = time.monotonic() + 10
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
        found, calm = outcome(place), self._calm[program.name]
        if litter := found.keys() - calm.keys():
            raise LitterError(f"{program.name} left {', '.join(litter)}")
        if found != calm:
            raise WrongError(f"{program.name}: {', '.join(k for k in calm if found.get(k) != calm[k])} differ")
        left = [path.name for path in (place.parent / "tmp").iterdir() if not path.name.startswith("torchinductor")]
        if left:
            raise LitterError(f"{program.name} left {', '.join(left)} among the temporary files")
        shutil.rmtree(place.parent)

    def _place(self) -> Path:
        """Return a new folder for a run, beside one for its temporary files."""
        home = Path(tempfile.mkdtemp(dir=self._folder))
        (home / "work").mkdir()
        (home / "tmp").mkdir()
        (home / "work" / "mine.toml").write_text(EXPERIMENT)
        return home / "work"


OPERATIONS = ("replace", "unlink", "mkdir", "rmdir", "fsync")


def intercept(act: Callable[[], None], after: Callable[[], None]) -> None:
    """Call something before and after every file operation of this process, but not of its children."""
    me = os.getpid()

    def wrapped(operation: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            if os.getpid() == me:
                act()
            try:
                return operation(*args, **options)
            finally:
                if os.getpid() == me:
                    after()

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
    intercept(lambda: None, lambda: os.write(descriptor, b"x") and None)


def die_at(number: int, before: bool) -> None:
    """End this process, as by a power cut, before or after a file operation."""
    seen = iter(range(number))

    def die() -> None:
        if next(seen, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)

    intercept(die if before else lambda: None, (lambda: None) if before else die)


def limit_files(size: int) -> None:
    """Let no file grow beyond a size, as on a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


# The whole


@dataclass
class Report:
    """What happened."""

    trials: Counter[str] = field(default_factory=Counter)
    kills: int = 0
    refused: Counter[str] = field(default_factory=Counter)
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
            self.refused[name] += trial(random.Random(f"{seed} {name} {number}"))
            return
        except WrongError as error:
            self.wrong += 1
            text = f"wrong: {error}"
        except LitterError as error:
            self.litter += 1
            text = f"litter: {error}"
        except HangError as error:
            self.hangs += 1
            text = f"hang: {error}"
        except Exception as error:
            self.tracebacks += 1
            text = f"traceback: {error if isinstance(error, CrashError) else traceback.format_exc()}"
        self.failures.append(f"{name}:{number} {text}")


def torture(folder: Path, seed: int, seconds: float) -> Report:
    """Do trials of every kind in turn for some time, and return what happened."""
    report = Report()
    began = time.monotonic()
    trials, runs = make_trials(folder)
    turn = 0
    while turn == 0 or time.monotonic() - began < seconds:
        for name, trial in trials.items():
            # Reading a file takes a thousandth of a run: many of those for each of these.
            many = 1 if name in ("kill", "resume", "lie") else 40
            for number in range(turn * many, (turn + 1) * many):
                report.add(name, number, seed, trial)
        turn += 1
    report.kills, report.seconds = runs.kills, time.monotonic() - began
    return report


def make_trials(folder: Path) -> tuple[dict[str, Trial], Runs]:
    """Return all trials by their names, and what does those with whole runs."""
    torch.set_num_threads(1)
    files, runs = folder / "files", folder / "runs"
    files.mkdir()
    runs.mkdir()
    trials = make_file_trials(files)
    whole = Runs(runs)
    return {**trials, "lie": lie, "kill": whole.kill, "resume": whole.resume}, whole


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
            report = Report()
            report.add(name, int(number), options.seed, make_trials(Path(folder))[0][name])
        else:
            report = torture(Path(folder), options.seed, 60 * options.minutes)
    if options.json:
        print(json.dumps({**vars(report), "seed": options.seed, "seconds": round(report.seconds)}, indent=2))
    else:
        for name, count in report.trials.items():
            print(f"{name:12} {count:7} trials, {report.refused[name]:7} refused")
        counts = {name: getattr(report, name) for name in ("kills", "wrong", "tracebacks", "hangs", "litter")}
        print(*(f"{count} {name}" for name, count in counts.items()), sep=", ")
        print(*report.failures, sep="\n")
    sys.exit(not report.is_clean)


if __name__ == "__main__":
    main()
