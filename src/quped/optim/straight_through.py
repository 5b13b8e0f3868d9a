"""Courbariaux, Bengio, David: BinaryConnect: Training Deep Neural Networks with binary weights during propagations,
NeurIPS 2015; with the scale of Rastegari et al.: XNOR-Net, ECCV 2016."""

from torch import Tensor

from quped.optim._guards import Closure
from quped.optim._levels import EvenLevels


class StraightThrough(EvenLevels):
    """The gradient at the quantized weights is used as the gradient by x.

    x <- the base optimizer's step from x with grad f(Q(x)),   Q(x) = alpha q

    q are the nearest of m = 2^bits evenly spaced steps from -1 to 1, and alpha is the scale of least squares. At 1 bit
    q = sign(x) and alpha = mean |x|; at more bits alpha is improved once in every step, with q held. Since the scale
    follows x, x is not clipped to [-1, 1].
    """

    def _learn(self, closure: Closure) -> Tensor:
        return self._step_at(self._values(self.codebooks()), closure)
