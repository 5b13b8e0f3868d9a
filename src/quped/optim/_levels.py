"""Evenly spaced levels alpha * (-1, ..., 1) with the scale alpha that fits the weights best: those of the peers."""

import torch
from torch import Tensor

from quped.errors import InvalidValueError
from quped.quant import nearest, place
from quped.quant.quantizer import grouped

MOST_FITS = 100


def even(weights: Tensor, m: int, *, per_channel: bool = False) -> Tensor:
    """Return m levels, `[1, m]` or `[channels, m]`, fitted until they no longer move."""
    rows = weights.reshape(weights.shape[0] if per_channel else 1, -1)
    scale = rows.abs().amax(1, keepdim=True)
    if bool((scale == 0).any()):
        raise InvalidValueError("no scale fits weights that are all 0: initialise the layer with random values.")
    levels = scale * steps(m, weights)
    for _ in range(MOST_FITS):
        before, levels = levels, fit(weights, levels)
        if torch.equal(before, levels):
            break
    return levels


def fit(weights: Tensor, levels: Tensor) -> Tensor:
    """Return levels with alpha = <x, q> / <q, q>, q the steps that the weights x are at: least squares with q held.

    With two levels q is the sign of x, and alpha the mean of |x|.
    """
    rows, q = grouped(weights, levels), steps(levels.shape[1], weights).expand_as(levels)
    q = place(q, nearest(weights, levels), rows.shape)
    scale = (rows * q).sum(1, keepdim=True) / q.square().sum(1, keepdim=True)
    return scale * steps(levels.shape[1], weights)


def steps(m: int, like: Tensor) -> Tensor:
    """Return m evenly spaced numbers from -1 to 1."""
    return torch.linspace(-1, 1, m, dtype=like.dtype, device=like.device)
