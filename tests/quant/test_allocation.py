"""Bits by tensor."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quped.quant.allocation import Option, allocate, options, total_bytes
from quped.quant.sizes import affordable_bits, tensor_bytes


def test_bytes_of_a_tensor() -> None:
    assert tensor_bytes(150, 1, 32) == 600
    assert tensor_bytes(150, 1, 6) == 113 + 4 * 64
    assert tensor_bytes(150, 3, 1) == 19 + 4 * 6


def test_bits_that_are_worth_their_centers() -> None:
    assert affordable_bits(840, 1, 8) == 8
    assert affordable_bits(150, 1, 8) == 6  # 7 bits: 132 + 512 bytes, float32: 600
    assert affordable_bits(150, 1, 4) == 4
    assert affordable_bits(2, 1, 8) == 32


def test_options_grow_and_their_losses_fall() -> None:
    weights = torch.randn(15, 10, generator=torch.Generator().manual_seed(0))
    found = options(weights, torch.full_like(weights, 2.0))
    assert [option.bits for option in found] == [1, 2, 3, 4, 5, 6, 32]
    assert [option.bytes for option in found] == [tensor_bytes(150, 1, option.bits) for option in found]
    losses = [option.loss for option in found]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] == 0
    means = torch.where(weights > 0, weights[weights > 0].mean(), weights[weights < 0].mean())
    assert 0.5 < losses[0] / float((weights - means).square().sum()) <= 1  # 2 / 2 of the squared distance at the best


def test_sensitive_weights_count_more() -> None:
    weights = torch.randn(15, 10, generator=torch.Generator().manual_seed(0))
    assert options(weights, torch.zeros_like(weights)) == [Option(1, 19 + 8, 0.0)]
    once, twice = (options(weights, torch.full_like(weights, value))[0].loss for value in (1.0, 2.0))
    assert twice == pytest.approx(2 * once)


def test_equal_weights_stay_in_float32() -> None:
    assert [option.bits for option in options(torch.ones(3, 3), torch.ones(3, 3))] == [32]


CHOICES = {
    "a": [Option(1, 10, 8.0), Option(2, 20, 2.0), Option(3, 30, 1.0), Option(32, 100, 0.0)],
    "b": [Option(1, 100, 9.0), Option(2, 200, 3.0), Option(3, 300, 1.0), Option(32, 900, 0.0)],
}


@pytest.mark.parametrize(
    ("capacity", "bits"),
    [
        (0, (1, 1)),  # it cannot be: the smallest
        (110, (1, 1)),
        (119, (1, 1)),
        (120, (2, 1)),  # a: 6 / 10, b: 6 / 100
        (219, (32, 1)),  # the uniform 2 bits do not fit, so all goes to a
        (220, (2, 2)),  # uniform bits first
        (235, (3, 2)),
        (330, (3, 3)),
        (10_000, (32, 32)),
    ],
)
def test_uniform_bits_first_then_the_largest_gain_per_byte(capacity: int, bits: tuple[int, int]) -> None:
    chosen = allocate(CHOICES, capacity)
    assert (chosen["a"].bits, chosen["b"].bits) == bits


@given(st.integers(0, 2000), st.integers(0, 2000))
def test_more_bytes_are_never_worse_and_never_exceeded(first: int, second: int) -> None:
    low, high = sorted((first, second))
    few, many = allocate(CHOICES, low), allocate(CHOICES, high)
    assert total_bytes(few) <= max(low, 110)
    assert min(option.bits for option in few.values()) <= min(option.bits for option in many.values())
