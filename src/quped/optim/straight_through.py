"""Courbariaux, Bengio, David: BinaryConnect: Training Deep Neural Networks with binary weights during propagations,
NeurIPS 2015; with the scale of Rastegari et al.: XNOR-Net, ECCV 2016."""

from collections.abc import Sequence
from functools import partial

from torch import Tensor
from torch.optim import Optimizer

from quped.optim._levels import even, fit
from quped.optim.base import Closure, QuantizedOptimizer
from quped.optim.selection import GroupSpec, Selection


class StraightThrough(QuantizedOptimizer):
    """Gradients at the quantized weights, taken for gradients by x.

    x <- the base optimizer's step from x with grad f(Q(x)),   Q(x) = alpha q

    q are the nearest of 2^bits evenly spaced steps from -1 to 1, and alpha is the scale of least squares. At 1 bit
    q = sign(x) and alpha = mean |x|; at more bits alpha is improved once in every step, with q held. Since the scale
    follows x, x is not clipped to [-1, 1].
    """

    def __init__(
        self,
        base: Optimizer,
        params: Selection | Sequence[GroupSpec],
        *,
        bits: int | None = None,
        per_channel: bool = False,
    ) -> None:
        """Wrap the base optimizer."""
        super().__init__(base, params, partial(even, per_channel=per_channel), bits=bits)

    def _learn(self, closure: Closure) -> Tensor:
        """Take a gradient step at Q(x), then fit the levels to the new x."""
        loss = self._step_at(self._nearest_values(self.centers), closure)
        fitted = {name: fit(x.detach(), self.centers[name]) for name, x in self._trained().items()}
        self.centers = self.centers | fitted
        return loss
