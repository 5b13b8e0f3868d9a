"""The engine that stacks clients computes what the inline engine computes, up to rounding."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from helpers.small_federation import CLASSES, FEATURES, Net, Rounds, algorithms, clients, samples
from torch import nn

from quped import Client, Federation, FitResult, QuPeD, QupedError, Round, _tree
from quped._transform import under_vmap
from quped.algorithms import AnyAlgorithm
from quped.algorithms.quantization import Quantization
from quped.data import Subset
from quped.data.datasets.digits import digits
from quped.models import cnn1
from quped.simulation.engines import vmap

pytestmark = pytest.mark.slow


@pytest.fixture
def stacks(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Note the size of every stack that is computed."""
    sizes: list[int] = []

    def noting(f: Callable[..., object], randomness: str) -> Callable[..., object]:
        def run(shared: object, personal: object, steps: object) -> object:
            sizes.append(len(next(leaf for _, leaf in _tree.items(steps))))
            return torch.func.vmap(f, randomness=randomness)(shared, personal, steps)

        return run

    monkeypatch.setattr(vmap, "vmap", noting)
    yield sizes
    assert not under_vmap()


class StopError(Exception):
    """Stands for whatever ends a process between two rounds."""


def fit(
    algorithm: AnyAlgorithm,
    members: list[Client],
    device: str | None,
    global_model: Callable[[], nn.Module] = Net,
    checkpoints: Path | None = None,
    stop_after: int | None = None,
) -> FitResult:
    """Train for a few rounds with sampling, momentum, BatchNorm and both phases; raise after a round if told."""

    def stop(round_: Round) -> None:
        if round_.clock.round == stop_after:
            raise StopError

    return Federation(members, algorithm, global_model, seed=3).fit(
        epochs=5,
        finetune_epochs=2,
        local_steps=2,
        batch_size=8,
        momentum=0.9,
        clients_per_round=len(members) - 1,
        workers=0,
        device=device,
        checkpoints=checkpoints,
        checkpoint_every=1,
        callbacks=[Rounds(stop)],
    )


def assert_close(a: FitResult, b: FitResult) -> None:
    """Assert that two runs agree in every number of their models and in every loss."""
    for left, right in zip(_tree.items(dict(a.models)), _tree.items(dict(b.models)), strict=True):
        assert left[0] == right[0]
        torch.testing.assert_close(left[1], right[1], rtol=1e-4, atol=1e-5)
    assert [e.loss for e in a.curve] == pytest.approx([e.loss for e in b.curve], rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(algorithms()))
def test_vmapped_and_inline_agree(name: str, stacks: list[int]) -> None:
    """For every algorithm, in groups with different networks and bit-widths, some of them a single client."""
    algorithm = algorithms()[name]()
    members = clients(algorithm, 9)
    assert_close(fit(algorithm, members, "cpu"), fit(algorithm, members, None))
    assert len(stacks) >= 7, "at least one stack in each round"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Most of the file is not quantized")
@pytest.mark.parametrize("bits", [1, 2, 5, 32])
def test_networks_with_kernels_of_their_own(bits: int, stacks: list[int]) -> None:
    """CNN1 on digits: compiled kernels compute one client, PyTorch's own a stack."""
    data = digits()
    network = partial(cnn1, data.input_shape, data.classes)
    members = [
        Client(
            name=f"c{i}",
            train=Subset(data.train, torch.arange(i, 400, 4)),
            test=Subset(data.test, torch.arange(100)),
            model=network,
            bits=bits,
        )
        for i in range(4)
    ]
    assert_close(fit(QuPeD(), members, "cpu", network), fit(QuPeD(), members, None, network))
    assert set(stacks) == {3}


@pytest.mark.parametrize(
    "quantization",
    [Quantization(sharpness=50.0), Quantization(straight_through=True), Quantization(update_centers=False)],
    ids=["soft", "straight through", "fixed centers"],
)
@pytest.mark.parametrize("per_channel", [False, True])
def test_other_quantizers(quantization: Quantization, per_channel: bool, stacks: list[int]) -> None:
    """The soft quantizer and centers that stay, one set to a layer or to a channel."""
    members = [
        Client(f"c{i}", samples(i, 20), samples(100 + i, 12), Net, bits=2, per_channel=per_channel) for i in range(4)
    ]
    algorithm = QuPeD(quantization=quantization)
    assert_close(fit(algorithm, members, "cpu"), fit(algorithm, members, None))
    assert set(stacks) == {3}


def test_batches_of_other_sizes_are_not_stacked(stacks: list[int]) -> None:
    """A client with fewer samples than the batch size is computed alone."""
    members = [Client(f"c{i}", samples(i, (20, 5, 20, 6)[i]), samples(100 + i, 12), Net, bits=2) for i in range(4)]
    assert_close(fit(QuPeD(), members, "cpu"), fit(QuPeD(), members, None))
    assert set(stacks) == {2}


def with_dropout() -> nn.Module:
    """A network that draws random numbers."""
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.Dropout(0.5), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, CLASSES))


def test_dropout_differs_between_clients_and_not_between_runs() -> None:
    """Clients with the same data drop different units; a seed gives the same ones again."""
    members = [Client(f"c{i}", samples(0, 8), samples(1, 12), with_dropout) for i in range(2)]  # both in every round
    algorithm = algorithms()["local"]()
    first, second = (fit(algorithm, members, "cpu", with_dropout) for _ in range(2))
    assert_close(first, second)
    one, other = (first.models[name].state.params["0.weight"] for name in ("c0", "c1"))
    assert not torch.allclose(one, other, atol=1e-3)


@pytest.mark.slow
def test_interrupted_runs_go_on(tmp_path: Path) -> None:
    """From a checkpoint of this engine, with it and with another."""
    members = clients(QuPeD(), 9)
    whole = fit(QuPeD(), members, None)
    for device in ("cpu", None):
        folder = tmp_path / str(device)
        with pytest.raises(StopError):
            fit(QuPeD(), members, "cpu", checkpoints=folder, stop_after=3)
        assert_close(fit(QuPeD(), members, device, checkpoints=folder), whole)


def test_errors_name_the_clients_and_the_remedy() -> None:
    """What cannot be stacked, training that diverges, workers beside a device, and a device that is not there."""
    members = [Client(f"c{i}", samples(i, 20), samples(100 + i, 12), Net, bits=2) for i in range(3)]
    exact = QuPeD(quantization=Quantization(center_prox="exact"))
    with pytest.raises(QupedError, match=r"clients 'c\d', 'c\d' cannot be computed at once: .* Without device=..."):
        fit(exact, members, "cpu")
    with pytest.raises(QupedError, match=r"training loss of client 'c0' in round 1 became .* lower the learning rate"):
        Federation(members, QuPeD()).fit(lr=1e12, device="cpu")
    with pytest.raises(QupedError, match="engine 'vmapped' takes no workers: leave it out, or use engine='processes'"):
        Federation(members, QuPeD()).fit(workers=2, device="cpu")
    for device in ("cuda:99", "mps", "abacus"):
        with pytest.raises(QupedError, match=f"The device '{device}' cannot be used here: .* CPU"):
            Federation(members, QuPeD()).fit(device=device)
