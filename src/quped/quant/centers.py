"""Where the centers start."""

from typing import Literal

import torch
from torch import Tensor

from quped.errors import InvalidValueError, check
from quped.quant.quantizer import nearest

Start = Literal["range", "kmeans"]


def initial_centers(weights: Tensor, m: int, start: Start = "range", *, per_channel: bool = False) -> Tensor:
    """Return m sorted centers, `[1, m]` for the whole tensor or `[channels, m]` with one row per output channel.

    `range`: for two centers the mean of the negative and the mean of the positive weights, for more
    linspace(min, max). `kmeans`: the centers that minimise the squared distance to the weights (Lloyd's algorithm).
    """
    check(m >= 2, "number of centers", "at least 2", m)
    rows = weights.detach().reshape(weights.shape[0] if per_channel else 1, -1)
    low, high = rows.amin(1), rows.amax(1)
    if bool((low == high).any()):
        raise InvalidValueError(
            f"{m} centers cannot be placed among weights that are all {low[low == high][0]:g}: initialise the layer "
            "with random values, or leave it unquantized."
        )
    if start == "kmeans":
        return kmeans(rows, m)
    return sign_means(rows, low, high) if m == 2 else spread(low, high, m)


def spread(low: Tensor, high: Tensor, m: int) -> Tensor:
    """Return m evenly spaced centers from low to high, one row each."""
    return low.unsqueeze(1) + (high - low).unsqueeze(1) * torch.linspace(0, 1, m, dtype=low.dtype)


def sign_means(rows: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Return the mean of the negative and of the positive weights; low and high in a row that lacks one of them."""
    negative, positive = rows < 0, rows > 0
    means = [(rows * side).sum(1) / side.sum(1).clamp_min(1) for side in (negative, positive)]
    both = negative.any(1) & positive.any(1)
    ends = torch.stack([low, high], 1)
    return torch.where(both.unsqueeze(1), torch.stack(means, 1), ends)


def kmeans(rows: Tensor, m: int, iterations: int = 50) -> Tensor:
    """Run Lloyd's algorithm in one dimension, from evenly spaced quantiles; a center without weights stays."""
    probabilities = (torch.arange(m, dtype=rows.dtype) + 0.5) / m
    ordered = rows.sort(1).values
    centers = ordered[:, (probabilities * rows.shape[1]).long().clamp_max(rows.shape[1] - 1)]
    for _ in range(iterations):
        assignment = nearest(rows, centers)
        total = torch.zeros_like(centers).scatter_add(1, assignment, rows)
        count = torch.zeros_like(centers).scatter_add(1, assignment, torch.ones_like(rows))
        moved = torch.where(count > 0, total / count.clamp_min(1), centers)
        if torch.equal(moved, centers):
            break
        centers = moved
    return centers.sort(1).values
