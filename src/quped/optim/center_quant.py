"""Ozkara, Singh, Data, Diggavi: QuPeD: Quantized Personalization via Distillation with Applications to Federated
Learning, 2021. Algorithm 1: weights and centers learn together."""

import math
from collections.abc import Sequence
from functools import partial
from typing import ClassVar

from torch import Tensor
from torch.optim import Optimizer

from quped.errors import check
from quped.optim._buffers import clones, holding, write
from quped.optim.base import CENTER_GRAD_CLIP, Closure, Gradients, QuantizedOptimizer, Schedule, at, pull_back, schedule
from quped.optim.selection import GroupSpec, Selection
from quped.quant import (
    CenterInit,
    descend_centers,
    initial_centers,
    nearest,
    place,
    prox_centers,
    prox_weights,
    quantize,
)
from quped.typing import Params


class CenterQuant(QuantizedOptimizer):
    """min over x, c of f(x) + f(Q~_c(x)) + lambda R(x, c), by alternating proximal steps.

    g = grad_x [f(x) + f(Q~_c(x))];   y = the base optimizer's step from x with g;   x <- prox_{eta_1 lambda R(., c)}(y)
    h = grad_c f(Q~_c(x));            c <- prox_{eta_2 lambda R(x, .)}(c - eta_2 h)

    With P = infinity the second term of g is taken as 0, for all parameters, as in the paper; with a finite P all
    parameters get both. eta_1 is the learning rate that the base optimizer has for the parameter. A step evaluates the
    closure twice (three times with a finite P), each time with the buffers that belong to the weights.

    With `straight_through`, which goes beyond the paper, weights learn from their quantized network, too: g is half the
    gradient at x and half that at Q_c(x), taken for one by x (Bengio, Leonard, Courville, 2013), and h is of the same
    pass, before the step of x. This takes two evaluations as well.

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
        center_grad_clip: float = CENTER_GRAD_CLIP,
        sharpness: float = math.inf,
        straight_through: bool = False,
        init_centers: CenterInit = "range",
        per_channel: bool = False,
    ) -> None:
        """Take lambda(t) as `lam` and P as `sharpness`; groups may have `bits` and `eta2` of their own."""
        check(sharpness > 0, "sharpness P", "above 0", sharpness)
        hard_or_paper = sharpness == math.inf or not straight_through
        check(hard_or_paper, "sharpness P", "infinite with straight_through, whose gradient takes its place", sharpness)
        self.lam, self.sharpness, self.straight_through = schedule(lam), sharpness, straight_through
        super().__init__(
            base,
            params,
            partial(initial_centers, init_centers=init_centers, per_channel=per_channel),
            bits=bits,
            eta2=eta2,
            center_grad_clip=center_grad_clip,
        )

    def _learn(self, closure: Closure) -> Tensor:
        """Lines 2 to 5 of the algorithm."""
        lam = at(self.lam, self.t)
        loss, gradients = self._gradients(closure, q=False, of=list(self._rates()))
        h: Params = {}
        if self.straight_through:
            h = self._share_gradients(closure, gradients)
        elif self.sharpness < math.inf:
            self._add_soft_gradients(closure, gradients)
        self._base_step(gradients)
        rates, trained = self._rates(), self._trained()
        # A proximal step leaves every weight with its center: the assignment serves for both.
        assigned = {name: nearest(x, self.centers[name]) for name, x in self.x.items()}
        c = self.centers
        write(self.x, {k: prox_weights(x.detach(), c[k], lam * rates[x], assigned[k]) for k, x in trained.items()})
        if not self.straight_through:
            h = self._center_gradients(closure, assigned, list(trained.values()))[0]
        eta2 = self._eta2()
        for name, x in trained.items():
            mu = descend_centers(c[name], h[name], eta2[name], self.center_grad_clip)
            moved = prox_centers(mu, x.detach(), c[name], lam * eta2[name], assigned[name])
            self.centers[name] = moved.sort(1).values
        return loss

    def _share_gradients(self, closure: Closure, gradients: Gradients) -> Params:
        """Let every gradient be half of that at x and half of that at Q_c(x); return h."""
        assigned = {name: nearest(x, self.centers[name]) for name, x in self.x.items()}
        h, found = self._center_gradients(closure, assigned, list(gradients))
        for parameter, further in found.items():
            total = added(gradients[parameter], further)
            gradients[parameter] = None if total is None else total / 2
        return h

    def _add_soft_gradients(self, closure: Closure, gradients: Gradients) -> None:
        """Add grad_x f(Q~_c(x)). Statistics of this pass are dropped: those of Q~ are taken in the centers' pass."""
        soft = {name: quantize(x.detach(), self.centers[name], self.sharpness) for name, x in self.x.items()}
        with self._holding(soft), holding(self._buffers, self.q_buffers):
            _, found = self._gradients(closure, q=True, of=list(gradients))
        for name, x in self._trained().items():
            found[x] = pull_back(partial(quantize, centers=self.centers[name], sharpness=self.sharpness), x, found[x])
        for parameter, further in found.items():
            gradients[parameter] = added(gradients[parameter], further)

    def _center_gradients(self, closure: Closure, assigned: Params, of: Sequence[Tensor]) -> tuple[Params, Gradients]:
        """Return h, and the gradients of f(Q~_c(x)) by the values of these parameters; statistics of Q~ go on."""
        x = clones(self.x)

        def values(c: Tensor, name: str) -> Tensor:
            """Q~_c(x) of one parameter, as a function of its centers."""
            if self.sharpness == math.inf:
                return place(c, assigned[name], x[name].shape)
            return quantize(x[name], c, self.sharpness)

        with self._holding({k: values(c, k) for k, c in self.centers.items()}), holding(self._buffers, self.q_buffers):
            _, gradients = self._gradients(closure, q=True, of=of)
            self.q_buffers = clones(self._buffers())
        h = {
            name: pull_back(partial(values, name=name), self.centers[name], gradients[parameter])
            for name, parameter in self._trained().items()
        }
        return h, gradients


def added(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    """Return the sum of two gradients, one or both of which may not be there."""
    return second if first is None else first if second is None else first + second
