"""Indices as bytes, and codebooks of values."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quped.errors import InvalidValueError
from quped.quant import place
from quped.quant.packing import codebook_of, pack, unpack


def test_lowest_bits_come_first() -> None:
    # 1, 2, 3, 0 at 2 bits: 0b00_11_10_01. At 3 bits the third code crosses a byte: 011 010 001, lowest first.
    assert pack(torch.tensor([1, 2, 3, 0]), 2).tolist() == [0b00111001]
    assert pack(torch.tensor([1, 2, 3]), 3).tolist() == [0b11010001, 0b0]
    assert pack(torch.tensor([[1], [0], [1]]), 1).tolist() == [0b101]


@given(
    st.integers(1, 8).flatmap(lambda bits: st.tuples(st.just(bits), st.lists(st.integers(0, 2**bits - 1), min_size=1)))
)
def test_packing_is_undone(case: tuple[int, list[int]]) -> None:
    bits, indices = case
    packed = pack(torch.tensor(indices), bits)
    assert packed.dtype == torch.uint8
    assert packed.numel() == -(-len(indices) * bits // 8)
    assert unpack(packed, bits, len(indices)).tolist() == indices


def test_bytes_that_are_no_packed_indices() -> None:
    with pytest.raises(InvalidValueError, match="spare bits"):
        unpack(torch.tensor([0b1000], dtype=torch.uint8), 1, 3)
    with pytest.raises(InvalidValueError, match="take 2 bytes, not 1"):
        unpack(torch.tensor([0], dtype=torch.uint8), 2, 5)


def test_zeros_of_both_signs_stay_apart() -> None:
    values = torch.tensor([[0.0, -0.0], [-0.0, 1.0]])
    centers, indices = codebook_of(values, 2)
    assert np.array_equal(np.signbit(centers.numpy()), [[True, False, False]])
    again = place(centers, indices, values.shape)
    assert np.array_equal(again.numpy().view(np.int32), values.numpy().view(np.int32))


def test_channels_may_have_values_of_their_own() -> None:
    values = torch.tensor([[1.0, 2.0, 1.0], [3.0, 3.0, 3.0]])
    centers, indices = codebook_of(values, 1)
    assert centers.tolist() == [[1.0, 2.0], [3.0, 3.0]]
    assert torch.equal(place(centers, indices, values.shape), values)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (torch.arange(6.0).reshape(2, 3), "6 different values, and 1 bits allow 2"),
        (torch.tensor([1.0, float("nan")]), "not finite"),
        (torch.tensor([1, 2]), "not finite"),
    ],
)
def test_values_without_a_codebook(values: torch.Tensor, reason: str) -> None:
    with pytest.raises(InvalidValueError, match=reason):
        codebook_of(values, 1)
