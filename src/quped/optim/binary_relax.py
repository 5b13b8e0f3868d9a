"""Yin, Zhang, Lyu, Osher, Qi, Xin: BinaryRelax: A Relaxation Approach for Training Deep Neural Networks with Quantized
Weights, SIAM Journal on Imaging Sciences, 2018."""

import math
from collections.abc import Sequence
from functools import partial

from torch import Tensor
from torch.optim import Optimizer

from quped.errors import check_number
from quped.optim._guards import Closure
from quped.optim._levels import EvenLevels
from quped.optim.base import Schedule, schedule
from quped.optim.selection import GroupSpec, Selection


def geometric(start: float, growth: float, hard_from: float = math.inf) -> Schedule:
    """lambda(t) = start * growth^t, and infinity from epoch `hard_from` on: the second phase."""
    check_number("start of lambda(t)", start, 0)
    check_number("growth of lambda(t)", growth, 1)
    return partial(growing, start, growth, hard_from)


def growing(start: float, growth: float, hard_from: float, t: float) -> float:
    """Return the lambda(t) of `geometric`."""
    try:
        return math.inf if t >= hard_from else start * math.pow(growth, t)
    except OverflowError:  # beyond what a float holds it is as good as infinite
        return math.inf


class BinaryRelax(EvenLevels):
    """The gradient at y, between the float weights x and their projection, is used as the gradient by x.

    y = (lambda Proj(x) + x) / (lambda + 1);   x <- the base optimizer's step from x with grad f(y)

    lambda grows (phase I) and is at last infinite, y = Proj(x) (phase II). Proj(x) = alpha q: q are the nearest of
    m = 2^bits evenly spaced steps from -1 to 1, and alpha is the scale of least squares. At 1 bit q = sign(x) and
    alpha = mean |x|; at more bits alpha is improved once in every step, with q held.
    """

    def __init__(
        self,
        base: Optimizer,
        params: Selection | Sequence[GroupSpec],
        *,
        bits: int | None = None,
        levels: int | None = None,
        lam: Schedule,
        per_channel: bool = False,
    ) -> None:
        """Take lambda(t) as `lam`, such as geometric(1.0, 1.04, hard_from=...)."""
        super().__init__(base, params, bits=bits, levels=levels, per_channel=per_channel)
        self.lam = schedule(lam)

    def _learn(self, closure: Closure) -> Tensor:
        lam = self.lam(self.epoch)
        check_number(f"lambda({self.epoch:g})", lam, 0)
        share = 1.0 if lam == math.inf else lam / (lam + 1)
        projected = self._values(self.codebooks())
        return self._step_at({name: x.detach().lerp(projected[name], share) for name, x in self.x.items()}, closure)
