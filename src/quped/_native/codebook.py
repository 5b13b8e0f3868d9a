"""Weights `[groups, n]` and the centers `[groups, m]`, sorted, that they belong to."""

import ctypes

import torch
from torch import Tensor

from quped._native.build import library
from quped._transform import transformed

FEW = 16
"""Centers, up to which comparing with each is faster than a search."""

BYTE = 256

SIGNATURES = (("nearest", "nnppp"), ("place", "nnppp"), ("collect", "nnppp"))


def nearest(weights: Tensor, centers: Tensor) -> Tensor:
    """Return how many of the borders between its group's centers lie below each weight; as bytes if these suffice."""
    kernels = compiled(weights, centers.shape[1]) if weights.dtype == centers.dtype else None
    if kernels is not None:
        weights, centers = weights.contiguous(), centers.contiguous()
        found = torch.empty_like(weights, dtype=torch.uint8)
        kernels.nearest(*weights.shape, weights.data_ptr(), centers.data_ptr(), found.data_ptr())
        return found
    borders = (centers[:, 1:] + centers[:, :-1]) / 2
    if centers.shape[1] > FEW:
        found = torch.searchsorted(borders.contiguous(), weights.contiguous())
        return found.byte() if centers.shape[1] <= BYTE else found
    found = torch.zeros_like(weights, dtype=torch.uint8)
    for border in borders.unsqueeze(2).unbind(1):
        found += weights > border
    return found


def place(centers: Tensor, assigned: Tensor) -> Tensor:
    """Return, for each weight, the center that it is assigned to."""
    able = assigned.dtype == torch.uint8 and not centers.requires_grad
    kernels = compiled(centers, centers.shape[1]) if able else None
    if kernels is None:
        return centers.gather(1, assigned.long())
    centers, assigned = centers.contiguous(), assigned.contiguous()
    placed = centers.new_empty(assigned.shape)
    kernels.place(*assigned.shape, centers.data_ptr(), assigned.data_ptr(), placed.data_ptr())
    return placed


def collect(values: Tensor, assigned: Tensor, count: int) -> Tensor:
    """Return, for each of a group's `count` centers, the sum of the values assigned to it: `place` transposed."""
    kernels = compiled(values, count) if assigned.dtype == torch.uint8 else None
    if kernels is None:
        return values.new_zeros(len(values), count).scatter_add(1, assigned.long(), values)
    values, assigned = values.contiguous(), assigned.contiguous()
    sums = values.new_empty(len(values), count)
    kernels.collect(*values.shape, values.data_ptr(), assigned.data_ptr(), sums.data_ptr())
    return sums


def compiled(numbers: Tensor, centers: int) -> ctypes.CDLL | None:
    """Return the kernels for such numbers and so many centers; None where PyTorch has to do."""
    if numbers.dtype != torch.float32 or numbers.device.type != "cpu" or centers > FEW or transformed():
        return None
    return library("codebook", (("CENTERS", centers),), SIGNATURES)
