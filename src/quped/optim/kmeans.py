"""Quantization after training: Gong, Liu, Yang, Bourdev: Compressing Deep Convolutional Networks using Vector
Quantization, 2014; the scalar case."""

from collections.abc import Sequence
from functools import partial

from torch import Tensor
from torch.optim import Optimizer

from quped.optim._guards import Closure
from quped.optim.base import QuantizedOptimizer
from quped.optim.selection import GroupSpec, Selection
from quped.quant import initial_centers
from quped.typing import Params


class KMeans(QuantizedOptimizer):
    """The base optimizer alone; `harden` puts each weight on the nearest of m = 2^bits centers, placed by k-means."""

    def __init__(
        self,
        base: Optimizer,
        params: Selection | Sequence[GroupSpec],
        *,
        bits: int | None = None,
        levels: int | None = None,
        per_channel: bool = False,
    ) -> None:
        super().__init__(
            base,
            params,
            partial(initial_centers, init_centers="kmeans", per_channel=per_channel),
            bits=bits,
            levels=levels,
        )

    def _learn(self, closure: Closure) -> Tensor:
        loss, gradients = self._gradients(closure)
        self._base_step(gradients)
        return loss

    def _present_centers(self) -> Params:
        return self._initial_centers()
