"""The engine for all cores: one worker process per core, one thread each. The result is that of the inline engine.

Only numbers cross the borders between processes. States lie in memory-mapped files that all of them see: the shared
state, one row of payload for each client of a round, and two rows of personal state for each client. A worker writes
the row that is not in use; once it has reported, the engine takes that row. So a worker that dies leaves nothing
half-written, and its client's round is computed again, with the same result.
"""

import ctypes
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch

from quped import _tree
from quped._evaluate import Score
from quped.algorithms import Deployed
from quped.data import Samples
from quped.errors import BadUpdateError, RunError, check
from quped.simulation.client_round import evaluate_client, initial_personal, run_client
from quped.simulation.engines._shared_rows import Rows
from quped.simulation.engines.base import average, reported
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
    target: int
    """The row in which its personal state is put."""
    position: int
    """The row in which its payload is put."""


@dataclass(frozen=True)
class Board:
    """What all processes see: the setup, and the files with the states."""

    setup: Setup
    shared: Rows
    payloads: Rows
    personal: Mapping[int, Rows]
    """For each group of clients a file, in which each client has two rows."""

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
        self.payloads.write(job.position, payload)
        return loss


def lay_out(setup: Setup) -> Board:
    """Make the files, in the forms of the states that they hold; reserve the space that a run surely uses."""
    templates = setup.templates
    sizes = Counter(client.spec.group for client in setup.clients)
    everyone = setup.schedule.clients_per_round == len(setup.clients)
    try:
        board = Board(
            setup=setup,
            shared=unnamed_rows(templates.shared, 1, reserve=True),
            payloads=unnamed_rows(templates.payload, setup.schedule.clients_per_round, reserve=True),
            personal={
                group: unnamed_rows(template, 2 * sizes[group], reserve=everyone)
                for group, template in templates.personal.items()
            },
        )
    except (OSError, RuntimeError) as error:  # PyTorch's, of a file that it cannot map
        raise RunError(f"The states of the clients cannot be kept in temporary files: {error}. {REMEDY}") from error
    needed = sum(rows.size for rows in (board.shared, board.payloads, *board.personal.values()))
    folder = tempfile.gettempdir()
    free = shutil.disk_usage(folder).free
    if not everyone and needed > free:
        raise RunError(
            f"The states of all clients may take {needed / 1e9:.1f} GB, and the folder for temporary files, "
            f"{folder}, has {free / 1e9:.1f} GB left. {REMEDY}"
        )
    return board


def unnamed_rows(template: Any, count: int, *, reserve: bool) -> Rows:
    """Make rows in a temporary file without a name, mapped here and in every fork: however this ends, it is gone."""
    with tempfile.TemporaryFile(prefix="quped-") as file:
        return Rows(Path(f"/dev/fd/{file.fileno()}"), template, count, reserve=reserve)


REMEDY = "Let the environment variable TMPDIR name a folder on a larger disk, or use workers=0."


@dataclass
class Worker:
    """A process, the pipe to it, and what it is doing."""

    process: BaseProcess
    pipe: Connection
    job: Job | None = None
    attempts: int = 0


class ProcessEngine:
    """Keeps the workers busy with one client at a time, and knows which rows are in use."""

    def __init__(self, setup: Setup, workers: int) -> None:
        """Lay out the states and start the workers."""
        check(workers >= 1, "number of workers", "at least 1", workers)
        if "fork" not in multiprocessing.get_all_start_methods():
            raise RunError("Worker processes need fork, which this system does not have: use workers=0.")
        if multiprocessing.current_process().daemon:
            raise RunError("This process is a worker itself, and may not start others: use workers=0.")
        self._board = lay_out(setup)
        seen: Counter[int] = Counter()
        self._first_row = []
        for client in setup.clients:
            self._first_row.append(2 * seen[client.spec.group])
            seen[client.spec.group] += 1
        self._in_use: dict[int, int] = {}
        """For each client that took part, the row of its state."""
        count = min(workers, len(setup.clients))
        self._workers = [Worker(*start_process(self._board)) for _ in range(count)]

    def run_round(self, shared: Any, clock: Clock, chosen: Sequence[int]) -> tuple[Any, float]:
        """Run one round of the chosen clients; return the mean of their payloads, in this order, and the mean loss."""
        self._board.shared.write(0, shared)
        jobs = [self._job(client, clock.round, position) for position, client in enumerate(chosen)]
        done = []
        for job, loss in zip(jobs, self._all(jobs), strict=True):
            if isinstance(loss, BadUpdateError):
                self._board.setup.handle_bad_update(loss)
            else:
                done.append((job, loss))
        self._in_use |= {job.client: job.target for job, _ in done}
        return average(((self._board.payloads.read(job.position), loss) for job, loss in done), clock)

    def evaluate(self, shared: Any) -> dict[int, Score]:
        """Evaluate each client's deployed model on its own test samples, if it has some."""
        self._board.shared.write(0, shared)
        tested = [i for i, client in enumerate(self._board.setup.clients) if client.test is not None]
        return dict(zip(tested, self._all([self._job(client, None, 0) for client in tested]), strict=True))

    def personal(self, shared: Any, client: int) -> Any:
        """Return a copy of a client's own state; before its first round, its initial state."""
        return _tree.map_leaves(torch.clone, self._board.state(shared, client, self._in_use.get(client)))

    def deploy(self, shared: Any, client: int) -> Deployed:
        """Return the model that a client uses now."""
        setup = self._board.setup
        return setup.algorithm.deploy(setup.clients[client].spec, shared, self.personal(shared, client))

    def states(self) -> dict[int, Any]:
        """Return the personal state of every client that took part; its tensors are views of the files."""
        return {client: self._board.rows(client).read(row) for client, row in self._in_use.items()}

    def restore(self, states: Mapping[int, Any]) -> None:
        """Continue from such states."""
        for client, state in states.items():
            self._in_use[client] = self._first_row[client]
            self._board.rows(client).write(self._first_row[client], state)

    def close(self) -> None:
        """End the workers."""
        for worker in self._workers:
            worker.process.kill()
            worker.process.join()
            worker.pipe.close()
        self._workers = []

    def _job(self, client: int, round_: int | None, position: int) -> Job:
        source, first = self._in_use.get(client), self._first_row[client]
        return Job(client, round_, source, first + 1 if source == first else first, position)

    def _all(self, jobs: Sequence[Job]) -> list[Any]:
        """Have all jobs done and return their results in this order; of a round that went wrong, its BadUpdateError."""
        # The largest clients go first: then those that are done last are small, and no worker waits long for another.
        waiting = sorted(jobs, key=lambda job: len(self._board.setup.clients[job.client].train))
        results: dict[int, Any] = {}
        while len(results) < len(jobs):
            for worker in self._workers:
                if worker.job is None and waiting:
                    worker.job = waiting.pop()
                    worker.attempts = 1
                    send(worker)
            for ready in wait([worker.pipe for worker in self._workers if worker.job is not None]):
                worker = next(w for w in self._workers if w.pipe is ready)
                try:
                    result = worker.pipe.recv()
                except (EOFError, ConnectionError):
                    self._revive(worker)
                    continue
                if isinstance(result, Exception) and not isinstance(result, BadUpdateError):
                    raise result
                results[cast(Job, worker.job).client] = result
                worker.job = None
        return [results[job.client] for job in jobs]

    def _revive(self, worker: Worker) -> None:
        """Replace a worker that died, and give its job to the new one."""
        worker.process.join()
        job = cast(Job, worker.job)
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
        send(worker)


def usable_cores() -> int:
    """Return the number of cores that workers may use: 0 where forking is not safe, which is anywhere but on Linux, and
    in a worker of someone else's pool, which may have no processes of its own."""
    alone = sys.platform != "linux" or multiprocessing.current_process().daemon
    return 0 if alone else len(os.sched_getaffinity(0))


def send(worker: Worker) -> None:
    """Send a worker its job. If it is dead by now, the engine sees that when it waits for the result."""
    with suppress(ConnectionError):
        worker.pipe.send(worker.job)


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
    torch.set_num_threads(1)
    while True:
        while not pipe.poll(ORPHAN_CHECK_SECONDS):
            if os.getppid() != parent:
                return
        try:
            job = pipe.recv()
        except (EOFError, ConnectionError):
            return
        pipe.send(reported(partial(board.do, job)))


def die_with_parent() -> None:
    """Let the system end this process with the thread that started it, on Linux; elsewhere it notices by itself."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


PR_SET_PDEATHSIG = 1
"""From linux/prctl.h."""
