"""Ozkara, Singh, Data, Diggavi: QuPeD: Quantized Personalization via Distillation with Applications to Federated
Learning, 2021. Algorithm 1: weights and centers learn together."""

import math
from collections.abc import Sequence
from functools import partial
from typing import ClassVar

from torch import Tensor
from torch.optim import Optimizer

from quped.errors import check
from quped.optim._guards import Closure, Gradients
from quped.optim._network import clones, write
from quped.optim.base import CENTER_GRAD_CLIP, QuantizedOptimizer, Schedule, at, check_assignment, pull_back, schedule
from quped.optim.selection import GroupSpec, Selection
from quped.quant import Assignment, CenterInit, initial_centers, place, prox_weights, quantize, step_centers
from quped.typing import Params


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

    # The federated methods take this step in quped.algorithms._algorithm1, as a pure function with SGD built in. Here
    # any optimizer takes it, on a network in place. Both use the maps of quped.quant, and tests hold the two equal.

    centers_learn: ClassVar[bool] = True
    runs_both: ClassVar[bool] = True

    def __init__(
        self,
        base: Optimizer,
        params: Selection | Sequence[GroupSpec],
        *,
        bits: int | None = None,
        levels: int | None = None,
        lam: Schedule,
        eta2: float = 1e-4,
        center_grad_clip: float = CENTER_GRAD_CLIP,
        center_lr_ratio: float | None = None,
        assignment: Assignment = "nearest",
        sharpness: float = math.inf,
        average_gradients: bool = False,
        init_centers: CenterInit = "range",
        per_channel: bool = False,
    ) -> None:
        """Wrap the base optimizer.

        base: the optimizer of x, and of all parameters that are not quantized.
        params: the parameters to quantize; groups may have `bits`, `levels` and `eta2` of their own.
        bits: bits per quantized weight, 1 to 8, for m = 2^bits centers.
        levels: m, 2 to 256, in the place of `bits`: 3 are ternary weights.
        lam: lambda(t), such as LinearSchedule(1e-4); t is `epoch`.
        eta2: eta_2, the learning rate of the centers.
        center_grad_clip: how large an entry of h may be; larger ones are cut.
        center_lr_ratio: kappa. If given, eta_2 = kappa eta_1 / sqrt(n) for centers that n weights share, and h is not
            cut, as for the step size of LSQ (Esser et al., 2020). The paper has no such rule.
        assignment: to which center a weight belongs: the "nearest", or, if there are two, the one of its "sign".
        sharpness: P of the soft quantizer.
        average_gradients: a variation that is not in the paper. g is the mean of the gradient at x and the gradient at
            Q_c(x), used as one by x (Bengio, Leonard, Courville, 2013). h comes from the same pass, before x moves.
        init_centers: where the centers start: "range", "kmeans" or "unit".
        per_channel: give every output channel its own centers.
        """
        check(sharpness > 0, "sharpness P", "above 0", sharpness)
        one_gradient = sharpness == math.inf or not average_gradients
        check(one_gradient, "sharpness P", "infinite with average_gradients, whose gradient takes its place", sharpness)
        check_assignment(assignment)
        self.lam, self.sharpness, self.average_gradients = schedule(lam), sharpness, average_gradients
        self.assignment = assignment
        super().__init__(
            base,
            params,
            partial(initial_centers, init_centers=init_centers, per_channel=per_channel),
            bits=bits,
            levels=levels,
            eta2=eta2,
            center_grad_clip=center_grad_clip,
            center_lr_ratio=center_lr_ratio,
        )

    def _learn(self, closure: Closure) -> Tensor:
        """Lines 2 to 5 of the algorithm."""
        lam = at(self.lam, self.epoch)
        loss, gradients = self._gradients(closure)
        h: Params = {}
        if self.average_gradients:
            h = self._average_gradients(closure, gradients)
        elif self.sharpness < math.inf:
            self._add_soft_gradients(closure, gradients)
        self._base_step(gradients)
        c, rates, trained = self.centers, self._rates(), self._network.trained()
        # A proximal step leaves every weight with its center: the assignment serves for both.
        assigned = self._assign(c)
        write(self.x, {k: prox_weights(x.detach(), c[k], lam * rates[x], assigned[k]) for k, x in trained.items()})
        if not self.average_gradients:
            h, _ = self._center_gradients(closure, assigned, list(trained.values()))
        self.centers = c | {
            k: step_centers(c[k], h[k], trained[k].detach(), assigned[k], lam=lam, eta2=eta2, clip=clip)
            for k, (eta2, clip) in self._center_rates().items()
        }
        return loss

    def _average_gradients(self, closure: Closure, gradients: Gradients) -> Params:
        """Replace every gradient by its mean with the one at Q_c(x); return h.

        One mean, and not two half steps as the federated methods take: a step of this optimizer is one step of the base
        optimizer, so that its moments, hooks and schedules count it once.
        """
        h, at_q = self._center_gradients(closure, self._assign(self.centers), list(gradients))
        for parameter, further in at_q.items():
            total = added(gradients[parameter], further)
            gradients[parameter] = None if total is None else total / 2
        return h

    def _add_soft_gradients(self, closure: Closure, gradients: Gradients) -> None:
        """Add grad_x f(Q~_c(x)). The buffers of this pass are dropped: Q~ takes its own in the pass of the centers."""
        soft = {name: self._soft(x.detach(), self.centers[name]) for name, x in self.x.items()}
        with self._network.holding(soft, self.q_buffers):
            _, at_q = self._gradients(closure)
        for name, x in self._network.trained().items():
            at_q[x] = pull_back(partial(self._soft, centers=self.centers[name]), x, at_q[x])
        for parameter, further in at_q.items():
            gradients[parameter] = added(gradients[parameter], further)

    def _center_gradients(self, closure: Closure, assigned: Params, of: Sequence[Tensor]) -> tuple[Params, Gradients]:
        """Return h, and the gradients of f(Q~_c(x)) by the values of these parameters; keep the buffers of Q~."""
        x = clones(self.x)

        def values(c: Tensor, name: str) -> Tensor:
            """Q~_c(x) of one parameter, as a function of its centers."""
            hard = self.sharpness == math.inf
            return place(c, assigned[name], x[name].shape) if hard else self._soft(x[name], c)

        with self._network.holding({k: values(c, k) for k, c in self.centers.items()}, self.q_buffers):
            _, gradients = self._gradients(closure, of)
            self.q_buffers = clones(self._network.buffers())
        h = {
            name: pull_back(partial(values, name=name), self.centers[name], gradients[parameter])
            for name, parameter in self._network.trained().items()
        }
        return h, gradients

    def _soft(self, x: Tensor, centers: Tensor) -> Tensor:
        """Q~_c(x)."""
        return quantize(x, centers, self.sharpness, self.assignment)


def added(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    """Return the sum of two gradients, either of which may be missing."""
    return second if first is None else first if second is None else first + second
