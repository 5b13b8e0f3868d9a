"""Which center a weight belongs to, the quantizers Q_c and Q~_c, the distance R and the objective F_lambda.

Throughout, the weights of a tensor are viewed as `[groups, n]` and its centers are `[groups, m]`, sorted along m:
one group for per-layer centers, one per output channel for per-channel centers.
"""

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from quped.native import codebook

Border = Literal["middle", "zero"]
"""Where the border between two centers lies: half-way, or at 0."""


def grouped(x: Tensor, centers: Tensor) -> Tensor:
    """View weights of any shape as `[groups, n]`, to match their centers `[groups, m]`."""
    return x.reshape(centers.shape[0], -1)


def midpoints(centers: Tensor) -> Tensor:
    """Return the borders (c_j + c_{j-1}) / 2 between neighbouring centers."""
    return (centers[:, 1:] + centers[:, :-1]) / 2


def nearest(x: Tensor, centers: Tensor) -> Tensor:
    """Return, as `[groups, n]`, the index of the center nearest to each weight; the lower one of two equally near."""
    return codebook.nearest(grouped(x, centers).detach(), centers.detach())


def assign(x: Tensor, centers: Tensor, border: Border = "middle") -> Tensor:
    """Return, as `[groups, n]`, the index of the center that each weight belongs to: the nearest one.

    With the border at zero, a negative and a positive center have the negative and the positive weights, wherever
    they are; other pairs, and more than two centers, have those nearest to them.
    """
    return nearest(x, bordered(centers, border))


def bordered(centers: Tensor, border: Border) -> Tensor:
    """Return centers with the wanted borders in their middles."""
    if border == "middle" or centers.shape[1] != 2:
        return centers
    apart = (centers[:, :1] < 0) & (centers[:, 1:] > 0)
    return torch.where(apart, centers.sign(), centers)


def place(centers: Tensor, assignment: Tensor, shape: torch.Size) -> Tensor:
    """Return a tensor of `shape` holding, for each weight, the center that it is assigned to.

    Its gradient by a center is the sum of the gradients of the weights assigned to it: the limit P -> infinity of
    the paper's appendix.
    """
    return codebook.place(centers, assignment).reshape(shape)


def by_centers(by_weights: Tensor, centers: Tensor, assignment: Tensor) -> Tensor:
    """Return the gradient by the centers that `place` gives back for one by the weights: its sums."""
    return codebook.collect(grouped(by_weights, centers), assignment, centers.shape[1])


def hard(x: Tensor, centers: Tensor, border: Border = "middle") -> Tensor:
    """Q_c(x): every weight becomes the center that it belongs to. The gradient by x is 0."""
    return place(centers, assign(x, centers, border), x.shape)


def soft(x: Tensor, centers: Tensor, sharpness: float, border: Border = "middle") -> Tensor:
    """Q~_c(x) = c_1 + sum_{j>=2} (c_j - c_{j-1}) sigmoid(P (x - (c_j + c_{j-1}) / 2)), with `sharpness` P."""
    gaps = (centers[:, 1:] - centers[:, :-1]).unsqueeze(1)
    borders = midpoints(bordered(centers, border))
    steps = torch.sigmoid(sharpness * (grouped(x, centers).unsqueeze(-1) - borders.unsqueeze(1)))
    return ((gaps * steps).sum(-1) + centers[:, :1]).reshape(x.shape)


def quantize(x: Tensor, centers: Tensor, sharpness: float = math.inf, border: Border = "middle") -> Tensor:
    """Q~_c(x) for a finite P, and its limit Q_c(x) for P = infinity."""
    return hard(x, centers, border) if sharpness == math.inf else soft(x, centers, sharpness, border)


def distance(x: Tensor, centers: Tensor) -> Tensor:
    """R(x, c) = min over z in C of 1/2 ||z - x||_1."""
    return (x - hard(x, centers)).abs().sum() / 2


def objective(
    f: Callable[[Tensor], Tensor], x: Tensor, centers: Tensor, lam: float, sharpness: float = math.inf
) -> Tensor:
    """F_lambda(x, c) = f(x) + f(Q~_c(x)) + lambda R(x, c)."""
    return f(x) + f(quantize(x, centers, sharpness)) + lam * distance(x, centers)
