"""Ditto: Li, Hu, Beirami and Smith, Ditto: Fair and Robust Federated Learning Through Personalization, 2021."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from quped import _tree
from quped.algorithms._autodiff import cross_entropy_gradient
from quped.algorithms._averaging import Averaging
from quped.algorithms._sgd_step import sgd_step
from quped.algorithms.base import ClientSpec, Deployed, Global, GlobalNetwork, send
from quped.errors import check_number
from quped.typing import Batch, Clock, Metrics, ModelState, Params


class Personal(NamedTuple):
    """x_i, and its velocity."""

    x: ModelState
    velocity: Params


class Work(NamedTuple):
    """x_i and w_i, both with their velocity, and w as it came from the server."""

    x: ModelState
    velocity: Params
    w: ModelState
    w_velocity: Params
    received: Params


@dataclass(frozen=True)
class Ditto(Averaging):
    """min over x_i of f_i(x_i) + lam/2 ||x_i - w||^2, beside FedAvg's w.

    In every local step, on one batch: w_i <- w_i - lr grad f_i(w_i), from w_i = w, and
    x_i <- x_i - lr (grad f_i(x_i) + lam (x_i - w)), with w as the client received it; w <- mean of w_i.
    x_i continues from round to round, and starts from the w of the client's first one.
    """

    lam: float = 1.0
    """lambda, the strength of the pull to w. The paper chooses it by client, among 0.05, 0.1, 0.2, 1 and 2."""

    name: ClassVar[str] = "ditto"
    quantizes: ClassVar[bool] = False
    global_network: ClassVar[GlobalNetwork] = "same"
    batches_per_step: ClassVar[int] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("lam of Ditto", self.lam, 0)

    def init_personal(self, spec: ClientSpec, shared: Global) -> Personal:
        """x_i = w."""
        return Personal(shared.w, spec.sgd.init(shared.w.params))

    def start(self, spec: ClientSpec, shared: Global, personal: Personal, clock: Clock) -> Work:
        """w_i = w; x_i continues."""
        w = shared.w
        return Work(personal.x, personal.velocity, w, spec.sgd.init(w.params), w.params)

    def step(self, spec: ClientSpec, work: Work, batches: tuple[Batch, ...], clock: Clock) -> tuple[Work, Metrics]:
        """Step w_i as FedAvg does, and x_i with the pull to w."""
        (batch,) = batches
        w, w_velocity, _ = sgd_step(spec.sgd, spec.global_network, work.w, work.w_velocity, batch, clock.lr)
        grads, loss, buffers = cross_entropy_gradient(spec.network, work.x, batch)
        grads = _tree.add_scaled(grads, _tree.difference(work.x.params, work.received), self.lam)
        x, velocity = spec.sgd.step(work.x.params, grads, work.velocity, clock.lr)
        return Work(ModelState(x, buffers), velocity, w, w_velocity, work.received), {"loss": loss}

    def finish(self, spec: ClientSpec, work: Work, batch: Batch, clock: Clock) -> tuple[Personal, Global]:
        """Keep x_i, send w_i."""
        return Personal(work.x, work.velocity), send(work.w)

    def deploy(self, spec: ClientSpec, shared: Global, personal: Personal) -> Deployed:
        """x_i."""
        return Deployed(personal.x, {})
