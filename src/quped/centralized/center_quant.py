"""Ozkara, Singh, Data, Diggavi: QuPeD: Quantized Personalization via Distillation with Applications to Federated
Learning, 2021. Algorithm 1: weights and centers learn together."""

import math
from collections.abc import Sequence
from functools import partial
from typing import ClassVar

from torch import Tensor
from torch.optim import Optimizer

from quped.centralized.base import CLIP, Closure, Gradients, QuantizedOptimizer, Schedule, at, pull_back
from quped.centralized.selection import GroupSpec, Selection
from quped.centralized.statistics import clones, holding, write
from quped.errors import check
from quped.quant import Start, descend_centers, initial_centers, nearest, place, prox_centers, prox_weights, quantize


class CenterQuant(QuantizedOptimizer):
    """min over x, c of f(x) + f(Q~_c(x)) + lambda R(x, c), by alternating proximal steps.

    g = grad_x [f(x) + f(Q~_c(x))];   y = the base optimizer's step from x with g;   x <- prox_{eta_1 lambda R(., c)}(y)
    h = grad_c f(Q~_c(x));            c <- prox_{eta_2 lambda R(x, .)}(c - eta_2 h)

    With P = infinity the second term of g is taken as 0, for all parameters, as in the paper; with a finite P all
    parameters get both. eta_1 is the learning rate that the base optimizer has for the parameter. A step evaluates the
    closure twice (three times with a finite P), each time with the buffers that belong to the weights.

    The paper's prox of the centers is linearised: a center with n more weights above than below it moves by
    eta_2 lambda n / 2, however near they are. Keep this small beside the distance between centers, or they fly apart.
    """

    centers_learn: ClassVar[bool] = True

    def __init__(
        self,
        base: Optimizer,
        params: Selection | Sequence[GroupSpec],
        *,
        bits: int | None = None,
        lam: Schedule,
        eta2: float = 1e-4,
        clip: float = CLIP,
        sharpness: float = math.inf,
        start: Start = "range",
        per_channel: bool = False,
    ) -> None:
        """Take lambda(t) as `lam` and P as `sharpness`; groups may have `bits` and `eta2` of their own."""
        check(sharpness > 0, "sharpness P", "above 0", sharpness)
        self.lam, self.sharpness = lam, sharpness
        super().__init__(
            base,
            params,
            partial(initial_centers, start=start, per_channel=per_channel),
            bits=bits,
            eta2=eta2,
            clip=clip,
        )

    def _learn(self, closure: Closure) -> Tensor:
        """Lines 2 to 5 of the algorithm."""
        lam = at(self.lam, self.t)
        loss, gradients = self._gradients(closure, q=False, of=list(self._rates()))
        if self.sharpness < math.inf:
            self._add_soft_gradients(closure, gradients)
        self._base_step(gradients)
        rates, trained = self._rates(), self._trained()
        # A proximal step leaves every weight with its center: the assignment serves for both.
        assigned = {name: nearest(x, self.centers[name]) for name, x in self.x.items()}
        c = self.centers
        write(self.x, {k: prox_weights(x.detach(), c[k], lam * rates[x], assigned[k]) for k, x in trained.items()})
        self._step_centers(closure, lam, assigned)
        return loss

    def _add_soft_gradients(self, closure: Closure, gradients: Gradients) -> None:
        """Add grad_x f(Q~_c(x)). Statistics of this pass are dropped: those of Q~ are taken in the centers' pass."""
        soft = {name: quantize(x.detach(), self.centers[name], self.sharpness) for name, x in self.x.items()}
        with self._holding(soft), holding(self._buffers, self.q_buffers):
            _, found = self._gradients(closure, q=True, of=list(gradients))
        for name, x in self._trained().items():
            found[x] = pull_back(partial(quantize, centers=self.centers[name], sharpness=self.sharpness), x, found[x])
        for parameter, further in found.items():
            first = gradients[parameter]
            gradients[parameter] = further if first is None else first if further is None else first + further

    def _step_centers(self, closure: Closure, lam: float, assigned: dict[str, Tensor]) -> None:
        """Lines 4 and 5."""
        x = clones(self.x)

        def values(c: Tensor, name: str) -> Tensor:
            """Q~_c(x) of one parameter, as a function of its centers."""
            if self.sharpness == math.inf:
                return place(c, assigned[name], x[name].shape)
            return quantize(x[name], c, self.sharpness)

        trained = self._trained()
        with self._holding({k: values(c, k) for k, c in self.centers.items()}), holding(self._buffers, self.q_buffers):
            _, gradients = self._gradients(closure, q=True, of=list(trained.values()))
            self.q_buffers = clones(self._buffers())
        for name, parameter in trained.items():
            c, eta2 = self.centers[name], self._eta2()[name]
            h = pull_back(partial(values, name=name), c, gradients[parameter])
            mu = descend_centers(c, h, eta2, self.clip)
            self.centers[name] = prox_centers(mu, x[name], c, lam * eta2, assigned[name]).sort(1).values
