"""The proximal maps of lambda R, and the steps of Algorithm 1 on one tensor whose gradients are known.

`prox_weights` is line 3 of the algorithm, `step_centers` line 5, and `descend_centers` the step of fine-tuning.
The federated methods and `quped.optim.CenterQuant` both consist of them.
"""

import math
from typing import Literal

import torch
from torch import Tensor

from quped._native import codebook
from quped._transform import plus, shrunk
from quped.quant.quantizer import grouped, nearest, place

CenterProx = Literal["linear", "exact"]
"""Which proximal map the centers have: the paper's linearised one, or the exact one."""


def prox_weights(y: Tensor, centers: Tensor, strength: float, assigned: Tensor | None = None) -> Tensor:
    """prox_{eta_1 lambda R(., c)}(y): move y toward its nearest center by strength / 2, and stop there.

    `strength` is lambda * eta_1. The factor 1/2 comes from R. `assigned`, the assignment of y to the centers, may be
    given if it is known. The result has the same assignment.
    """
    target = place(centers, nearest(y, centers) if assigned is None else assigned, y.shape)
    return target + shrunk(y - target, strength / 2)


def descend_centers(centers: Tensor, h: Tensor, eta2: float, clip: float) -> Tensor:
    """c - eta_2 h, with each entry of h cut to at most `clip` in size.

    h sums up the gradients of thousands of weights. Uncut, a single batch can throw a center so far that every unit
    behind it is off for every input, and no gradient ever brings it back.
    """
    return plus(centers, h.clamp(-clip, clip), -eta2)


def center_rate(ratio: float, lr: float, x: Tensor, centers: Tensor) -> float:
    """eta_2 = kappa eta_1 / sqrt(n) for centers that n weights share, with `ratio` kappa and `lr` eta_1.

    LSQ has this scale for its step size (Esser et al., Learned Step Size Quantization, ICLR 2020): h sums up n
    gradients, and its size grows with n. So scaled, h needs no cut.
    """
    return ratio * lr / math.sqrt(x.numel() / centers.shape[0])


def prox_centers(mu: Tensor, x: Tensor, centers: Tensor, strength: float, assigned: Tensor | None = None) -> Tensor:
    """prox_{eta_2 lambda R(x, .)}(mu), with R linearised at the centers c^t that mu = c^t - eta_2 h started from.

    c_j = mu_j + strength / 2 * (#{x assigned to j, x > c_j} - #{x assigned to j, x < c_j}), with `strength`
    lambda * eta_2: each center is pulled toward the median of its weights. The paper prints the opposite sign; its
    own derivation gives this one. `assigned`, the assignment of x to the centers, may be given if it is known.
    """
    assigned = nearest(x, centers) if assigned is None else assigned
    above = (grouped(x, centers) - codebook.place(centers, assigned)).sign()
    return plus(mu, codebook.collect(above, assigned, mu.shape[1]), strength / 2)


def prox_centers_exact(
    mu: Tensor, x: Tensor, centers: Tensor, strength: float, assigned: Tensor | None = None
) -> Tensor:
    """prox_{eta_2 lambda R(x, .)}(mu) without linearising: only the assignment is held at the centers c^t.

    For each center, argmin_c (c - mu_j)^2 / 2 + kappa * sum_i |c - x_i| over its n weights, kappa = strength / 2, is
    the median of the 2n + 1 numbers x_1 .. x_n and mu_j + kappa (n - 2k), k = 0 .. n. Since the held assignment
    bounds R from above and touches it at c^t, this step never increases F_lambda; the linearised step, which does not
    see a weight that sits exactly on its center, can.
    """
    assigned = nearest(x, centers) if assigned is None else assigned
    weights = grouped(x, centers)
    result = mu.clone()
    for g in range(centers.shape[0]):
        for j in range(centers.shape[1]):
            mine = weights[g][assigned[g] == j]
            count = torch.arange(mine.numel(), -mine.numel() - 1, -2, dtype=mu.dtype)
            result[g, j] = torch.cat([mine, mu[g, j] + strength / 2 * count]).median()
    return result


def step_centers(
    centers: Tensor,
    h: Tensor,
    x: Tensor,
    assigned: Tensor,
    *,
    lam: float,
    eta2: float,
    clip: float,
    center_prox: CenterProx = "linear",
) -> Tensor:
    """c^{t+1} = prox_{eta_2 lambda R(x, .)}(c^t - eta_2 h), sorted, with x = x^{t+1} and its assignment to c^t."""
    prox = prox_centers if center_prox == "linear" else prox_centers_exact
    moved = prox(descend_centers(centers, h, eta2, clip), x, centers, lam * eta2, assigned)
    return moved.sort(1).values
