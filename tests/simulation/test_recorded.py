"""What a run keeps for reports: bytes sent, rounds, classes and times of clients, and where weights lie."""

import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from helpers.small_federation import CLASSES, Net, clients, fit, samples

from quped import FedAvg, Local, QuPeD
from quped.quant.histogram import BINS, histogram
from quped.records import compared_folders
from quped.simulation.loop import SLOWEST, Pace


def test_bytes_sent_are_those_of_the_models() -> None:
    """Parameters and buffers of w, in float32; under local training, nothing."""
    result = fit(FedAvg())
    assert result.global_model is not None
    leaves = {**result.global_model.params, **result.global_model.buffers}
    floats = sum(4 * leaf.numel() for leaf in leaves.values() if leaf.is_floating_point())
    assert result.sent["to_server"] == floats
    assert result.sent["to_client"] == sum(leaf.numel() * leaf.element_size() for leaf in leaves.values())
    assert fit(Local()).sent == {"to_server": 0, "to_client": 0}
    assert result.to_dict()["sent"] == result.sent


def test_rounds_and_classes_of_clients() -> None:
    """Every round has as many clients as were asked for; every sample has a class."""
    result, whole = fit(QuPeD(), clients_per_round=2), fit(QuPeD())
    assert sum(client.rounds for client in result.clients) == 2 * result.rounds
    assert {client.rounds for client in whole.clients} == {whole.rounds}
    for i, client in enumerate(result.clients):
        labels = np.asarray(samples(i, 20 + i)[1])
        assert client.classes == [int((labels == k).sum()) for k in range(max(labels) + 1)]
        assert len(client.classes) <= CLASSES


def test_weights_of_one_client_of_each_kind_are_kept() -> None:
    """All of them are counted, and in the end they sit at their centers."""
    result = fit(QuPeD(), epochs=4, finetune_epochs=2)
    bits = {client.name: client.bits for client in result.clients}
    watched = result.curve[-1].weights
    assert watched
    assert len({tuple(bits[name].items()) for name in watched}) == len(watched)
    for point in result.curve:
        for name, seen in point.weights.items():
            assert seen["name"] in bits[name]
            assert len(seen["centers"]) == 2 ** bits[name][seen["name"]]
            assert sum(seen["counts"]) == result.models[name].state.params[seen["name"]].numel()
    for seen in watched.values():
        assert sum(count > 0 for count in seen["counts"]) <= len(seen["centers"])


class SlowNet(Net):
    """Takes its time."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        time.sleep(0.2)
        return super().forward(inputs)


@pytest.mark.parametrize("where", [{"workers": 0}, {"workers": 2}], ids=["inline", "processes"])
def test_the_slowest_clients_are_known(where: dict[str, Any]) -> None:
    """A few of them, the slowest first, beside the median of all."""
    many = clients(Local(), SLOWEST + 2)
    many[4] = replace(many[4], model=SlowNet)
    result = fit(Local(), many, epochs=2, finetune_epochs=0, **where)
    for point in result.curve:
        times = list(point.slowest.values())
        assert len(times) == SLOWEST
        assert times == sorted(times, reverse=True)
        assert point.median_seconds is not None
        assert 0 < point.median_seconds <= times[0]
    # The first round has costs of its own, and a busy machine may delay anybody.
    assert result.curve[-1].slowest["c4"] > 0.4  # two steps


def test_clients_that_are_computed_at_once_have_no_times() -> None:
    result = fit(Local(), workers=None, device="cpu")
    assert [(point.slowest, point.median_seconds) for point in result.curve] == [({}, None)] * len(result.curve)


def test_the_time_of_a_client_is_the_mean_since_the_last_evaluation() -> None:
    pace = Pace()
    pace.add({0: 1.0, 1: 2.0})
    pace.add({1: 3.0})
    assert pace.take() == {0: 1.0, 1: 2.5}
    pace.add({2: 4.0})
    assert pace.take() == {2: 4.0}


def test_a_histogram_by_hand() -> None:
    """Of the largest tensor that has centers; a value in the middle of a bin is counted there."""
    weights = {"a": torch.tensor([9.0]), "b": torch.tensor([-1.0, -1.0, 0.0, 1.0]), "c": torch.zeros(99)}
    found = histogram(weights, {"a": torch.tensor([[9.0]]), "b": torch.tensor([[-1.0, 1.0]])})
    assert (found["name"], found["reach"], found["centers"]) == ("b", 1.25, [-1.0, 1.0])
    counts = np.histogram([-1.0, -1.0, 0.0, 1.0], BINS, (-1.25, 1.25))[0]
    assert found["counts"] == counts.tolist()


@pytest.mark.parametrize("name", ["../other", "/etc", "a/b", "..", ".", ""])
def test_a_record_names_folders_below_it_only(name: str) -> None:
    """It may be somebody else's."""
    config = {"config": {"compare": [{"algorithm": {"name": name}}, {"algorithm": {"name": "local"}}]}}
    assert compared_folders(config) == ["local"]
