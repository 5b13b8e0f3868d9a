"""The process engine computes what the inline engine computes, and survives its workers."""

import errno
import multiprocessing
import os
import platform
import shutil
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from helpers.deadly import with_deadly_client
from helpers.small_federation import Net, Rounds, algorithms, assert_same, clients, samples
from torch import Tensor, nn

from quped import Client, FedAvg, Federation, FitResult, Local, QuPeD, QupedError, Round
from quped._bench_networks import batchnorm_cnn
from quped.algorithms import AnyAlgorithm
from quped.algorithms.base import Global
from quped.simulation.engines import usable_cores
from quped.simulation.engines.base import average, prepare_worker
from quped.typing import Clock, ModelState, Phase


def fit(algorithm: AnyAlgorithm, members: list[Client], workers: int | None) -> FitResult:
    """Train for a few rounds with sampling, momentum, BatchNorm and both phases."""
    return Federation(members, algorithm, Net, seed=3).fit(
        epochs=5,
        finetune_epochs=2,
        local_steps=2,
        batch_size=8,
        momentum=0.9,
        clients_per_round=min(4, len(members)),
        workers=workers,
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(algorithms()))
def test_inline_and_processes_agree_bit_for_bit(name: str) -> None:
    """For every algorithm, with 1, 2 and 3 workers."""
    algorithm = algorithms()[name]()
    members = clients(algorithm, 5)
    inline = fit(algorithm, members, workers=0)
    for workers in (1, 2, 3):
        assert_same(fit(algorithm, members, workers), inline)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_dead_workers_round_is_done_again(tmp_path: Path, workers: int) -> None:
    """Killed twice, the run ends as if nothing had happened, and says whose worker died.

    One worker has its next job already, and two have too few clients left for that.
    """
    calm = fit(QuPeD(), with_deadly_client(tmp_path, lives=0), workers)
    with pytest.warns(UserWarning, match=r"The worker of client 'c1', in round \d, died \(signal 9\)"):
        shaken = fit(QuPeD(), with_deadly_client(tmp_path, lives=2), workers)
    assert (tmp_path / "deaths").read_text() == "xx"
    assert_same(shaken, calm)


def test_the_mean_of_payloads_leaves_the_cores_to_the_workers() -> None:
    """Threads of this process would spin on them after every sum."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    seen = list[int]()
    try:

        def updates() -> Iterator[tuple[Global, float]]:
            for value in (1.0, 3.0):
                seen.append(torch.get_num_threads())
                yield Global(ModelState({"w": torch.full((2,), value)}, {})), value

        mean, loss = average(updates(), Clock(0, 0, Phase.TRAIN, 0.0, 0.1, 0.1, 0.0))
        assert seen == [1, 1]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert mean.w.params["w"].tolist() == [2.0, 2.0]
    assert loss == 2.0


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries manage memory otherwise")
def test_workers_keep_the_memory_that_a_step_frees() -> None:
    """A worker takes and frees the memory of a step again and again, and the system provides it once."""
    import resource  # which Windows does not have

    ours, theirs = multiprocessing.get_context("fork").Pipe()

    def steps() -> None:
        prepare_worker()
        for turn in range(15):
            if turn == 5:  # by then the memory has its place among that of the parent
                before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            values = [torch.ones(1_000_000) for _ in range(6)]
            del values
        theirs.send(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)

    process = multiprocessing.get_context("fork").Process(target=steps)
    process.start()
    process.join()
    pages_of_one_turn = 6 * 4_000_000 / resource.getpagesize()
    assert ours.recv() < pages_of_one_turn


def test_a_client_that_kills_every_worker_is_named(tmp_path: Path) -> None:
    """After three deaths the run ends with the client, the cause and a remedy."""
    members = with_deadly_client(tmp_path, lives=100)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(QupedError, match=r"client 'c1', in round 1, died 3 times \(signal 9\).*fewer workers"):
            fit(QuPeD(), members, workers=2)
    assert (tmp_path / "deaths").read_text() == "xxx"


def test_a_worker_that_dies_of_a_full_disk_says_so(tmp_path: Path) -> None:
    """A write to a mapped file on a full disk ends a process with SIGBUS."""
    members = with_deadly_client(tmp_path, 100, signal.SIGBUS)
    with (
        pytest.warns(UserWarning, match=r"signal 7: the disk"),
        pytest.raises(QupedError, match=r"disk .* may be full"),
    ):
        fit(QuPeD(), members, workers=2)


def test_errors_of_workers_are_those_of_the_inline_engine() -> None:
    """The same sentence, whoever computed."""
    members = [Client("phone", train=samples(0, 20), test=samples(1, 12), model=Net)]
    for workers in (0, 2):
        with pytest.raises(QupedError, match=r"loss of client 'phone' in round 1 became .* lower the learning rate"):
            Federation(members, QuPeD()).fit(lr=1e12, workers=workers)


class Particular(Net):
    """A network that fails in its own way when it is trained."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits, or raise what a pickle cannot bring back."""
        if self.training and torch.is_grad_enabled():
            raise OddError("this", "that")
        return super().forward(inputs)


class OddError(Exception):
    """An error with arguments of its own."""

    def __init__(self, one: str, other: str) -> None:
        """Take two, and give one to the base class."""
        super().__init__(f"{one} and {other}")


@pytest.mark.parametrize("workers", [0, 2])
def test_any_error_of_a_network_names_the_client_and_the_line(workers: int) -> None:
    """Also one that does not survive the way from a worker."""
    members = [Client("phone", train=samples(0, 20), test=samples(1, 12), model=Particular)]
    with pytest.raises(QupedError, match="Client 'phone' failed in round 1: OddError: this and that") as failed:
        Federation(members, Local()).fit(workers=workers)
    cause = failed.value.__notes__[0] if workers else "".join(traceback.format_exception(failed.value.__cause__))
    assert 'raise OddError("this", "that")' in cause


def fit_in_a_pool(workers: int | None) -> str:
    """FitResult in a process that may not have processes of its own; say how that went."""
    members = [Client("phone", train=samples(0, 20), test=samples(1, 12), model=Net)]
    try:
        return str(Federation(members, Local()).fit(epochs=1, workers=workers).rounds)
    except QupedError as error:
        return str(error)


def test_a_search_in_a_pool_of_processes_works() -> None:
    """Its workers compute by themselves; asked for more, they say what to do."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply(fit_in_a_pool, (None,)) == "1"
        assert "may not start others: use workers=0" in pool.apply(fit_in_a_pool, (2,))


def test_fits_in_threads_take_turns() -> None:
    """They share a network and PyTorch's generator, and yet have the results that they have alone."""
    federation = Federation([Client("phone", train=samples(0, 20), test=samples(1, 12), model=dropping)], Local())
    rates = (0.1, 0.01)
    alone = [federation.fit(epochs=5, lr=rate, workers=0) for rate in rates]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(2) as pool:
            at_once = list(pool.map(lambda rate: federation.fit(epochs=5, lr=rate, workers=0), rates))
    finally:
        sys.setswitchinterval(interval)
    for one, other in zip(alone, at_once, strict=True):
        assert_same(one, other)


def dropping() -> nn.Module:
    """Return a network with dropout."""
    return nn.Sequential(Net(), nn.Dropout(0.3))


def test_too_little_space_is_told_before_it_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk would kill processes without a word."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(QupedError, match=f"temporary files, {tmp_path}, has 0.0 GB left.*TMPDIR.*workers=0"):
        fit(QuPeD(), clients(QuPeD(), 5), workers=2)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(QupedError, match=r"cannot be kept in temporary files: .*No space left.*TMPDIR"):
        fit(QuPeD(), clients(QuPeD(), 2), workers=2)


def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Temporary files and processes end with the run, also when it fails."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    members, before = clients(QuPeD(), 3), children()  # a library of another test may have a process of its own

    def while_it_runs(_: Round) -> None:
        assert list((tmp_path / "scratch").iterdir()) == []  # so a kill leaves nothing

    Federation(members, QuPeD(), Net).fit(epochs=3, workers=2, callbacks=[Rounds(while_it_runs)])
    with pytest.raises(QupedError):
        Federation(members, QuPeD(), Net).fit(lr=1e12, workers=2)
    assert list((tmp_path / "scratch").iterdir()) == []
    assert children() == before


def test_workers_end_with_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if it is killed, and they alone are left."""
    monkeypatch.setattr("quped.simulation.engines.processes.ORPHAN_CHECK_SECONDS", 0.1)

    def die(_: Round) -> None:
        (tmp_path / "workers").write_text(" ".join(map(str, children())))
        os.kill(os.getpid(), signal.SIGKILL)

    program = multiprocessing.get_context("fork").Process(
        target=lambda: Federation(clients(QuPeD(), 3), QuPeD(), Net).fit(workers=2, callbacks=[Rounds(die)])
    )
    program.start()
    program.join(60)
    workers = [int(word) for word in (tmp_path / "workers").read_text().split()]
    assert len(workers) == 2
    limit = time.monotonic() + 20
    while any(map(alive, workers)) and time.monotonic() < limit:
        time.sleep(0.05)
    assert not any(map(alive, workers))


def parent(process: int) -> int | None:
    """Return the parent of a living process; None if it has ended, though its exit code may still be there."""
    try:
        state, parent, *_ = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if state == "Z" else int(parent)


def alive(process: int) -> bool:
    """Say whether a process has not ended."""
    return parent(process) is not None


def children() -> list[int]:
    """Return the living child processes of this one."""
    everyone = [int(folder.name) for folder in Path("/proc").glob("[0-9]*")]
    return [process for process in everyone if parent(process) == os.getpid()]


def test_the_number_of_workers() -> None:
    """By default all usable cores; a negative number is refused."""
    assert usable_cores() >= 1
    seen: list[int] = []
    before = len(children())
    Federation(clients(QuPeD(), 5), QuPeD(), Net).fit(
        epochs=1, callbacks=[Rounds(lambda _: seen.append(len(children()) - before))]
    )
    assert set(seen) == {min(5, usable_cores())}
    with pytest.raises(QupedError, match="number of workers must be a whole number of at least 0, got -1"):
        fit(QuPeD(), clients(QuPeD(), 2), workers=-1)


@pytest.mark.parametrize("algorithm", [FedAvg(), QuPeD()], ids=lambda algorithm: algorithm.name)
def test_convolutions_agree_bit_for_bit(algorithm: AnyAlgorithm) -> None:
    """PyTorch's, which keep their channels last in between: states are in the usual order, wherever they were."""
    network = batchnorm_cnn()
    rng = torch.Generator().manual_seed(0)
    members = [
        Client(
            f"c{i}",
            train=(torch.randn(12, 3, 32, 32, generator=rng), torch.arange(12) % 10),
            test=(torch.randn(10, 3, 32, 32, generator=rng), torch.arange(10)),
            model=network,
            bits=2 if algorithm.quantizes else 32,
            end_bits=8 if algorithm.quantizes else None,
        )
        for i in range(2)
    ]
    one, other = (
        Federation(members, algorithm).fit(epochs=3, batch_size=6, local_steps=1, momentum=0.9, workers=workers)
        for workers in (0, 2)
    )
    assert_same(one, other)
