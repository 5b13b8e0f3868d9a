"""The engine for several machines: actors of Ray, one thread each. The result is that of the inline engine.

Actors keep data, and no states. A client's state goes out with its job and comes back with the result, so that this
process holds every state after every round. If an actor dies, or the whole machine that it is on, its jobs are done
again by others, with the same result.
"""

import io
import os
import resource
import secrets
import signal
import socket
import tempfile
import threading
import time
import warnings
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quped import _tree
from quped._evaluate import Score
from quped._extras import extra
from quped._native.build import SWITCH
from quped.algorithms import ClientSpec, Deployed
from quped.data import Samples
from quped.data.download import store
from quped.errors import BadUpdateError, RunError, check
from quped.models import FunctionalNetwork
from quped.records import versions
from quped.simulation.client_round import evaluate_client, initial_personal, run_client
from quped.simulation.engines.base import average, prepare_worker, reported
from quped.simulation.engines.inline import InlineEngine
from quped.simulation.engines.processes import MOST_ATTEMPTS
from quped.simulation.setup import Setup, SimClient
from quped.typing import Clock

with extra("ray"):
    import ray
    from ray._private import ray_constants
    from ray.cloudpickle import CloudPickler, loads
    from ray.exceptions import RayError, RayTaskError

AHEAD = 2
"""How many times an actor is given jobs before it answers: the next ones are there when the first are done."""

SHARES = 4
"""Into how many parts for each actor the waiting jobs are divided: one part is given out at a time."""

MOST_FILES = 4
"""How often an actor is sent a file for one job: a client may have several, unless one was changed meanwhile."""

START_SECONDS = 300.0
"""How long to wait for the first actor: a cluster may be busy with the work of others."""

LOCAL = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",
    "RAY_AUTH_TOKEN": secrets.token_hex(32),
}
"""The environment of a cluster of our own, where the user's has nothing else: it listens on the loopback address alone,
tells nobody that it is used, lets actors be as urgent as this process, and keeps out other users of this machine.
Without a token, Ray writes one to the home folder; the first one is used as long as this process lives."""

Arrays = list[NDArray[np.uint8]]
"""The leaves of a tree as bytes: what Ray moves without a copy."""


class Job(NamedTuple):
    """What an actor is asked to do with one client."""

    client: int
    round: int | None
    """The round to run; None to evaluate."""


class Errand(NamedTuple):
    """A job, and what an actor needs for it."""

    job: Job
    data: bytes | None
    """A `Travelling`, the first time that an actor meets the client."""
    personal: Arrays | None
    """The client's state; None before its first round."""


class Outcome(NamedTuple):
    """A round that was computed."""

    personal: Arrays
    payload: Arrays
    loss: float
    seconds: float
    """How long that took."""


class Background(NamedTuple):
    """What actors know before their first job: all but the clients and their data."""

    setup: Setup
    """Without clients."""
    groups: Mapping[int, tuple[ClientSpec, FunctionalNetwork]]
    dtype: torch.dtype
    """PyTorch's default in the engine's process."""
    native: str
    """Whether compiled kernels are allowed there, which is seen in the last bits."""


class Travelling(NamedTuple):
    """What an actor is told about a client, once."""

    name: str
    group: int
    train: Samples
    test: Samples | None
    batch_size: int


class Worker:
    """The code of an actor: does jobs with what it is given."""

    def __init__(self, background: bytes) -> None:
        about: Background = loads(background)
        self._setup, self._groups = about.setup, about.groups
        self._clients: dict[int, SimClient] = {}
        os.environ[SWITCH] = about.native
        torch.set_default_dtype(about.dtype)
        prepare_worker()

    def hello(self) -> tuple[str, dict[str, str]]:
        """Return the address of this machine, and the versions that a result depends on."""
        return ray.util.get_node_ip_address(), versions()

    def memory(self) -> int:
        """Return the most memory that this process had, in bytes."""
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def hold(self, file: Path, checksum: str, tensors: Mapping[str, NDArray[Any]]) -> None:
        """Keep the content of a file that is not on this machine."""
        with warnings.catch_warnings():  # Ray's memory is read-only, and so is what lies in a mapped file
            warnings.simplefilter("ignore", UserWarning)
            store.hold(file, checksum, {name: torch.from_numpy(array) for name, array in tensors.items()})

    def do(self, errands: Sequence[Errand], shared: Arrays) -> list[Any]:
        """Do jobs; return for each the outcome of a round, the score of an evaluation, or the error."""
        return [reported(partial(self._do, *errand, shared)) for errand in errands]

    def _do(self, job: Job, data: bytes | None, personal: Arrays | None, shared: Arrays) -> Outcome | Score:
        if data is not None:
            told: Travelling = loads(data)
            spec, network = self._groups[told.group]
            self._clients[job.client] = SimClient(told.name, spec, network, told.train, told.test, told.batch_size)
        client, templates = self._clients[job.client], self._setup.templates
        everyones = as_tree(shared, templates.shared)
        if personal is None:
            own = initial_personal(self._setup, client, everyones)
        else:
            own = as_tree(personal, templates.personal[client.spec.group])
        if job.round is None:
            return evaluate_client(self._setup, client, cast(Samples, client.test), everyones, own)
        began = time.perf_counter()
        clock = self._setup.schedule.clock(job.round)
        own, payload, loss = run_client(self._setup, client, everyones, own, clock)
        return Outcome(as_arrays(own), as_arrays(payload), loss, time.perf_counter() - began)


@dataclass(eq=False)
class Actor:
    """An actor as the engine sees it."""

    handle: Any
    hello: Any
    """What it says first, still to come; None once it has said it."""
    jobs: deque[tuple[list[Job], Any]] = field(default_factory=deque)
    """What it was given, in this order: some jobs at a time, with their answers, still to come."""
    clients: set[int] = field(default_factory=set)
    """Those whose data it has."""
    files: set[Path] = field(default_factory=set)
    """Those whose content it was sent."""


class Waiting:
    """Jobs to be given out: the largest first, each to the actor that has the client's data, if that one is free."""

    def __init__(self, jobs: Iterable[Job], home: Mapping[int, Actor]) -> None:
        self._home = home
        self._lists: dict[Actor | None, list[Job]] = {}
        self._count = 0
        for job in jobs:
            self.put(job)

    def __len__(self) -> int:
        """Return the number of jobs."""
        return self._count

    def put(self, job: Job) -> None:
        """Add a job, to be the next of its kind."""
        self._lists.setdefault(self._home.get(job.client), []).append(job)
        self._count += 1

    def take(self, actor: Actor, count: int) -> list[Job]:
        """Return the next jobs for an actor: of its own clients, or of nobody's, or of whoever has most to do."""
        taken = []
        for _ in range(count):
            lists = (self._lists.get(actor), self._lists.get(None), max(self._lists.values(), key=len))
            taken.append(next(jobs for jobs in lists if jobs).pop())
        self._count -= count
        return taken


@dataclass(frozen=True)
class Work:
    """Jobs that belong together: a round, or an evaluation of all clients."""

    waiting: Waiting
    shared: Any
    """The server's state, where actors find it."""
    states: Mapping[int, Any]
    """The personal states that the jobs begin with."""
    results: dict[int, Any] = field(default_factory=dict)
    attempts: Counter[Job | None] = field(default_factory=Counter)
    """How often an actor died of a job, or, under None, while it was starting."""
    missed: Counter[Job] = field(default_factory=Counter)
    """How often an actor had no file for a job."""


class RayEngine:
    """Holds every client's personal state in memory, and keeps actors busy."""

    def __init__(self, setup: Setup, workers: int | None, address: str | None) -> None:
        """Connect to a cluster, or start one on this machine, and start the actors."""
        check(workers is None or workers >= 1, "number of workers", "at least 1", workers)
        self._setup = setup
        self._inline = InlineEngine(setup)
        """Holds the states."""
        self.seconds: dict[int, float] = {}
        """How long each client of the last round took."""
        self._actors: list[Actor] = []
        self._home: dict[int, Actor] = {}
        """For each client the actor that got its data last."""
        self._contents: dict[Path, Any] = {}
        """Of files that are not everywhere, where actors find it."""
        self._stack = ExitStack()
        background = packed(background_of(setup), "The networks or the algorithm")
        try:
            self._stack.enter_context(connected(address, workers))
            self._background = ray.put(background)
            for _ in range(min(actors_of_cluster(workers), len(setup.clients))):
                self._start()
            nothing = Work(Waiting((), {}), None, {})
            while all(actor.hello is not None for actor in self._actors):
                self._take_in(nothing)
        except BaseException:
            self.close()
            raise

    def run_round(self, shared: Any, clock: Clock, chosen: Sequence[int]) -> tuple[Any, float]:
        """Run one round of the chosen clients; return the mean of their payloads, in this order, and the mean loss."""
        outcomes = self._all([Job(client, clock.round) for client in chosen], shared)
        done: dict[int, Outcome] = {}
        for client in chosen:
            if isinstance(outcomes[client], BadUpdateError):
                self._setup.handle_bad_update(outcomes[client])
            else:
                done[client] = outcomes[client]
        forms, clients = self._setup.templates, self._setup.clients
        new = {i: as_tree(one.personal, forms.personal[clients[i].spec.group]) for i, one in done.items()}
        self._inline.restore(new)
        payloads = {i: as_tree(one.payload, forms.payload[clients[i].spec.group]) for i, one in done.items()}
        self.seconds = {i: one.seconds for i, one in done.items()}
        return average(((payloads[i], one.loss) for i, one in done.items()), clock)

    def deploy(self, shared: Any, client: int) -> Deployed:
        """Return the model that a client uses now."""
        return self._inline.deploy(shared, client)

    def evaluate(self, shared: Any) -> dict[int, Score]:
        """Evaluate the deployed model of each client that is evaluated on its own test samples."""
        scores = self._all([Job(client, None) for client in self._setup.evaluated], shared)
        return {client: scores[client] for client in self._setup.evaluated}

    def states(self) -> Mapping[int, Any]:
        """Return the personal state of every client that took part."""
        return self._inline.states()

    def restore(self, states: Mapping[int, Any]) -> None:
        """Continue from such states; other clients keep theirs."""
        self._inline.restore(states)

    def memory(self) -> list[int]:
        """Return the most memory that each actor had, in bytes."""
        return list(ray.get([actor.handle.memory.remote() for actor in self._actors]))

    def close(self) -> None:
        """End the actors, and the cluster if it is ours."""
        if ray.is_initialized():
            for actor in self._actors:
                ray.kill(actor.handle)
        self._actors = []
        self._stack.close()

    def _start(self) -> None:
        """Start an actor, wherever the cluster has a core for it."""
        # Restarted by Ray, an actor would have lost its data without a word.
        make = ray.remote(num_cpus=1, max_restarts=0, max_task_retries=0, scheduling_strategy="SPREAD")(Worker)
        handle = make.remote(self._background)
        self._actors.append(Actor(handle, handle.hello.remote()))

    def _all(self, jobs: Sequence[Job], shared: Any) -> dict[int, Any]:
        """Have all jobs done; return the result of each client: of a round that went wrong, its BadUpdateError."""
        # The largest clients go first: then those that are done last are small, and no actor waits long for another.
        ordered = sorted(jobs, key=lambda job: len(self._setup.clients[job.client].train))
        work = Work(Waiting(ordered, self._home), ray.put(as_arrays(shared)), self._inline.states())
        while len(work.results) < len(jobs):
            self._give_out(work)
            self._take_in(work)
        return work.results

    def _give_out(self, work: Work) -> None:
        """Give every actor jobs, and the next ones while there are enough for everybody."""
        for given in range(AHEAD):
            for actor in self._actors:
                enough = len(work.waiting) >= (len(self._actors) if given else 1)
                if actor.hello is None and len(actor.jobs) == given and enough:
                    # Many at a time while many are left, since each call costs milliseconds; after a death one by one,
                    # which shows whose fault it was.
                    share = 1 if work.attempts else len(work.waiting) // (SHARES * len(self._actors))
                    self._send(actor, work.waiting.take(actor, max(1, share)), work)

    def _send(self, actor: Actor, jobs: list[Job], work: Work) -> None:
        """Send an actor jobs, with the clients' states, and with their data if they are not there yet."""
        errands = []
        for job in jobs:
            data = None
            if job.client not in actor.clients:
                client = self._setup.clients[job.client]
                told = Travelling(client.name, client.spec.group, client.train, client.test, client.batch_size)
                data = packed(told, f"The data of client '{client.name}'")
                actor.clients.add(job.client)
                self._home[job.client] = actor
            state = as_arrays(work.states[job.client]) if job.client in work.states else None
            errands.append(Errand(job, data, state))
        actor.jobs.append((jobs, actor.handle.do.remote(errands, work.shared)))

    def _take_in(self, work: Work) -> None:
        """Wait for the next answer of any actor, and see to it."""
        coming = {actor.hello or actor.jobs[0][1]: actor for actor in self._actors if actor.hello or actor.jobs}
        ready, _ = ray.wait(list(coming), num_returns=1, timeout=START_SECONDS)
        if not ready and all(actor.hello for actor in self._actors):
            raise RunError(
                f"No actor could be started within {START_SECONDS:.0f} s: "
                "`ray status` shows whether the cluster has a free core."
            )
        for ref in ready:
            try:
                answer = ray.get(ref)
            except RayTaskError as error:  # of our own code: errors of a client are answers
                raise RunError(f"An actor failed: {error}") from error
            except RayError as error:
                self._replace(coming[ref], error, work)
            else:
                self._accept(coming[ref], answer, work)

    def _accept(self, actor: Actor, answer: Any, work: Work) -> None:
        """See to an answer: the first one of an actor, or those to its first jobs."""
        if actor.hello is not None:
            check_versions(*answer)
            actor.hello = None
            return
        for job, result in zip(actor.jobs.popleft()[0], answer, strict=True):
            if isinstance(result, store.NotHereError) and work.missed[job] < MOST_FILES:
                work.missed[job] += 1
                self._send_file(actor, result.file)
                actor.clients.discard(job.client)
                self._send(actor, [job], work)
            elif isinstance(result, Exception) and not isinstance(result, BadUpdateError):
                raise result
            else:
                work.results[job.client] = result

    def _send_file(self, actor: Actor, file: Path) -> None:
        """Send an actor the content of a file that is not on its machine, once."""
        if file in actor.files:
            return
        stored = store.read(file)
        if file not in self._contents:
            self._contents[file] = ray.put({name: tensor.numpy() for name, tensor in stored.tensors.items()})
        actor.handle.hold.remote(file, stored.checksum, self._contents[file])
        actor.files.add(file)

    def _replace(self, actor: Actor, error: RayError, work: Work) -> None:
        """Put another actor in the place of one that died, and let its jobs wait again."""
        begun = actor.jobs[0][0] if actor.jobs else []  # those behind them had not
        cause = str(error).strip().splitlines()[0].rstrip(".")
        blamed: Sequence[Job | None] = begun or [None]
        work.attempts.update(blamed)
        if max(work.attempts[job] for job in blamed) == MOST_ATTEMPTS:
            raise RunError(
                f"The actor {self._described(begun)} died {MOST_ATTEMPTS} times ({cause}): engine='inline' shows an "
                "error of the client; if memory is short, use fewer workers or smaller batches."
            ) from error
        warnings.warn(
            f"The actor {self._described(begun)} died ({cause}). Its work is done again by another.", stacklevel=2
        )
        ray.kill(actor.handle)  # Ray may only have lost sight of it
        self._actors.remove(actor)
        for client in actor.clients & self._home.keys():
            if self._home[client] is actor:
                del self._home[client]
        for unfinished, _ in reversed(actor.jobs):
            for one in reversed(unfinished):
                work.waiting.put(one)
        self._start()

    def _described(self, jobs: Sequence[Job]) -> str:
        """Say what an actor was doing."""
        if not jobs:
            return "that was starting"
        client, round_ = jobs[0]
        others = f" or one of {len(jobs) - 1} others" if len(jobs) > 1 else ""
        when = "being evaluated" if round_ is None else f"in round {round_ + 1}"
        return f"of client '{self._setup.clients[client].name}'{others}, {when},"


def actors_of_cluster(workers: int | None) -> int:
    """Return how many actors to start: as many as asked for, or as the cluster has cores."""
    cores = int(ray.cluster_resources().get("CPU", 0))
    if cores < (workers or 1):
        raise RunError(f"The Ray cluster has {cores} cores for {workers or 1} workers: use fewer, or add a machine.")
    return workers or cores


@contextmanager
def connected(address: str | None, workers: int | None) -> Iterator[None]:
    """Be connected to a cluster: as this process is already, or to the one at an address, or to one of our own."""
    with ExitStack() as stack:
        if ray.is_initialized():
            yield
            return
        where: dict[str, Any] = {"address": address}
        if address is None:
            stack.enter_context(environment(LOCAL))
            # Ray read its environment when it was imported.
            stack.callback(setattr, ray_constants, "ENABLE_RAY_CLUSTER", ray_constants.ENABLE_RAY_CLUSTER)
            ray_constants.ENABLE_RAY_CLUSTER = False
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="quped-", ignore_cleanup_errors=True))
            where = {
                "address": "local",
                "num_cpus": workers,
                "include_dashboard": False,
                "_temp_dir": folder,
            }
        try:
            if address is not None:
                knock(address)
            with same_signals():
                ray.init(**where, log_to_driver=False, logging_level="ERROR")
        except (RayError, OSError, ValueError, RuntimeError) as error:
            cause = str(error).splitlines()[0]
            if address is not None:
                raise RunError(f"There is no Ray cluster at '{address}' that can be used: {cause}") from error
            raise RunError(
                f"Ray cannot be started here: {cause}. Its files are in the folder for temporary files, which the "
                "environment variable TMPDIR names; the path must be short."
            ) from error
        stack.callback(ray.shutdown)
        yield


def knock(address: str) -> None:
    """Raise an OSError if nobody listens at an address with a port: Ray would try again for minutes."""
    host, _, port = address.rpartition(":")
    if port.isdigit():
        socket.create_connection((host, int(port)), timeout=10).close()


@contextmanager
def same_signals() -> Iterator[None]:
    """Leave SIGTERM to whoever had it before the block: Ray takes it, and a run writes a checkpoint on it."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    if threading.current_thread() is threading.main_thread() and before is not None:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """Have environment variables within the block, where the user has set none of these names."""
    ours = {name: value for name, value in values.items() if name not in os.environ}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name in ours:
            os.environ.pop(name, None)


def background_of(setup: Setup) -> Background:
    """Return what all actors are told."""
    alone = replace(setup, clients=(), names=())
    vars(alone)["templates"] = setup.templates  # which follow from the clients
    groups = {client.spec.group: (client.spec, client.network) for client in setup.clients}
    return Background(alone, groups, torch.get_default_dtype(), os.environ.get(SWITCH, ""))


def check_versions(address: str, theirs: Mapping[str, str]) -> None:
    """Raise if a machine would compute something else."""
    ours = versions()
    if other := [f"{name} {theirs[name]}, here {ours[name]}" for name in ours if theirs[name] != ours[name]]:
        raise RunError(
            f"The machine {address} of the cluster has {'; '.join(other)}: install the same versions everywhere."
        )


class Packer(CloudPickler):
    """Pickles functions and classes of a script, too; of a larger tensor's rows, no more than these."""

    def reducer_override(self, obj: Any) -> Any:
        """Return how an object is pickled."""
        if type(obj) is Tensor and obj.untyped_storage().nbytes() > obj.nbytes:
            obj = obj.detach().clone()
            return obj.__reduce_ex__(5)
        return super().reducer_override(obj)


def packed(value: object, what: str) -> bytes:
    """Return a value as bytes; an error names what it is."""
    buffer = io.BytesIO()
    try:
        Packer(buffer, protocol=5).dump(value)
    except Exception as error:  # a user's object may raise anything
        raise RunError(
            f"{what} cannot be sent to another process: {type(error).__name__}: {error}. "
            "Use engine='processes', which needs no copy."
        ) from error
    return buffer.getvalue()


def as_arrays(tree: Any) -> Arrays:
    """Return the leaves of a tree as bytes."""
    return [leaf.detach().reshape(-1).view(torch.uint8).numpy() for _, leaf in _tree.items(tree)]


def as_tree(arrays: Arrays, template: Any) -> Any:
    """Return a tree in the form of a template; its tensors are copies, which may be written to."""
    parts = iter(arrays)
    return _tree.map_leaves(lambda like: torch.tensor(next(parts)).view(like.dtype).view(like.shape), template)
