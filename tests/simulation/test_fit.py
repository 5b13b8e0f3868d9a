"""A run from outside: observers, threads, clients without test samples, bits by tensor."""

import inspect
import math
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields

import pytest
import torch
from helpers.small_federation import CLASSES, FEATURES, Net, Rounds, assert_same, samples, values, wide_net
from torch import nn

from quped import Client, FedAvg, Federation, FitResult, QuPeD, QupedError, Round, TrainingOptions


def client(name: str = "phone", bits: int = 32, model: type[nn.Module] = Net) -> Client:
    return Client(name, train=samples(0, 20), test=samples(1, 12), model=model, bits=bits)


def with_dropout() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 16), nn.Dropout(0.5), nn.ReLU(), nn.Linear(16, CLASSES))


def make_and_fit(seed: int) -> FitResult:
    """Make a federation with random weights and dropout, and train it in this thread."""
    clients = [Client(f"c{i}", samples(i, 40), samples(9, 12), with_dropout) for i in range(2)]
    return Federation(clients, FedAvg(), seed=seed).fit(epochs=2, workers=0, progress=False)


def test_federations_made_and_fitted_in_threads_do_not_disturb_each_other() -> None:
    seeds = list(range(4)) * 3
    alone = {seed: make_and_fit(seed) for seed in set(seeds)}
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(4) as pool:
            at_once = list(pool.map(make_and_fit, seeds))
    finally:
        sys.setswitchinterval(interval)
    for seed, result in zip(seeds, at_once, strict=True):
        assert_same(result, alone[seed])
        assert result.global_accuracy == alone[seed].global_accuracy


class StopAfter:
    """Ends a run after a round."""

    def __init__(self, round_: int) -> None:
        self._round = round_

    def after_round(self, round_: Round) -> bool:
        return round_.clock.round == self._round


def test_an_observer_may_end_the_run() -> None:
    """The result is that of the round in which it ended, evaluated though no evaluation was due."""
    rounds = Rounds()
    federation = Federation([client(bits=2)], QuPeD())
    options = TrainingOptions(epochs=20, local_steps=1, evaluate_every=20)
    result = federation.fit(options, workers=0, progress=False, callbacks=[StopAfter(4), rounds])
    assert result.rounds == len(rounds.rounds) == 5
    assert [point.round for point in result.curve] == [4]
    inputs, labels = samples(1, 12)
    accuracy = float((result.module("phone")(inputs).argmax(1) == labels).float().mean())
    assert result.accuracy["phone"] == pytest.approx(accuracy)


def test_options_may_be_one_object_or_names() -> None:
    federation = Federation([client(bits=2)], QuPeD())
    named = federation.fit(epochs=3, lr=0.2, workers=0)
    one = federation.fit(TrainingOptions(epochs=9, lr=0.2), epochs=3, workers=0)
    assert_same(named, one)


def test_help_lists_every_training_option() -> None:
    text = inspect.getdoc(Federation.fit) or ""
    for option in fields(TrainingOptions):
        assert f"{option.name}: " in text
        assert option.metadata["help"][:20] in text


@pytest.mark.parametrize("workers", [0, 2])
def test_a_client_without_test_samples(workers: int) -> None:
    """It trains as it would with some; it has no accuracy, and does not count in the mean."""
    tested = [client("phone", bits=1), client("tablet", bits=2)]
    silent = [tested[0], Client("tablet", train=samples(0, 20), test=None, model=Net, bits=2)]
    full, partial = (Federation(c, QuPeD()).fit(epochs=3, workers=workers) for c in (tested, silent))
    assert partial.accuracy == {"phone": full.accuracy["phone"]}
    assert [c.accuracy for c in partial.clients] == [full.accuracy["phone"], None]
    assert partial.curve[-1].mean == full.accuracy["phone"]
    for name, model in full.models.items():
        assert torch.equal(model.state.params["first.weight"], partial.models[name].state.params["first.weight"])


def test_no_client_has_test_samples() -> None:
    nobody = Federation([Client("a", samples(0, 20), None, Net)], QuPeD()).fit(epochs=1, workers=0)
    assert nobody.accuracy == {}
    assert math.isnan(nobody.curve[-1].mean)
    none: dict[str, object] = {"mean": None, "std": None, "worst_tenth": None, "per_client": {}}
    assert nobody.to_dict()["accuracy"] == nobody.to_dict()["accuracy_own_classes"] == none
    assert nobody.global_accuracy is None
    assert nobody.global_accuracy_own_classes is None


def test_bits_may_differ_by_tensor() -> None:
    """Each named tensor has its own number of values, and its codebook says which."""
    bits = {"first.weight": 3, "middle.weight": 1}
    device = Client("a", samples(0, 20), samples(1, 12), Net, bits=bits)
    federation = Federation([device], QuPeD())
    assert federation.summary() == {"a": bits}
    result = federation.fit(epochs=6, workers=0)
    model = result.models["a"]
    assert model.codebooks.keys() == bits.keys()
    for name, width in bits.items():
        assert 1 < len(values(model.state.params[name])) <= 2**width
    assert len(values(model.state.params["last.weight"])) > 8
    with pytest.raises(QupedError, match=r"'bits' of 'last.weight' of client 'a' must be one of"):
        Federation([Client("a", samples(0, 20), None, Net, bits={"last.weight": 9})], QuPeD())
    with pytest.raises(QupedError, match=r"network of client 'a' cannot be quantized: .* Did you mean 'last.weight'"):
        Federation([Client("a", samples(0, 20), None, Net, bits={"lost.weight": 2})], QuPeD())


def test_a_method_that_does_not_fit_says_everything_at_once() -> None:
    """FedAvg on quantized clients with different networks: both reasons, and a method that can."""
    clients = [client("phone", 1), Client("tablet", samples(0, 20), None, wide_net, bits=2)]
    with pytest.raises(QupedError) as error:
        Federation(clients, FedAvg())
    for words in ("full-precision", "'phone', 'tablet'", "one network", "'tablet' differ", "QuPeD and Local"):
        assert words in str(error.value)


def test_a_network_that_ends_in_softmax_is_noticed() -> None:
    def probabilities() -> nn.Module:
        return nn.Sequential(nn.Linear(FEATURES, CLASSES), nn.Softmax(1))

    with pytest.warns(UserWarning, match="network of client 'a' seems to end in softmax"):
        Federation([Client("a", samples(0, 20), None, probabilities)], QuPeD())


def test_a_warm_up_ends_before_fine_tuning() -> None:
    federation = Federation([client(bits=2)], QuPeD(warmup_epochs=6))
    with pytest.raises(QupedError, match="warmup_epochs must be at most 5, the epochs before fine-tuning"):
        federation.setup(epochs=6, local_steps=1, finetune_epochs=1)
    federation.setup(epochs=7, local_steps=1, finetune_epochs=1)
    federation.setup(epochs=2, local_steps=1, finetune_epochs=0, schedule_epochs=6)


def test_errors_about_networks_name_the_client() -> None:
    def frozen() -> nn.Module:
        return Net().requires_grad_(False)

    with pytest.raises(QupedError, match=r"network of client 'a' .* no trainable parameters"):
        Federation([Client("a", samples(0, 20), None, frozen)], QuPeD())
    with pytest.raises(QupedError, match="client 'a' must return one tensor of class scores, got a tuple"):
        Federation([Client("a", samples(0, 20), None, lambda: Pair())], QuPeD())


class Pair(nn.Module):
    """A network that returns its features, too."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES, CLASSES)

    def forward(self, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.layer(inputs), inputs
