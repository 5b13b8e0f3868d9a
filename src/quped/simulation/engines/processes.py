"""The engine for all cores: one worker process per core, one thread each. The result is that of the inline engine.

Only numbers cross the borders between processes. States lie in memory-mapped files that all of them see: the shared
state, one row of payload for each client of a round, and a row of personal state for each client that took part. A
worker writes to a spare row; once it has reported, the engine takes that row, and the one before is spare. So a worker
that dies leaves nothing half-written, and its client's round is computed again, with the same result.
"""

import ctypes
import errno
import gc
import math
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter, deque
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch

from quped import _tree
from quped._computed import Computed
from quped._evaluate import Score
from quped.algorithms import Deployed
from quped.data import Samples
from quped.errors import BadUpdateError, RunError, check
from quped.simulation.client_round import deployed_model, evaluate_client, initial_personal, run_client
from quped.simulation.engines._shared_rows import Rows
from quped.simulation.engines.base import average, prepare_worker, reported
from quped.simulation.setup import Setup
from quped.typing import Clock

MOST_ATTEMPTS = 3
"""How often a client's round is tried before its worker's death is taken for the client's fault."""

ORPHAN_CHECK_SECONDS = 5.0


class Job(NamedTuple):
    """What a worker is asked to do with one client."""

    client: int
    round: int | None
    """The round to run; None to evaluate."""
    source: int | None
    """The row of its personal state; None if it has none yet."""
    target: int = 0
    """The row in which a round puts its personal state."""
    position: int = 0
    """The row in which a round puts its payload, among those of its group."""


@dataclass(frozen=True)
class Board:
    """What all processes see: the setup, and the files with the states."""

    setup: Setup
    shared: Rows
    payloads: Mapping[int, Rows]
    """For each group of clients a file with a row for each of them in a round."""
    personal: Mapping[int, Rows]
    """For each group of clients a file with a row for each of them, and spare ones for those of a round."""

    def payload_rows(self, client: int) -> Rows:
        """Return the file with a client's payload."""
        return self.payloads[self.setup.clients[client].spec.group]

    def rows(self, client: int) -> Rows:
        """Return the file with a client's states."""
        return self.personal[self.setup.clients[client].spec.group]

    def state(self, shared: Any, client: int, row: int | None) -> Any:
        """Return a client's personal state; before its first round, its initial state."""
        if row is None:
            return initial_personal(self.setup, self.setup.clients[client], shared)
        return self.rows(client).read(row)

    def do(self, job: Job) -> float | Score:
        """Do a job; return the loss of a round, or the score of an evaluation. Runs in a worker."""
        client = self.setup.clients[job.client]
        shared = self.shared.read(0)
        state = self.state(shared, job.client, job.source)
        if job.round is None:
            return evaluate_client(self.setup, client, cast(Samples, client.test), shared, state)
        clock = self.setup.schedule.clock(job.round)
        personal, payload, loss = run_client(self.setup, client, shared, state, clock)
        self.rows(job.client).write(job.target, personal)
        self.payload_rows(job.client).write(job.position, payload)
        return loss


def lay_out(setup: Setup) -> Board:
    """Make the files, in the forms of the states that they hold. Space for personal states is reserved when needed."""
    templates, sampled = setup.templates, setup.schedule.clients_per_round
    sizes = Counter(client.spec.group for client in setup.clients)
    at_once = {group: min(sampled, size) for group, size in sizes.items()}
    with naming_space():
        board = Board(
            setup=setup,
            shared=unnamed_rows(templates.shared, 1),
            payloads={group: unnamed_rows(form, at_once[group]) for group, form in templates.payload.items()},
            personal={
                group: unnamed_rows(form, sizes[group] + at_once[group]) for group, form in templates.personal.items()
            },
        )
        board.shared.reserve(0, 1)
        for group, rows in board.payloads.items():
            rows.reserve(0, at_once[group])
    check_space(setup, sizes, {group: rows.stride for group, rows in board.personal.items()})
    return board


def check_space(setup: Setup, sizes: Mapping[int, int], strides: Mapping[int, int]) -> None:
    """Raise if the states of the clients that probably take part have no place: better now than after hours."""
    share = setup.schedule.clients_per_round / len(setup.clients)
    taking_part = 1 - (1 - share) ** setup.schedule.rounds
    needed = sum(sizes[group] * (taking_part + share) * stride for group, stride in strides.items())
    folder = tempfile.gettempdir()
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise RunError(
            f"The states of the clients that take part will need about {needed / 1e9:.1f} GB, and the folder for "
            f"temporary files, {folder}, has {free / 1e9:.1f} GB left. {REMEDY}"
        )


def unnamed_rows(template: Any, count: int) -> Rows:
    """Make rows in a temporary file without a name, mapped here and in every fork: however this ends, it is gone."""
    with tempfile.TemporaryFile(prefix="quped-") as file:
        return Rows(Path(f"/dev/fd/{file.fileno()}"), template, count)


@contextmanager
def naming_space() -> Iterator[None]:
    """Let errors within the block tell that states found no place, and what to do."""
    try:
        yield
    except (OSError, RuntimeError) as error:  # PyTorch's, of a file that it cannot map
        remedy = MORE_FILES if os.strerror(errno.EMFILE) in str(error) else REMEDY
        raise RunError(f"The states of the clients cannot be kept in temporary files: {error}. {remedy}") from error


MORE_FILES = "This program may not open as many files as it needs: raise the limit, as by `ulimit -n 1024`."
REMEDY = "Let the environment variable TMPDIR name a folder on a larger disk, or use workers=0."


class Pool:
    """The rows of a group: which of them are spare. There are no more than were needed at once."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._spare: list[int] = []
        self._reserved = 0

    def provide(self, count: int) -> None:
        """Have at least so many spare rows, whose space is reserved."""
        if (missing := count - len(self._spare)) > 0:
            with naming_space():
                self._rows.reserve(self._reserved, missing)
            self._spare.extend(range(self._reserved, self._reserved + missing))
            self._reserved += missing

    def take(self) -> int:
        """Return a spare row, which is now in use."""
        return self._spare.pop()

    def give(self, row: int) -> None:
        """Take back a row that is not used any more."""
        self._spare.append(row)


@dataclass
class Worker:
    """A process, the pipe to it, and its jobs: the one that it does, and perhaps one that it goes on with."""

    process: BaseProcess
    pipe: Connection
    jobs: deque[Job] = field(default_factory=deque)
    attempts: int = 1
    """At the first of its jobs."""


class ProcessEngine:
    """Keeps the workers busy, each with one client after the other, and knows which rows are in use."""

    def __init__(self, setup: Setup, workers: int) -> None:
        """Lay out the states and start the workers."""
        check(workers >= 1, "number of workers", "at least 1", workers)
        if "fork" not in multiprocessing.get_all_start_methods():
            raise RunError("Worker processes need fork, which this system does not have: use workers=0.")
        if multiprocessing.current_process().daemon:
            raise RunError("This process is a worker itself, and may not start others: use workers=0.")
        self._board = lay_out(setup)
        self._pools = {group: Pool(rows) for group, rows in self._board.personal.items()}
        self._in_use: dict[int, int] = {}
        """For each client that took part, the row of its state."""
        self._usual: dict[Hashable, float] = {}
        """How long the last job of each kind took."""
        self.seconds: dict[int, float] = {}
        """How long each client of the last round took."""
        count = min(workers, len(setup.clients))
        self._workers = [Worker(*start_process(self._board)) for _ in range(count)]

    def run_round(self, shared: Any, clock: Clock, chosen: Sequence[int]) -> tuple[Any, float]:
        """Run one round of the chosen clients; return the mean of their payloads, in this order, and the mean loss."""
        self.seconds = {}
        self._board.shared.write(0, shared)
        self._provide(chosen)
        before = Counter[int]()
        jobs = []
        for client in chosen:
            group = self._board.setup.clients[client].spec.group
            jobs.append(Job(client, clock.round, self._in_use.get(client), self._pool(client).take(), before[group]))
            before[group] += 1

        def updates() -> Iterator[tuple[Any, float]]:
            for job, loss in self._done(jobs):
                if isinstance(loss, BadUpdateError):
                    self._pool(job.client).give(job.target)
                    self._board.setup.handle_bad_update(loss)
                else:
                    if job.source is not None:
                        self._pool(job.client).give(job.source)
                    self._in_use[job.client] = job.target
                    yield self._board.payload_rows(job.client).read(job.position), loss

        return average(updates(), clock)

    def evaluate(self, shared: Any) -> dict[int, Score]:
        """Evaluate the deployed model of each client that is evaluated on its own test samples."""
        self._board.shared.write(0, shared)
        jobs = [Job(client, None, self._in_use.get(client)) for client in self._board.setup.evaluated]
        return {job.client: score for job, score in self._done(jobs)}

    def personal(self, shared: Any, client: int) -> Any:
        """Return a copy of a client's own state; before its first round, its initial state."""
        return _tree.map_leaves(torch.clone, self._board.state(shared, client, self._in_use.get(client)))

    def deploy(self, shared: Any, client: int) -> Deployed:
        """Return the model that a client uses now."""
        setup = self._board.setup
        return deployed_model(setup, setup.clients[client], shared, self.personal(shared, client))

    def states(self) -> Mapping[int, Any]:
        """Return the personal state of every client that took part; its tensors are views of the files."""
        return Computed(self._in_use, lambda client: self._board.rows(client).read(self._in_use[client]))

    def restore(self, states: Mapping[int, Any]) -> None:
        """Continue from such states; other clients keep theirs."""
        new = [client for client in states if client not in self._in_use]
        self._provide(new)
        self._in_use |= {client: self._pool(client).take() for client in new}
        for client, state in states.items():
            self._board.rows(client).write(self._in_use[client], state)

    def close(self) -> None:
        """End the workers. The files stay as long as this object."""
        for worker in self._workers:
            worker.process.kill()
            worker.process.join()
            worker.pipe.close()
        self._workers = []

    def _pool(self, client: int) -> Pool:
        return self._pools[self._board.setup.clients[client].spec.group]

    def _provide(self, clients: Iterable[int]) -> None:
        """Have a spare row for each of these clients."""
        for group, count in Counter(self._board.setup.clients[client].spec.group for client in clients).items():
            self._pools[group].provide(count)

    def _kind(self, job: Job) -> Hashable:
        """Return what the time of a job depends on."""
        client = self._board.setup.clients[job.client]
        if job.round is None:
            return client.spec.group, "evaluation", len(self._board.setup.evaluated[job.client])
        return client.spec.group, "round", min(client.batch_size, len(client.train))

    def _done(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, Any]]:
        """Have all jobs done; yield each, in this order, with its result: of a bad round, its BadUpdateError.

        The first ones are used while the others are computed.
        """
        # The longest go first: then those that are done last are short, and no worker waits long for another.
        longest = sorted(jobs, key=lambda job: self._usual.get(self._kind(job), math.inf), reverse=True)
        waiting, results = deque(longest), dict[int, Any]()
        for job in jobs:
            while job.client not in results:
                self._advance(waiting, results)
            yield job, results.pop(job.client)

    def _advance(self, waiting: deque[Job], results: dict[int, Any]) -> None:
        """Give jobs to workers, and wait until one of them has a result."""
        for worker in self._workers:
            if not worker.jobs and waiting:
                give(worker, waiting.popleft())
        for worker in self._workers:
            # With a job to go on with, it need not wait for this process; the last jobs are for whoever is done first.
            if len(worker.jobs) == 1 and len(waiting) > len(self._workers):
                give(worker, waiting.popleft())
        for ready in wait([worker.pipe for worker in self._workers if worker.jobs]):
            worker = next(w for w in self._workers if w.pipe is ready)
            try:
                result, seconds = worker.pipe.recv()
            except (EOFError, ConnectionError):
                self._revive(worker)
                continue
            if isinstance(result, Exception) and not isinstance(result, BadUpdateError):
                raise result
            job, worker.attempts = worker.jobs.popleft(), 1
            self._usual[self._kind(job)] = seconds
            if job.round is not None:
                self.seconds[job.client] = seconds
            results[job.client] = result

    def _revive(self, worker: Worker) -> None:
        """Replace a worker that died, and give its jobs to the new one."""
        worker.process.join()
        job = worker.jobs[0]
        what = "being evaluated" if job.round is None else f"in round {job.round + 1}"
        who = f"client '{self._board.setup.clients[job.client].name}', {what}"
        code = worker.process.exitcode or 0
        cause = f"signal {-code}" if code < 0 else f"exit code {code}"
        if -code == signal.SIGBUS:
            cause += f": the disk of the folder for temporary files, {tempfile.gettempdir()}, may be full"
        if worker.attempts == MOST_ATTEMPTS:
            raise RunError(
                f"The worker of {who}, died {MOST_ATTEMPTS} times ({cause}): "
                "workers=0 shows the error; if memory is short, use fewer workers or smaller batches."
            )
        warnings.warn(f"The worker of {who}, died ({cause}). Its work is done again by a new one.", stacklevel=2)
        worker.pipe.close()
        worker.process, worker.pipe = start_process(self._board)
        worker.attempts += 1
        for job in worker.jobs:
            send(worker, job)


def usable_cores() -> int:
    """Return the number of cores that workers may use: 0 where forking is not safe, which is anywhere but on Linux, and
    in a worker of someone else's pool, which may have no processes of its own."""
    alone = sys.platform != "linux" or multiprocessing.current_process().daemon
    return 0 if alone else len(os.sched_getaffinity(0))


def give(worker: Worker, job: Job) -> None:
    """Add a job to those of a worker."""
    worker.jobs.append(job)
    send(worker, job)


def send(worker: Worker, job: Job) -> None:
    """Send a worker a job. If it is dead by now, the engine sees that when it waits for the result."""
    with suppress(ConnectionError):
        worker.pipe.send(job)


def start_process(board: Board) -> tuple[BaseProcess, Connection]:
    """Start a worker process; return it, and the pipe to it."""
    # Forked, a worker has the networks and data of this process, whatever they are, and a script needs no guard.
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs, board, os.getpid()), daemon=True)
    with warnings.catch_warnings():
        # Python 3.12 warns of forking beside other threads. The worker uses none of theirs.
        warnings.simplefilter("ignore", DeprecationWarning)
        process.start()
    theirs.close()
    return process, ours


def serve(pipe: Connection, board: Board, parent: int) -> None:
    """Do jobs, one after the other, until the engine is gone. The life of a worker."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the engine's process decides what an interrupt means
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    prepare_worker()
    gc.freeze()  # what was there before: a collection would copy the pages of a hundred thousand clients
    while True:
        while not pipe.poll(ORPHAN_CHECK_SECONDS):
            if os.getppid() != parent:
                return
        try:
            job = pipe.recv()
        except (EOFError, ConnectionError):
            return
        began = time.perf_counter()
        result = reported(partial(board.do, job))
        pipe.send((result, time.perf_counter() - began))


def die_with_parent() -> None:
    """Let the system end this process with the thread that started it, on Linux; elsewhere it notices by itself."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


PR_SET_PDEATHSIG = 1
"""From linux/prctl.h."""
