"""Stochastic gradient descent as a pure function."""

from dataclasses import dataclass

from quped import _tree
from quped.errors import check, check_number, number
from quped.typing import Params


@dataclass(frozen=True)
class SGD:
    """v <- momentum v + (g + weight_decay x);  x <- x - lr v."""

    weight_decay: float = 1e-4
    momentum: float = 0.0

    def __post_init__(self) -> None:
        check_number("weight_decay", self.weight_decay, 0)
        check_momentum("momentum", self.momentum)

    def init(self, params: Params) -> Params:
        """Return the initial velocity; empty without momentum."""
        return _tree.zeros_like(params) if self.momentum else {}

    def step(self, params: Params, grads: Params, velocity: Params, lr: float) -> tuple[Params, Params]:
        """Return the parameters and the velocity after one step."""
        direction = _tree.add_scaled(grads, params, self.weight_decay) if self.weight_decay else grads
        if self.momentum:
            velocity = direction = _tree.add_scaled(direction, velocity, self.momentum)
        return _tree.add_scaled(params, direction, -lr), velocity


def check_momentum(what: str, value: object) -> None:
    """Check a factor on a velocity."""
    check(0 <= number(value) < 1, what, "at least 0 and below 1", value)
