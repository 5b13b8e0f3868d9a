"""Ours: the gradient straight through the quantizer (Bengio, Leonard, Courville: Estimating or Propagating Gradients
Through Stochastic Neurons for Conditional Computation, 2013), with learned centers."""

from collections.abc import Sequence
from functools import partial
from typing import ClassVar

from torch import Tensor
from torch.optim import Optimizer

from quped.optim._guards import Closure
from quped.optim.base import QuantizedOptimizer, check_assignment
from quped.optim.selection import GroupSpec, Selection
from quped.quant import Assignment, CenterInit, by_centers, descend_centers, initial_centers


class StraightCenters(QuantizedOptimizer):
    """The gradient at the quantized weights is used as the gradient by x, and moves the centers.

    g = grad f(Q_c(x));            x <- the base optimizer's step from x with g
    h_j = sum of g over x at c_j;  c_j <- c_j - eta_2 h_j,   eta_2 = kappa eta_1 / sqrt(n)

    n is the number of weights that share the centers, and eta_1 the learning rate that the base optimizer has for them.
    A step evaluates the closure once. There is no lambda: weights learn at their centers, and need no pull.
    """

    centers_learn: ClassVar[bool] = True

    def __init__(
        self,
        base: Optimizer,
        params: Selection | Sequence[GroupSpec],
        *,
        bits: int | None = None,
        levels: int | None = None,
        center_lr_ratio: float = 1.0,
        assignment: Assignment = "sign",
        init_centers: CenterInit = "kmeans",
        per_channel: bool = False,
    ) -> None:
        """Wrap the base optimizer. `center_lr_ratio` is kappa; the other arguments are as for `CenterQuant`."""
        check_assignment(assignment)
        self.assignment = assignment
        super().__init__(
            base,
            params,
            partial(initial_centers, init_centers=init_centers, per_channel=per_channel),
            bits=bits,
            levels=levels,
            center_lr_ratio=center_lr_ratio,
        )

    def _learn(self, closure: Closure) -> Tensor:
        books = self.codebooks()
        with self._network.holding(self._values(books)):
            loss, gradients = self._gradients(closure)
        self._base_step(gradients)
        for name, (eta2, clip) in self._center_rates().items():
            g, book = gradients[self.x[name]], books[name]
            if g is not None:
                h = by_centers(g, book.centers, book.indices)
                self.centers[name] = descend_centers(book.centers, h, eta2, clip).sort(1).values
        return loss
