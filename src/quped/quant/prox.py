"""The proximal maps of lambda R: of the weights with the centers held, and of the centers with the weights held."""

import torch
from torch import Tensor

from quped.quant.quantizer import grouped, hard, nearest, place


def prox_weights(y: Tensor, centers: Tensor, strength: Tensor | float) -> Tensor:
    """prox_{eta_1 lambda R(., c)}(y): move y toward its nearest center by strength / 2, and stop there.

    `strength` is lambda * eta_1. The factor 1/2 comes from R.
    """
    target = hard(y, centers)
    gap = y - target
    return target + gap.sign() * (gap.abs() - strength / 2).clamp_min(0)


def prox_centers(mu: Tensor, x: Tensor, centers: Tensor, strength: Tensor | float) -> Tensor:
    """prox_{eta_2 lambda R(x, .)}(mu), with R linearised at the centers c^t that mu = c^t - eta_2 h started from.

    c_j = mu_j + strength / 2 * (#{x assigned to j, x > c_j} - #{x assigned to j, x < c_j}), with `strength`
    lambda * eta_2: each center is pulled toward the median of its weights. The paper prints the opposite sign; its
    own derivation gives this one.
    """
    assignment = nearest(x, centers)
    above = (grouped(x, centers) - centers.gather(1, assignment)).sign()
    pull = torch.zeros_like(mu).scatter_add(1, assignment, above)
    return mu + strength / 2 * pull


def prox_centers_exact(mu: Tensor, x: Tensor, centers: Tensor, strength: Tensor | float) -> Tensor:
    """prox_{eta_2 lambda R(x, .)}(mu) without linearising: only the assignment is held at the centers c^t.

    For each center, argmin_c (c - mu_j)^2 / 2 + kappa * sum_i |c - x_i| over its n weights, kappa = strength / 2, is
    the median of the 2n + 1 numbers x_1 .. x_n and mu_j + kappa (n - 2k), k = 0 .. n. Since the held assignment
    bounds R from above and touches it at c^t, this step never increases F_lambda; the linearised step, which does not
    see a weight that sits exactly on its center, can.
    """
    assignment = nearest(x, centers)
    weights = grouped(x, centers)
    result = mu.clone()
    for g in range(centers.shape[0]):
        for j in range(centers.shape[1]):
            mine = weights[g][assignment[g] == j]
            count = torch.arange(mine.numel(), -mine.numel() - 1, -2, dtype=mu.dtype)
            result[g, j] = torch.cat([mine, mu[g, j] + strength / 2 * count]).median()
    return result


def settle(x: Tensor, centers: Tensor, moved: Tensor) -> Tensor:
    """Return weights that sit on `centers`, carried along to where these have `moved`; the assignment is kept."""
    return place(moved, nearest(x, centers), x.shape)
