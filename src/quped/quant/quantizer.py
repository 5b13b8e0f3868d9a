"""Which center a weight belongs to, the quantizers Q_c and Q~_c, the distance R and the objective F_lambda.

Throughout, the weights of a tensor are viewed as `[groups, n]` and its centers are `[groups, m]`, sorted along m:
one group for per-layer centers, one per output channel for per-channel centers.
"""

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from quped._native import codebook

Assignment = Literal["nearest", "sign"]
"""How weights are assigned to centers: each to the nearest, or, if there are two, by its sign."""


class Codebook(NamedTuple):
    """A quantized tensor: its values, and which of them each weight has."""

    centers: Tensor
    """`[groups, m]`, ascending."""
    indices: Tensor
    """`[groups, n]`: for each weight the number of its center."""


def grouped(x: Tensor, centers: Tensor) -> Tensor:
    """View weights of any shape as `[groups, n]`, to match their centers `[groups, m]`."""
    return x.reshape(centers.shape[0], -1)


def midpoints(centers: Tensor) -> Tensor:
    """Return the borders (c_j + c_{j-1}) / 2 between neighbouring centers."""
    return (centers[:, 1:] + centers[:, :-1]) / 2


def nearest(x: Tensor, centers: Tensor) -> Tensor:
    """Return, as `[groups, n]`, the index of the center nearest to each weight; the lower one of two equally near."""
    return codebook.nearest(grouped(x, centers).detach(), centers.detach())


def assign(x: Tensor, centers: Tensor, assignment: Assignment = "nearest") -> Tensor:
    """Return, as `[groups, n]`, the index of the center that each weight belongs to: the nearest one.

    By sign, a negative and a positive center have the negative and the positive weights, wherever
    they are; other pairs, and more than two centers, have those nearest to them.
    """
    return nearest(x, bordered(centers, assignment))


def bordered(centers: Tensor, assignment: Assignment) -> Tensor:
    """Return centers with the wanted borders in their middles."""
    if assignment == "nearest" or centers.shape[1] != 2:
        return centers
    apart = (centers[:, :1] < 0) & (centers[:, 1:] > 0)
    return torch.where(apart, centers.sign(), centers)


def place(centers: Tensor, assigned: Tensor, shape: torch.Size) -> Tensor:
    """Return a tensor of `shape` holding, for each weight, the center that it is assigned to.

    Its gradient by a center is the sum of the gradients of the weights assigned to it: the limit P -> infinity of
    the paper's appendix.
    """
    return codebook.place(centers, assigned).reshape(shape)


def by_centers(by_weights: Tensor, centers: Tensor, assigned: Tensor) -> Tensor:
    """Return the gradient by the centers that `place` gives back for one by the weights: its sums."""
    return codebook.collect(grouped(by_weights, centers), assigned, centers.shape[1])


def hard(x: Tensor, centers: Tensor, assignment: Assignment = "nearest") -> Tensor:
    """Q_c(x): every weight becomes the center that it belongs to. The gradient by x is 0."""
    return place(centers, assign(x, centers, assignment), x.shape)


def soft(x: Tensor, centers: Tensor, sharpness: float, assignment: Assignment = "nearest") -> Tensor:
    """Q~_c(x) = c_1 + sum_{j>=2} (c_j - c_{j-1}) sigmoid(P (x - (c_j + c_{j-1}) / 2)), with `sharpness` P."""
    gaps = (centers[:, 1:] - centers[:, :-1]).unsqueeze(1)
    borders = midpoints(bordered(centers, assignment))
    steps = torch.sigmoid(sharpness * (grouped(x, centers).unsqueeze(-1) - borders.unsqueeze(1)))
    return ((gaps * steps).sum(-1) + centers[:, :1]).reshape(x.shape)


def quantize(x: Tensor, centers: Tensor, sharpness: float = math.inf, assignment: Assignment = "nearest") -> Tensor:
    """Q~_c(x) for a finite P, and its limit Q_c(x) for P = infinity."""
    return hard(x, centers, assignment) if sharpness == math.inf else soft(x, centers, sharpness, assignment)


def distance(x: Tensor, centers: Tensor) -> Tensor:
    """R(x, c) = min over z in C of 1/2 ||z - x||_1."""
    return (x - hard(x, centers)).abs().sum() / 2


def objective(
    f: Callable[[Tensor], Tensor], x: Tensor, centers: Tensor, lam: float, sharpness: float = math.inf
) -> Tensor:
    """F_lambda(x, c) = f(x) + f(Q~_c(x)) + lambda R(x, c)."""
    return f(x) + f(quantize(x, centers, sharpness)) + lam * distance(x, centers)
