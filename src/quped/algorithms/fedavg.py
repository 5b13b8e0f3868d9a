"""FedAvg: McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, 2017."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from quped.algorithms.base import Empty, Global, Meeting, Task, cross_entropy_gradient, receive, send
from quped.typing import Batch, Clock, Metrics, Model, Params


class Work(NamedTuple):
    """The client's copy of w, and the velocity of this round."""

    w: Model
    velocity: Params


@dataclass(frozen=True)
class FedAvg:
    """w_i <- w_i - lr grad f_i(w_i), `local_steps` times from w; then w <- mean of w_i. Every client deploys w."""

    name: ClassVar[str] = "fedavg"
    quantizes: ClassVar[bool] = False
    meets_in: ClassVar[Meeting] = "same"
    draws: ClassVar[int] = 1

    def init_shared(self, task: Task) -> Global:
        """Start from the global network's weights."""
        return Global(task.global_initial)

    def init_personal(self, task: Task, shared: Global) -> Empty:
        """Nothing is personal."""
        return Empty()

    def start(self, task: Task, shared: Global, personal: Empty, clock: Clock) -> Work:
        """w_i = w."""
        return Work(shared.w, task.sgd.init(shared.w.params))

    def step(self, task: Task, work: Work, batches: tuple[Batch, ...], clock: Clock) -> tuple[Work, Metrics]:
        """Take one SGD step on w_i."""
        (batch,) = batches
        grads, loss, buffers = cross_entropy_gradient(task.global_network, work.w, batch)
        params, velocity = task.sgd.step(work.w.params, grads, work.velocity, clock.lr)
        return Work(Model(params, buffers), velocity), {"loss": loss}

    def finish(self, task: Task, work: Work, batch: Batch, clock: Clock) -> tuple[Empty, Global]:
        """Send w_i."""
        return Empty(), send(work.w)

    def combine(self, shared: Global, mean: Global) -> Global:
        """w = mean of w_i."""
        return receive(shared, mean)

    def deploy(self, task: Task, shared: Global, personal: Empty) -> Model:
        """w, the same for all."""
        return shared.w
