"""Where the centers start."""

from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional

from quped._transform import transformed
from quped.errors import InvalidValueError, check
from quped.quant.quantizer import hard, midpoints

CenterInit = Literal["range", "kmeans", "unit"]
"""Where centers start: see `initial_centers`."""

MAX_BITS = 8
"""So that the number of a center fits into a byte."""


def initial_centers(
    weights: Tensor,
    m: int,
    init_centers: CenterInit = "range",
    *,
    per_channel: bool = False,
    iterations: int = 1000,
) -> Tensor:
    """Return m sorted centers, `[1, m]` for the whole tensor or `[channels, m]` with one row per output channel.

    `range`: for two centers the mean of the negative and the mean of the positive weights, for more
    linspace(min, max). `kmeans`: centers at the means of their weights, a local minimum of the squared distance.
    `unit`: linspace(-1, 1), whatever the weights are; for two centers, -1 and 1.
    """
    check(m >= 2, "number of centers", "at least 2", m)
    rule = "'range', 'kmeans' or 'unit'"
    check(init_centers in get_args(CenterInit), "init_centers", rule, init_centers)
    rows = weights.detach().reshape(weights.shape[0] if per_channel and weights.dim() else 1, -1)
    low, high = rows.amin(1), rows.amax(1)
    if init_centers == "unit":
        return spread(-torch.ones_like(low), torch.ones_like(high), m)
    if not transformed() and bool((low == high).any()):  # where clients are stacked, no value can be asked for
        raise InvalidValueError(
            f"{m} centers cannot be placed among weights that are all {low[low == high][0]:g}: initialise the layer "
            "with random values, or leave it unquantized."
        )
    centers = sign_means(rows, low, high) if m == 2 else spread(low, high, m)
    return kmeans(rows, centers, iterations) if init_centers == "kmeans" else centers


def spread(low: Tensor, high: Tensor, m: int) -> Tensor:
    """Return m evenly spaced centers from low to high, one row each."""
    return low.unsqueeze(1) + (high - low).unsqueeze(1) * torch.linspace(0, 1, m, dtype=low.dtype, device=low.device)


def sign_means(rows: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Return the mean of the negative and of the positive weights; low and high in a row that lacks one of them."""
    negative, positive = rows < 0, rows > 0
    means = [(rows * side).sum(1) / side.sum(1).clamp_min(1) for side in (negative, positive)]
    both = negative.any(1) & positive.any(1)
    ends = torch.stack([low, high], 1)
    return torch.where(both.unsqueeze(1), torch.stack(means, 1), ends)


def kmeans(rows: Tensor, centers: Tensor, iterations: int) -> Tensor:
    """Run Lloyd's algorithm from the given centers and from evenly spaced quantiles; keep the better, row by row."""
    m, n = centers.shape[1], rows.shape[1]
    ordered = rows.sort(1).values
    positions = ((torch.arange(m, device=rows.device) + 0.5) / m * n).long().clamp_max(n - 1)
    first, second = lloyd(ordered, centers, iterations), lloyd(ordered, ordered[:, positions], iterations)
    errors = [(rows - hard(rows, c)).square().sum(1) for c in (first, second)]
    return torch.where((errors[0] <= errors[1]).unsqueeze(1), first, second)


def lloyd(ordered: Tensor, centers: Tensor, iterations: int) -> Tensor:
    """Move every center to the mean of its weights, until none moves, but not more often than `iterations`.

    A center without weights stays.

    In a sorted row the weights of a center are a slice: its sum is a difference of running sums.
    """
    running = functional.pad(ordered.double().cumsum(1), (1, 0))
    for _ in range(iterations):
        ends = torch.searchsorted(ordered, midpoints(centers), right=True)
        edges = functional.pad(functional.pad(ends, (1, 0)), (0, 1), value=ordered.shape[1])
        count, total = edges.diff(dim=1), running.gather(1, edges).diff(dim=1)
        means = (total / count.clamp_min(1)).to(centers.dtype)
        moved = torch.where(count > 0, means, centers).sort(1).values
        if not transformed() and torch.equal(moved, centers):
            break
        centers = moved
    return centers
