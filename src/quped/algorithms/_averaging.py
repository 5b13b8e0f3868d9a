"""The server of methods with one global model: w is the mean of what clients send, or, with momentum, beyond it.

Momentum: Hsu, Qi and Brown, Measuring the Effects of Non-Identical Data Distribution for Federated Visual
Classification, 2019 (FedAvgM), here in Nesterov's form. The bound on its length is ours."""

from dataclasses import dataclass, field
from typing import Any

from quped import _tree
from quped.algorithms._sgd import check_momentum
from quped.algorithms.base import ClientSpec, Global
from quped.typing import ModelState

LEAP = 2.0
"""The length of w's velocity is at most so many times the distance from w to the mean."""


@dataclass(frozen=True)
class Averaging:
    """Hyperparameters and first state of a server with one global model."""

    server_momentum: float = field(default=0.0, kw_only=True)
    """The momentum of w at the server: d = mean of w_i - w;  v <- d + momentum v, cut to a length of 2 ||d||;
    w <- w + d + momentum v."""

    def __post_init__(self) -> None:
        check_momentum(f"server_momentum of {type(self).__name__}", self.server_momentum)

    def init_shared(self, spec: ClientSpec) -> Global:
        """Start from the global network's weights."""
        return at_rest(spec.global_initial, self.server_momentum)

    def server_update(self, shared: Global, mean: Any) -> Global:
        """w = mean of w_i, or, with momentum, beyond it."""
        return receive(shared, mean.w, self.server_momentum)


def at_rest(w: ModelState, momentum: float) -> Global:
    """Return a global model that has not moved yet."""
    return Global(w, _tree.zeros_like(w.params)) if momentum else Global(w)


def receive(shared: Global, mean: ModelState, momentum: float = 0.0) -> Global:
    """Return the mean, or what is beyond it, as the new w; buffers that cannot be averaged stay as they were.

    The first rounds are the longest. Without a bound, what they leave in the velocity can carry w away.
    Momentum moves parameters only: BatchNorm's statistics are the clients' mean.
    """
    params, velocity = mean.params, shared.server
    if momentum:
        moved = _tree.difference(params, shared.w.params)
        velocity = _tree.add_scaled(moved, velocity, momentum)
        bound, length = LEAP * _tree.norm(moved), _tree.norm(velocity)
        if length > bound:
            velocity = {k: v * (bound / length) for k, v in velocity.items()}
        params = _tree.add_scaled(params, velocity, momentum)
    return Global(ModelState(params, {**shared.w.buffers, **mean.buffers}), velocity)
