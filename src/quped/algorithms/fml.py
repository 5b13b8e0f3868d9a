"""Federated Mutual Learning: Shen et al., Federated Mutual Learning, 2020."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from quped._losses import cross_entropy, distillation
from quped.algorithms._autodiff import gradient
from quped.algorithms._averaging import Averaging
from quped.algorithms.base import ClientSpec, Deployed, Global, GlobalNetwork, send
from quped.errors import check_number
from quped.typing import Batch, Clock, Metrics, ModelState, Params


class Personal(NamedTuple):
    """x_i, and its velocity."""

    x: ModelState
    velocity: Params


class Work(NamedTuple):
    """x_i, and the meme model w_i: both with their velocity."""

    x: ModelState
    velocity: Params
    w: ModelState
    w_velocity: Params


@dataclass(frozen=True)
class FML(Averaging):
    """x_i and w_i teach each other, from labels and from each other's outputs, in simultaneous steps; w <- mean of w_i.

    x_i: (1 - alpha) f_i(x_i) + alpha D_KL(s(w_i) || s(x_i));  w_i: (1 - beta) f_i(w_i) + beta D_KL(s(x_i) || s(w_i)).

    alpha and beta weigh the divergence, as lambda_p does in QuPeD; the paper of FML weighs the labels with them.
    """

    alpha: float = 0.25
    beta: float = 0.25

    name: ClassVar[str] = "fml"
    quantizes: ClassVar[bool] = False
    global_network: ClassVar[GlobalNetwork] = "any"
    batches_per_step: ClassVar[int] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("alpha of FML", self.alpha, 0, 1)
        check_number("beta of FML", self.beta, 0, 1)

    def init_personal(self, spec: ClientSpec, shared: Global) -> Personal:
        """Start from the weights of the client's own network."""
        return Personal(spec.initial, spec.sgd.init(spec.initial.params))

    def start(self, spec: ClientSpec, shared: Global, personal: Personal, clock: Clock) -> Work:
        """w_i = w; x_i goes on."""
        return Work(personal.x, personal.velocity, shared.w, spec.sgd.init(shared.w.params))

    def step(self, spec: ClientSpec, work: Work, batches: tuple[Batch, ...], clock: Clock) -> tuple[Work, Metrics]:
        """Step both models by their gradients at the present pair."""
        (batch,) = batches

        def f(pair: dict[str, Params]) -> tuple[Tensor, tuple[Tensor, Params, Params]]:
            x, x_buffers = spec.network(pair["x"], work.x.buffers, batch.inputs, train=True)
            w, w_buffers = spec.global_network(pair["w"], work.w.buffers, batch.inputs, train=True)
            x_loss = (1 - self.alpha) * cross_entropy(x, batch.labels) + self.alpha * distillation(
                teacher=w, student=x, trains="student"
            )
            w_loss = (1 - self.beta) * cross_entropy(w, batch.labels) + self.beta * distillation(
                teacher=x, student=w, trains="student"
            )
            # Each teacher is detached, so the gradient of the sum is the pair of both gradients.
            return x_loss + w_loss, (x_loss, x_buffers, w_buffers)

        grads, _, (loss, x_buffers, w_buffers) = gradient(f, {"x": work.x.params, "w": work.w.params})
        x, velocity = spec.sgd.step(work.x.params, grads["x"], work.velocity, clock.lr)
        w, w_velocity = spec.sgd.step(work.w.params, grads["w"], work.w_velocity, clock.lr)
        return Work(ModelState(x, x_buffers), velocity, ModelState(w, w_buffers), w_velocity), {"loss": loss}

    def finish(self, spec: ClientSpec, work: Work, batch: Batch, clock: Clock) -> tuple[Personal, Global]:
        """Keep x_i, send w_i."""
        return Personal(work.x, work.velocity), send(work.w)

    def deploy(self, spec: ClientSpec, shared: Global, personal: Personal) -> Deployed:
        """x_i."""
        return Deployed(personal.x, {})
