"""Which parameters of a client are quantized, with how many bits, and how large its file becomes."""

import re
from functools import partial
from typing import Any

import pytest
import torch
from helpers.small_federation import CLASSES, FEATURES, Net, samples
from torch import nn

from quped import Client, FedAvg, Federation, Local
from quped.errors import InvalidValueError, NetworkError
from quped.models import build
from quped.simulation.budget import parse_bytes

MLP = partial(build, "mlp", (FEATURES,), CLASSES, hidden=[40, 40])
"""First 240, middle 1600, last 120 weights; 83 biases."""


def client(model: Any = MLP, **options: Any) -> Client:
    return Client("phone", samples(0, 30), samples(1, 9), model, **options)


def bits(**options: Any) -> dict[str, int]:
    return Federation([client(**options)], Local()).summary()["phone"]


def test_end_bits_quantize_the_first_and_the_last_layer() -> None:
    assert bits(bits=1) == {"layers.2.weight": 1}
    assert bits(bits=1, end_bits=4) == {"layers.0.weight": 4, "layers.2.weight": 1, "layers.4.weight": 4}
    # Of 120 weights, 64 centers are worth their bytes, and 128 are not.
    assert bits(bits=1, end_bits=8) == {"layers.0.weight": 7, "layers.2.weight": 1, "layers.4.weight": 6}
    given = {"layers.2.weight": 3, "layers.4.weight": 2}
    assert bits(bits=given, end_bits=5) == {"layers.0.weight": 5, **given}
    assert bits(bits={**given, "layers.0.weight": 32}, end_bits=5) == given


def test_a_network_of_two_layers_has_ends_only() -> None:
    two = nn.Sequential(nn.Linear(FEATURES, 40), nn.ReLU(), nn.Linear(40, CLASSES))
    assert bits(model=two, bits=1, end_bits=4) == {"0.weight": 4, "2.weight": 4}
    with pytest.raises(NetworkError, match="nothing to quantize"):
        bits(model=two, bits=1)


def test_a_tied_end_is_quantized_once() -> None:
    tied = nn.Sequential(nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, FEATURES))
    tied[2].weight = tied[0].weight
    assert bits(model=tied, bits=1, end_bits=1) == {"0.weight": 1, "1.weight": 1}


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"bits": 1, "end_bits": 9}, "'end_bits' of client 'phone' .*from 1 to 8"),
        ({"bits": 1, "end_bits": True}, "'end_bits' of client 'phone' .*from 1 to 8"),
        ({"end_bits": 8}, "'end_bits' of client 'phone' .*left out with bits=32"),
        ({"bits": 1, "budget": 5000}, "'budget' of client 'phone' .*without 'bits'"),
        ({"budget": "8 pages"}, "'budget' of client 'phone' .*8 kB.*got '8 pages'"),
        ({"budget": -1}, "'budget' of client 'phone' .*8 kB.*got -1"),
        ({"budget": True}, "'budget' of client 'phone' .*8 kB.*got True"),
        ({"budget": "900 B"}, r"client 'phone' is 900 bytes, and the smallest possible file has 1,\d\d\d"),
    ],
)
def test_bits_that_cannot_be(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidValueError, match=reason):
        bits(**options)


def test_bytes_in_words() -> None:
    words = {"8 kB": 8000, "8kb": 8000, " 1.5 MB ": 1_500_000, "12": 12, "12 B": 12}
    assert {word: parse_bytes(word, "budget") for word in words} == words
    assert parse_bytes(12, "budget") == 12


@pytest.mark.parametrize("size", ["8 pages", -1, 1.5, True, "9" * 400, 10**5000], ids=range(6))
def test_sizes_that_no_file_can_have(size: object) -> None:
    with pytest.raises(InvalidValueError, match="The budget must be a number of bytes"):
        parse_bytes(size, "budget")


@pytest.mark.parametrize("model", [MLP, Net], ids=["ours", "other"])
@pytest.mark.parametrize("per_channel", [False, True])
def test_a_file_is_never_above_its_budget(model: Any, per_channel: bool) -> None:
    options = {"model": model, "per_channel": per_channel}
    with pytest.raises(InvalidValueError, match="smallest possible") as error:
        bits(**options, budget=1)
    smallest = int(re.findall(r"file has ([\d,]+)", str(error.value))[0].replace(",", ""))
    sizes = []
    for budget in (smallest, smallest + 1, smallest + 150, smallest + 400, 2 * smallest):
        made = Federation([client(**options, budget=budget)], Local())
        (result,) = made.fit(epochs=1, workers=0, progress=False).clients
        assert result.bytes_file <= budget
        assert result.bits == made.summary()["phone"]
        sizes.append(result.bytes_file)
    assert sizes[-1] > sizes[0]


def test_a_budget_is_used() -> None:
    """The file has at most a tenth less than was allowed, and the same data give the same bits."""
    network = partial(build, "cnn1", (1, 8, 8), CLASSES)
    images = torch.randn(30, 1, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(30) % CLASSES
    made = [Federation([Client("phone", images, None, network, budget="8 kB")], Local()) for _ in range(2)]
    assert made[0].summary() == made[1].summary()
    assert 7200 < made[0].fit(epochs=1, workers=0, progress=False).clients[0].bytes_file <= 8000


def test_a_large_budget_leaves_full_precision() -> None:
    assert bits(budget="1 MB") == {}


def test_a_budget_among_named_parameters() -> None:
    assert bits(budget="3 kB", quantize=["layers.2.weight"]).keys() == {"layers.2.weight"}


def test_methods_that_cannot_quantize_take_no_budget() -> None:
    with pytest.raises(NetworkError, match=r"FedAvg cannot train .*full-precision"):
        Federation([client(budget="3 kB")], FedAvg())


def wide() -> nn.Module:
    """Most of it is the first layer."""
    return nn.Sequential(nn.Linear(FEATURES, 400), nn.ReLU(), nn.Linear(400, 5), nn.ReLU(), nn.Linear(5, CLASSES))


def test_a_file_that_is_mostly_float32_is_noticed() -> None:
    with pytest.warns(UserWarning, match=r"not quantized for 'phone'.*'0.weight' of 'phone' takes 9,600 .*end_bits=8"):
        assert bits(model=wide, bits=1) == {"2.weight": 1}
    with pytest.warns(UserWarning, match=r"'2.weight' of 'phone' takes 8,000 .*add it"):
        assert bits(model=wide, bits=1, quantize=["0.weight"]) == {"0.weight": 1}
    assert len(bits(model=wide, bits=1, end_bits=8)) == 3
    assert bits(model=wide) == {}
