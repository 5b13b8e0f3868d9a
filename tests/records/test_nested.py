"""Nested states, apart and together again."""

import json

import torch

from quped.records.nested import put_tensors, take_tensors


def test_a_nested_state_survives() -> None:
    """Tensors go aside, everything else stays."""
    ones = torch.ones(2)
    plain, tensors = take_tensors({"a": [ones, None, 1.5], "b": {"c": torch.zeros(1), "d": "x"}})
    ones += 1
    back = put_tensors(json.loads(json.dumps(plain)), tensors)
    assert torch.equal(back["a"][0], torch.ones(2))
    assert back["a"][1:] == [None, 1.5]
    assert torch.equal(back["b"]["c"], torch.zeros(1))
    assert back["b"]["d"] == "x"


def test_tensors_that_share_memory_are_parted() -> None:
    whole = torch.arange(6.0).reshape(2, 3)
    _, tensors = take_tensors([whole, whole.T])
    assert len({tensor.data_ptr() for tensor in tensors.values()}) == 2
    assert all(tensor.is_contiguous() for tensor in tensors.values())
