"""Quantization after training: Gong, Liu, Yang, Bourdev: Compressing Deep Convolutional Networks using Vector
Quantization, 2014; the scalar case."""

from collections.abc import Sequence
from functools import partial

from torch import Tensor
from torch.optim import Optimizer

from quped.optim.base import Closure, QuantizedOptimizer
from quped.optim.selection import GroupSpec, Selection
from quped.quant import initial_centers
from quped.typing import Params


class KMeans(QuantizedOptimizer):
    """The base optimizer alone; `harden` then puts each weight on the nearest of 2^bits centers, found by k-means."""

    def __init__(
        self,
        base: Optimizer,
        params: Selection | Sequence[GroupSpec],
        *,
        bits: int | None = None,
        per_channel: bool = False,
    ) -> None:
        """Wrap the base optimizer."""
        super().__init__(
            base, params, partial(initial_centers, init_centers="kmeans", per_channel=per_channel), bits=bits
        )

    def _learn(self, closure: Closure) -> Tensor:
        """Take a base step."""
        loss, gradients = self._gradients(closure, q=False, of=list(self._rates()))
        self._base_step(gradients)
        return loss

    def codebooks(self) -> Params:
        """Return the centers for x as it is now."""
        return self.centers if self.hard else self._started()
