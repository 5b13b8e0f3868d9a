"""Deployed models that choose among their client's own classes, under any method."""

from typing import Any

import pytest
import torch
from helpers.small_federation import FEATURES, Net, fit, samples
from torch import nn

from quped import Client, FedAvg, FitResult, Local
from quped.algorithms import AnyAlgorithm
from quped.algorithms._own_classes import ABSENT
from quped.errors import InvalidValueError
from quped.models import FunctionalNetwork


def two_classes(key: int) -> Client:
    """Return a client that never sees class 1."""
    inputs, labels = samples(key, 30)
    keep = labels != 1
    return Client(f"c{key}", (inputs[keep], labels[keep]), samples(100 + key, 12), Net)


@pytest.mark.parametrize("algorithm", [FedAvg(), Local()])
@pytest.mark.parametrize("workers", [0, 1])
def test_models_and_files_choose_among_own_classes(algorithm: AnyAlgorithm, workers: int) -> None:
    inputs = samples(7, 50)[0]
    result = fit_quietly(algorithm, own_classes=True, workers=workers)
    plain = fit_quietly(algorithm)
    for name in result.models:
        assert set(result.module(name)(inputs).argmax(1).tolist()) <= {0, 2}
        assert result.packed(name).state()["last.bias"][1] == ABSENT
        assert result.accuracy[name] == result.accuracy_own_classes[name] == plain.accuracy_own_classes[name]
    assert result.to_dict()["training"]["own_classes"] is True


def fit_quietly(algorithm: AnyAlgorithm, **options: Any) -> FitResult:
    """Return a run of clients that are tested on a class which they never see."""
    with pytest.warns(UserWarning, match="classes without training samples"):
        return fit(algorithm, [two_classes(i) for i in range(2)], **options)


def test_a_network_without_a_bias_is_refused() -> None:
    network = nn.Sequential(nn.Linear(FEATURES, 8), nn.ReLU(), nn.Linear(8, 3, bias=False))
    client = Client("phone", samples(0, 12), samples(1, 12), network)
    with pytest.raises(InvalidValueError, match="client 'phone' has none: add the bias"):
        fit(Local(), [client], own_classes=True)


class Scaled(nn.Module):
    """A network whose last bias does not come last."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(FEATURES, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = 2 * self.last(inputs)
        return logits


@pytest.mark.parametrize(
    ("network", "bias"), [(Net(), "last.bias"), (Scaled(), None), (nn.Linear(FEATURES, 3), "bias")]
)
def test_the_bias_of_the_logits_is_found_by_trying(network: nn.Module, bias: str | None) -> None:
    assert FunctionalNetwork(network).logit_bias((torch.randn(1, FEATURES),)) == bias
