"""Evenly spaced levels alpha * (-1, ..., 1), with the scale alpha that fits the weights best."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor
from torch.optim import Optimizer

from quped.errors import InvalidValueError
from quped.optim._guards import Closure
from quped.optim.base import QuantizedOptimizer
from quped.optim.selection import GroupSpec, Selection
from quped.quant import nearest, place
from quped.quant.quantizer import grouped
from quped.typing import Params

MOST_FITS = 100


class EvenLevels(QuantizedOptimizer):
    """A method that steps x by the gradient at other weights, after which the levels follow x."""

    def __init__(
        self,
        base: Optimizer,
        params: Selection | Sequence[GroupSpec],
        *,
        bits: int | None = None,
        levels: int | None = None,
        per_channel: bool = False,
    ) -> None:
        super().__init__(base, params, partial(even, per_channel=per_channel), bits=bits, levels=levels)

    def _step_at(self, values: Params, closure: Closure) -> Tensor:
        """Take a base step of x with the gradient at other values of it, and fit the levels; return the loss there."""
        with self._network.holding(values):
            loss, gradients = self._gradients(closure)
        self._base_step(gradients)
        fitted = {name: fit(x.detach(), self.centers[name]) for name, x in self._network.trained().items()}
        self.centers = self.centers | fitted
        return loss


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
    """Return levels with alpha = <x, q> / <q, q>, the least squares for the steps q that the weights x are at now.

    With two levels q is the sign of x, and alpha the mean of |x|. If all weights are at the step 0, alpha stays.
    """
    rows, q = grouped(weights, levels), steps(levels.shape[1], weights).expand_as(levels)
    q = place(q, nearest(weights, levels), rows.shape)
    norm = q.square().sum(1, keepdim=True)
    scale = torch.where(norm > 0, (rows * q).sum(1, keepdim=True) / norm, levels[:, -1:])
    return scale * steps(levels.shape[1], weights)


def steps(m: int, like: Tensor) -> Tensor:
    """Return m evenly spaced numbers from -1 to 1."""
    return torch.linspace(-1, 1, m, dtype=like.dtype, device=like.device)
