"""FedAvg: McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, 2017."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from quped.algorithms._averaging import Averaging
from quped.algorithms._sgd_step import sgd_step
from quped.algorithms.base import ClientSpec, Deployed, Empty, Global, GlobalNetwork, send
from quped.typing import Batch, Clock, Metrics, ModelState, Params


class Work(NamedTuple):
    """The client's copy of w, and the velocity of this round."""

    w: ModelState
    velocity: Params


@dataclass(frozen=True)
class FedAvg(Averaging):
    """w_i <- w_i - lr grad f_i(w_i), `local_steps` times from w; then w <- mean of w_i. Every client deploys w."""

    name: ClassVar[str] = "fedavg"
    quantizes: ClassVar[bool] = False
    global_network: ClassVar[GlobalNetwork] = "same"
    batches_per_step: ClassVar[int] = 1

    def init_personal(self, spec: ClientSpec, shared: Global) -> Empty:
        """Nothing is personal."""
        return Empty()

    def start(self, spec: ClientSpec, shared: Global, personal: Empty, clock: Clock) -> Work:
        """w_i = w."""
        return Work(shared.w, spec.sgd.init(shared.w.params))

    def step(self, spec: ClientSpec, work: Work, batches: tuple[Batch, ...], clock: Clock) -> tuple[Work, Metrics]:
        """Take one SGD step on w_i."""
        (batch,) = batches
        w, velocity, loss = sgd_step(spec.sgd, spec.global_network, work.w, work.velocity, batch, clock.lr)
        return Work(w, velocity), {"loss": loss}

    def finish(self, spec: ClientSpec, work: Work, batch: Batch, clock: Clock) -> tuple[Empty, Global]:
        """Send w_i."""
        return Empty(), send(work.w)

    def deploy(self, spec: ClientSpec, shared: Global, personal: Empty) -> Deployed:
        """w, the same for all."""
        return Deployed(shared.w, {})
