"""What keeps a federation of a hundred thousand clients cheap: its costs follow the clients that take part."""

import errno
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.small_federation import CLASSES, FEATURES, Net, algorithms, assert_same, clients, samples
from torch import Tensor

from quped import Client, FedAvg, Federation, FitResult, QuPeD, QupedError
from quped.data import Subset, TensorSamples
from quped.records import Checkpoints
from quped.simulation.checkpoint import Parts, identity, load, unstacked
from quped.simulation.engines import InlineEngine, ProcessEngine
from quped.simulation.loop import sample_clients
from quped.typing import Batch


def fit(members: list[Client], **options: Any) -> FitResult:
    """Train for a few rounds, two clients in each."""
    return Federation(members, QuPeD(), Net, seed=3).fit(
        **{"epochs": 6, "local_steps": 2, "batch_size": 8, "clients_per_round": 2, "workers": 0, **options}
    )


@pytest.mark.parametrize("engine", [{"workers": 2}, {"device": "cpu"}])
def test_a_sample_of_clients_is_evaluated(engine: dict[str, Any]) -> None:
    """The same ones in every evaluation and every engine, with the accuracies that they have when all are evaluated."""
    members = [*clients(QuPeD(), 6), Client("silent", samples(0, 20), None, Net)]
    everyone, some = fit(members), fit(members, evaluate_clients=3)
    assert len(everyone.accuracy) == 6
    assert [len(point.accuracy) for point in some.curve] == [3] * len(everyone.curve)
    for all_of, few in zip(everyone.curve, some.curve, strict=True):
        assert few.accuracy.items() <= all_of.accuracy.items()
        assert few.accuracy.keys() == some.accuracy.keys()
    assert some.to_dict()["training"]["evaluate_clients"] == 3
    assert everyone.to_dict()["training"]["evaluate_clients"] is None
    for name, model in everyone.models.items():
        assert torch.equal(model.state.params["first.weight"], some.models[name].state.params["first.weight"])
    elsewhere = fit(members, evaluate_clients=3, **engine)
    assert elsewhere.accuracy.keys() == some.accuracy.keys()
    others = {
        tuple(Federation(members, QuPeD(), Net, seed=seed).setup(evaluate_clients=3).evaluated) for seed in range(9)
    }
    assert len(others) > 1
    assert list(fit(members, evaluate_clients=100).accuracy) == list(everyone.accuracy)


def test_the_global_model_is_evaluated_on_the_same_clients() -> None:
    """By hand, with a module that the result gives."""
    members = clients(FedAvg(), 6)
    result = Federation(members, FedAvg(), seed=3).fit(epochs=2, evaluate_clients=2, workers=0)
    assert len(result.accuracy) == 2
    assert result.global_accuracy == pytest.approx(sum(result.accuracy.values()) / 2)


def newest(checkpoints: Checkpoints, parts: dict[str, str]) -> tuple[dict[int, Tensor], int]:
    """Return the newest state of each client in some parts, and how many states these hold."""
    found, count = dict[int, Tensor](), 0
    for name in reversed(parts):
        tensors, info = checkpoints.part(name)
        for number, group in enumerate(info["groups"]):
            count += len(group)
            rows = zip(group, tensors[f"{number}-personal/x"], strict=True)
            found = {client: row for client, row in rows if client not in found} | found
    return found, count


def test_a_checkpoint_writes_what_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the order: the newest states are found, each at most twice on the disk, and few are written again."""
    monkeypatch.setattr(Parts, "PIECE", 40)  # bytes: five states
    checkpoints, rng = Checkpoints(tmp_path), random.Random(0)
    parts, states = Parts(checkpoints), dict[int, dict[str, Tensor]]()
    changes, written = 0, 0
    save = checkpoints.save_part

    def counting(name: str, tensors: dict[str, Tensor], info: dict[str, Any]) -> tuple[str, str]:
        nonlocal written
        written += sum(map(len, info["groups"]))
        return save(name, tensors, info)

    monkeypatch.setattr(checkpoints, "save_part", counting)
    for round_ in range(40):
        changed = set(rng.sample(range(60), rng.choice([0, 1, 7])))
        changes += len(changed)
        # A client has one of two forms, and some that were asked for gave nothing.
        states |= {c: {"x": torch.full((1 + c % 2,), float(round_))} for c in changed if c != 13}
        told = parts.update(round_, states, changed)
        checkpoints.save(round_, {}, {"round": round_}, told)
        found, count = newest(checkpoints, told)
        assert found.keys() == states.keys()
        assert all(torch.equal(found[client], state["x"]) for client, state in states.items())
        assert count <= 2 * len(states)
    assert written <= 3 * changes
    assert len(states) > 40


def test_a_damaged_part_is_a_damaged_checkpoint(tmp_path: Path) -> None:
    """The one before is used, if it has parts of its own; a run continues from it to the same end."""
    members = clients(QuPeD(), 3)
    options: dict[str, Any] = {"clients_per_round": 3, "checkpoints": tmp_path, "checkpoint_every": 1}
    whole = fit(members, **options)
    last = max(tmp_path.glob("part-*-0000.safetensors"))
    content = bytearray(last.read_bytes())
    content[-1] ^= 1
    last.write_bytes(content)
    with pytest.warns(UserWarning, match="is damaged .* the checkpoint before it is used"):
        again = fit(members, **options)
    assert_same(again, whole)
    for part in tmp_path.glob("part-*"):
        part.unlink()
    with pytest.warns(UserWarning, match="is damaged"), pytest.raises(QupedError, match=r"No checkpoint .* undamaged"):
        fit(members, **options)


@pytest.mark.parametrize("workers", [0, 2])
def test_states_are_restored_in_pieces(tmp_path: Path, workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of clients in several parts, as a checkpoint of many clients has them."""
    monkeypatch.setattr(Parts, "PIECE", 1)
    members = clients(QuPeD(), 6)
    fit(members, checkpoints=tmp_path, checkpoint_every=1)
    setup = Federation(members, QuPeD(), Net, seed=3).setup(epochs=6, local_steps=2, batch_size=8, clients_per_round=2)
    engine = ProcessEngine(setup, workers) if workers else InlineEngine(setup)
    resumed = load(Checkpoints(tmp_path), setup, engine, identity(setup))
    engine.close()
    assert resumed is not None
    took_part = {i for r in range(resumed.first) for i in sample_clients(setup.schedule, 6, 3, r)}
    assert set(engine.states()) == took_part
    assert len(list(tmp_path.glob("part-*"))) > len(took_part)
    whole = fit(members)
    for i in range(6):
        deployed = engine.deploy(resumed.shared, i).state.params
        expected = whole.models[setup.clients[i].name].state.params
        assert all(torch.equal(deployed[name], expected[name]) for name in expected)


def test_states_that_are_known_are_left_out() -> None:
    """A part may hold an older state of a client."""
    setup = Federation(clients(QuPeD(), 3), QuPeD(), Net).setup()
    tensors: dict[str, Tensor] = {}
    assert unstacked(setup, tensors, {"groups": [[0, 2]]}, {0, 2}) == {}


class Disk:
    """Counts the bytes that are reserved; it may be full after some."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, size: float = float("inf")) -> None:
        self.used, self._size = 0, size
        monkeypatch.setattr("os.posix_fallocate", self)

    def __call__(self, file: int, offset: int, length: int) -> None:
        self.used += length
        if self.used > self._size:
            raise OSError(errno.ENOSPC, "No space left on device")


def test_space_is_taken_for_clients_that_take_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row for each, and spare ones for those of a round; for a hundred others nothing."""
    used = []
    for count in (6, 106):
        disk = Disk(monkeypatch)
        members = [Client(f"c{i:03d}", samples(0, 20), None, Net, bits=2) for i in range(count)]
        setup = Federation(members, QuPeD()).setup(clients_per_round=2)
        engine = ProcessEngine(setup, 1)
        fixed, stride = disk.used, engine._board.rows(0).stride
        for round_ in range(5):
            shared = setup.algorithm.init_shared(setup.clients[0].spec)
            engine.run_round(shared, setup.schedule.clock(0), [round_ % 3, 3])
        engine.close()
        assert len(engine.states()) == 4
        used.append((disk.used - fixed) / stride)
    assert used == [4 + 2] * 2


def test_a_disk_that_fills_up_ends_the_run_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a worker writes to a file that has no space left."""
    members = clients(QuPeD(), 6)
    disk = Disk(monkeypatch)
    fit(members, workers=2)
    Disk(monkeypatch, disk.used - 1)
    with pytest.raises(QupedError, match=r"cannot be kept in temporary files: .*No space left.*TMPDIR"):
        fit(members, workers=2)


class Counted:
    """Samples that count how often they are drawn from."""

    def __init__(self, inputs: Tensor, labels: Tensor) -> None:
        self._samples, self.labels, self.draws = TensorSamples(inputs, labels), labels, 0

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, indices: Tensor, rng: np.random.Generator | None = None) -> Batch:
        self.draws += 1
        return self._samples.batch(indices, rng)


def subsets(whole: TensorSamples | Counted, count: int) -> list[Client]:
    """Return clients that share one set of samples."""
    some = torch.arange(0, 60, 2)
    return [Client(f"c{i:02d}", Subset(whole, some + i % 2), Subset(whole, some), Net, bits=2) for i in range(count)]


def test_what_clients_share_is_tried_once() -> None:
    """However many clients have subsets of one whole; a mistake of one of them is still that one's."""
    whole = Counted(*samples(0, 62))
    Federation(subsets(whole, 3), QuPeD())
    once = whole.draws
    Federation(subsets(whole, 30), QuPeD())
    assert whole.draws == 2 * once
    members = subsets(TensorSamples(*samples(0, 62)), 30)
    beyond = Client("c30", Subset(TensorSamples(*samples(0, 62)), torch.tensor([62])), None, Net)
    with pytest.raises(QupedError, match="indices of the training data of client 'c30' go beyond"):
        Federation([*members, beyond], QuPeD())
    wrong = TensorSamples(torch.zeros(4, FEATURES), torch.tensor([0, 1, 2, CLASSES]))
    for name, chosen in (("c31", [0, 3]), ("c32", [3])):
        other = Client(name, Subset(wrong, torch.tensor(chosen)), None, Net, bits=2)
        with pytest.raises(QupedError, match=f"network of client '{name}' has 3 outputs but its labels go up to 3"):
            Federation([*members, other], QuPeD())
    for bits in (True, 2.0, "2"):
        odd: Any = bits
        with pytest.raises(QupedError, match=r"'bits' of client 'c33' must be one of 1\.\.8 or 32"):
            Federation([*members, Client("c33", samples(0, 20), None, Net, bits=odd)], QuPeD())
    short = TensorSamples(torch.zeros(3, FEATURES), torch.tensor([0, 1, 2, 0]))
    with pytest.raises(QupedError, match="No batch can be drawn from the training data of client 'c34': IndexError"):
        Federation([*members, Client("c34", Subset(short, torch.tensor([0, 1])), None, Net)], QuPeD())


def test_a_checkpoint_knows_the_rows_of_a_subset(tmp_path: Path) -> None:
    """Another choice of rows, or other content of a chosen row, is another client; other rows do not matter."""
    inputs, labels = samples(0, 62)

    def words(whole: TensorSamples, chosen: Tensor) -> str:
        inner = Subset(Subset(whole, torch.arange(62)), chosen)
        return identity(Federation([Client("a", inner, None, Net)], QuPeD()).setup()).clients["a"]

    some = torch.arange(0, 60, 2)
    before = words(TensorSamples(inputs, labels), some)
    assert words(TensorSamples(inputs.clone(), labels), some) == before
    assert words(TensorSamples(inputs, labels), some.flip(0)) != before
    for row, same in ((4, False), (5, True)):
        changed = inputs.clone()
        changed[row, 0] += 1
        assert (words(TensorSamples(changed, labels), some) == before) is same


@pytest.mark.parametrize("name", ["quped", "fedavg"])
def test_models_are_made_when_they_are_asked_for(name: str) -> None:
    """Also after the workers have ended; whoever changes one changes no other."""
    algorithm = algorithms()[name]()
    federation = Federation(clients(algorithm, 4), algorithm, Net, seed=3)
    results = [federation.fit(epochs=2, workers=workers, clients_per_round=2) for workers in (0, 2)]
    assert_same(*results)
    model = results[1].models["c1"]
    expected = model.state.params["last.weight"].clone()
    model.state.params["last.weight"].zero_()
    assert torch.equal(results[1].models["c1"].state.params["last.weight"], expected)
    assert "c9" not in results[1].models
    with pytest.raises(KeyError):
        results[1].models["c9"]
