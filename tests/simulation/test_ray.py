"""Actors of Ray compute what the inline engine computes, and may die. Run by `make test-ray`."""

import os
import pickle
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.deadly import with_deadly_client
from helpers.small_federation import Net, Rounds, algorithms, assert_same, clients, fit, samples

from quped import Client, FedAvg, Federation, Local, QuPeD, QupedError
from quped.data import Subset, TensorSamples
from quped.data.datasets.images import ImageSamples
from quped.data.download import store
from quped.models import cnn1
from quped.simulation.engines import EngineChoice

ray = pytest.importorskip("ray", reason="needs the extra [ray]: make test-ray")


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    """Start Ray once: the engine uses a connection that is there."""
    from quped.simulation.engines.ray import connected

    with connected(None, workers=2):
        yield
    assert not ray.is_initialized()


def test_ray_listens_on_this_machine_alone() -> None:
    assert [node["NodeManagerAddress"] for node in ray.nodes()] == ["127.0.0.1"]


@pytest.mark.parametrize("name", sorted(algorithms()))
def test_inline_and_ray_agree_bit_for_bit(name: str) -> None:
    algorithm = algorithms()[name]()
    assert_same(fit(algorithm, engine="ray", workers=2, clients_per_round=2), fit(algorithm, clients_per_round=2))


COUNTS = pytest.mark.parametrize("count", [3, 20])
"""With few clients an actor gets one job at a time, with many several."""


@COUNTS
def test_a_dead_actors_round_is_done_again(tmp_path: Path, count: int) -> None:
    """Killed twice, the run ends as if nothing had happened, and says whose actor died."""
    calm = fit(QuPeD(), with_deadly_client(tmp_path, lives=0, count=count))
    with pytest.warns(UserWarning, match="The actor of client 'c") as told:
        shaken = fit(QuPeD(), with_deadly_client(tmp_path, lives=2, count=count), engine="ray", workers=2)
    whose = r"The actor of client 'c1'%s, in round \d, died" % (" or one of 1 others" if count == 20 else "")
    assert re.match(whose, str(told[0].message))
    assert (tmp_path / "deaths").read_text() == "xx"
    assert_same(shaken, calm)


@COUNTS
def test_a_client_that_kills_every_actor_is_named(tmp_path: Path, count: int) -> None:
    members = with_deadly_client(tmp_path, lives=100, count=count)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(QupedError, match=r"actor of client 'c1', in round 1, died 3 times .*fewer workers"):
            fit(QuPeD(), members, engine="ray", workers=2)
    assert (tmp_path / "deaths").read_text() == "xxx"


def test_errors_are_those_of_the_inline_engine() -> None:
    """Of a client that diverges, of data that cannot travel, and of a cluster that is too small."""
    members = [Client("phone", train=samples(0, 20), test=samples(1, 12), model=Net)]
    with pytest.raises(QupedError, match=r"loss of client 'phone' in round 1 became .* lower the learning rate"):
        Federation(members, QuPeD()).fit(lr=1e12, engine="ray", workers=1)
    locked = Federation([replace(members[0], train=Locked(*samples(0, 20)))], Local())
    with pytest.raises(QupedError, match=r"data of client 'phone' cannot be sent .* Use engine='processes'"):
        locked.fit(engine="ray", workers=1)
    with pytest.raises(QupedError, match="The Ray cluster has 2 cores for 3 workers"):
        fit(QuPeD(), engine="ray", workers=3)


class Locked(TensorSamples):
    """Samples that cannot be pickled."""

    def __getstate__(self) -> object:
        return {**vars(self), "lock": threading.Lock()}


def test_rows_of_a_large_tensor_travel_alone() -> None:
    """PyTorch would pickle all of it with each client."""
    from quped.simulation.engines.ray import packed

    row = torch.arange(100_000.0)[500:600]
    message = packed(row, "A row")
    assert len(message) < 2000 < len(pickle.dumps(row))
    assert torch.equal(pickle.loads(message), row)


IMAGES = torch.randint(0, 256, (60, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def image_clients(file: Path) -> list[Client]:
    """Return clients with shares of a stored data set."""
    data = ImageSamples(file, "train", (0.5,) * 3, (0.5,) * 3, augment=True)
    shares = [Subset(data, torch.arange(20) + 20 * i) for i in range(3)]
    network = cnn1((3, 32, 32), 10)
    return [Client(f"c{i}", train=share, test=share, model=network) for i, share in enumerate(shares)]


@pytest.mark.parametrize("everywhere", [True, False])
def test_data_travel_once_by_name_where_the_file_is(
    everywhere: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client's message has no pixels; a machine without the file gets them all, once."""
    from quped.simulation.engines import ray as module

    file = tmp_path / "pictures.safetensors"
    store.write(file, {"train_images": IMAGES, "train_labels": torch.arange(60) % 10}, "", tmp_path)
    with file.open() as opened:
        seen = file if everywhere else Path(f"/proc/self/fd/{opened.fileno()}")  # another process has no such file
        federation = Federation(image_clients(seen), FedAvg())
        sent: Counter[str] = Counter()
        pack = module.packed

        def counted(value: object, what: str) -> bytes:
            message = pack(value, what)
            sent[what] += 1
            assert len(message) < 10_000 or not isinstance(value, module.Travelling)
            return message

        monkeypatch.setattr(module, "packed", counted)
        files: list[Path] = []
        send = module.RayEngine._send_file

        def noted(engine: module.RayEngine, actor: module.Actor, file: Path) -> None:
            files.append(file)
            send(engine, actor, file)

        monkeypatch.setattr(module.RayEngine, "_send_file", noted)
        options: dict[str, Any] = {"epochs": 3, "batch_size": 10, "progress": False}
        result = federation.fit(engine="ray", workers=1, **options)
        assert_same(result, federation.fit(engine="inline", **options))
    again = 0 if everywhere else 1  # the first message, and those sent ahead, did not find the file
    assert set(files) == (set() if everywhere else {seen})
    for name in ("c0", "c1", "c2"):
        assert 1 <= sent[f"The data of client '{name}'"] <= 1 + again


PROGRAM = """
import os, signal, sys
from helpers.small_federation import Rounds, fit
from quped import QuPeD

def die(round_):
    if round_.clock.round == 2:
        os.kill(os.getpid(), signal.SIGKILL)

fit(QuPeD(), engine="ray", workers=2, checkpoints=sys.argv[1], checkpoint_every=1, callbacks=[Rounds(die)])
"""


def test_a_killed_program_resumes_and_leaves_no_process(tmp_path: Path) -> None:
    """A program with a cluster of its own is killed between two rounds; another one continues, with the same result."""
    folder = tmp_path / "checkpoints"
    path = os.pathsep.join(entry for entry in sys.path if entry)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:  # Ray wants a short path
        program = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(folder)],
            env={**os.environ, "PYTHONPATH": path, "TMPDIR": scratch},
            start_new_session=True,
        )
        assert program.wait(240) == -signal.SIGKILL
    rounds = Rounds()
    resumed = fit(QuPeD(), engine="ray", workers=2, checkpoints=folder, callbacks=[rounds])
    assert rounds.rounds[0].clock.round == 2
    assert_same(resumed, fit(QuPeD()))
    limit = time.monotonic() + 60
    while (left := in_session(program.pid)) and time.monotonic() < limit:
        time.sleep(0.5)
    for process in left:  # so that nothing stays behind, whatever the outcome
        os.kill(process, signal.SIGKILL)
    assert left == []


def in_session(leader: int) -> list[int]:
    """Return the living processes of a session."""
    found = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, session, *_ = file.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(session) == leader and state != "Z":
            found.append(int(file.parent.name))
    return found


def test_late_rounds_see_what_early_ones_left() -> None:
    """States come back to the engine after every round, and can be taken from it and given to another."""
    setup = Federation(clients(QuPeD()), QuPeD(), Net, seed=3).setup(epochs=2, batch_size=8, local_steps=2)
    engines = [EngineChoice(name).open(setup) for name in ("inline", "ray")]
    shared = setup.algorithm.init_shared(setup.clients[0].spec)
    means = [engine.run_round(shared, setup.schedule.clock(0), [0, 2]) for engine in engines]
    assert sorted(engines[1].states()) == [0, 2]
    assert sorted(engines[1].seconds) == [0, 2]
    assert all(0 < seconds < 60 for seconds in engines[1].seconds.values())
    engines[0].restore(engines[1].states())
    means = [engine.run_round(shared, setup.schedule.clock(1), [0, 1, 2]) for engine in engines]
    assert means[0][1] == means[1][1]
    engines[1].close()
    assert ray.is_initialized()  # what was not ours is left as it was
