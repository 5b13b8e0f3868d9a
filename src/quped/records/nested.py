"""Nested states in checkpoints: their tensors apart, everything else as JSON holds it."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

TENSOR = "tensor"
"""The key, alone in a dictionary, that stands for a tensor."""


def take_tensors(state: Any) -> tuple[Any, dict[str, Tensor]]:
    """Return nested lists and dictionaries with numbers in place of their tensors, and copies of these by number."""
    tensors: dict[str, Tensor] = {}

    def take(value: Any) -> Any:
        if isinstance(value, Tensor):
            number = str(len(tensors))
            # Each in memory of its own, as the file format demands: tensors of a network may share some.
            tensors[number] = value.detach().clone(memory_format=torch.contiguous_format)
            return {TENSOR: number}
        if isinstance(value, Mapping):
            return {key: take(entry) for key, entry in value.items()}
        return [take(entry) for entry in value] if isinstance(value, list) else value

    return take(state), tensors


def put_tensors(state: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Put the tensors back: the inverse of `take_tensors`."""
    if isinstance(state, Mapping):
        if state.keys() == {TENSOR}:
            return tensors[state[TENSOR]]
        return {key: put_tensors(entry, tensors) for key, entry in state.items()}
    return [put_tensors(entry, tensors) for entry in state] if isinstance(state, list) else state
