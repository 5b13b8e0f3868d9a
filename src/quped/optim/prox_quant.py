"""Bai, Wang, Liberty: ProxQuant: Quantized Neural Networks via Proximal Operators, ICLR 2019."""

from collections.abc import Sequence
from functools import partial

from torch import Tensor
from torch.optim import Optimizer

from quped.errors import check
from quped.optim._guards import Closure
from quped.optim._network import write
from quped.optim.base import QuantizedOptimizer, Schedule, at, schedule
from quped.optim.selection import GroupSpec, Selection
from quped.quant import initial_centers, prox_weights


class ProxQuant(QuantizedOptimizer):
    """min over x of f(x) + lambda ||x - sign(x)||_1, the W-shaped regularizer, with the fixed centers -1 and 1.

    y = the base optimizer's step from x with grad f(x);   x <- sign(y) + shrink(y - sign(y), eta lambda)

    As in the authors' code, x is kept in [-1, 1]; there lambda(t) is 1e-4 t, with Adam. The regularizer has no factor
    1/2: at the same lambda its pull is twice that of `CenterQuant`.
    """

    def __init__(
        self, base: Optimizer, params: Selection | Sequence[GroupSpec], *, bits: int | None = 1, lam: Schedule
    ) -> None:
        """Take lambda(t) as `lam`; the method is for 1 bit only."""
        super().__init__(base, params, partial(initial_centers, init_centers="unit"), bits=bits)
        self.lam = schedule(lam)
        for group in self.groups:
            check(group["levels"] == 2, "bits of ProxQuant", "1: its centers are -1 and 1", f"{group['levels']} levels")

    def _learn(self, closure: Closure) -> Tensor:
        lam = at(self.lam, self.epoch)
        loss, gradients = self._gradients(closure)
        self._base_step(gradients)
        c, rates, trained = self.centers, self._rates(), self._network.trained()
        pulled = {k: prox_weights(x.detach(), c[k], 2 * lam * rates[x]) for k, x in trained.items()}
        write(self.x, {k: x.clamp(-1, 1) for k, x in pulled.items()})
        return loss
