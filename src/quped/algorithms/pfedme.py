"""pFedMe: Dinh, Tran and Nguyen, Personalized Federated Learning with Moreau Envelopes, 2020."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from quped import _tree
from quped.algorithms._autodiff import cross_entropy_gradient
from quped.algorithms._averaging import Averaging
from quped.algorithms.base import ClientSpec, Deployed, Global, GlobalNetwork, send
from quped.errors import check, check_number, check_whole
from quped.typing import Batch, Clock, Metrics, ModelState


class Personal(NamedTuple):
    """theta_i: the client's own model."""

    theta: ModelState


class Work(NamedTuple):
    """theta_i and w_i."""

    theta: ModelState
    w: ModelState


@dataclass(frozen=True)
class PFedMe(Averaging):
    """theta_i ~ argmin f_i(theta) + lam/2 ||theta - w_i||^2;  w_i <- w_i - eta lam (w_i - theta_i);  w <- mean of w_i.

    The inner problem is solved on one batch by `inner_steps` SGD steps with the learning rate of the run, from the
    theta_i of the step before: theta_i is the client's own from its first round to its last (but see `reset_theta`).
    """

    lam: float = 0.5
    """lambda, the strength of the pull to w."""
    eta: float = 0.2
    """eta, the learning rate of w_i."""
    inner_steps: int = 5
    """K, the SGD steps for one inner problem."""
    reset_theta: bool = False
    """theta_i = w at the start of every round, as in the code that the authors of pFedMe published."""

    name: ClassVar[str] = "pfedme"
    quantizes: ClassVar[bool] = False
    global_network: ClassVar[GlobalNetwork] = "same"
    batches_per_step: ClassVar[int] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("lam of pFedMe", self.lam, 0)
        check_number("eta of pFedMe", self.eta, 0)
        check_whole("inner_steps of pFedMe", self.inner_steps, 1)
        check(isinstance(self.reset_theta, bool), "reset_theta of pFedMe", "True or False", self.reset_theta)

    def init_personal(self, spec: ClientSpec, shared: Global) -> Personal:
        """theta_i = w."""
        return Personal(shared.w)

    def start(self, spec: ClientSpec, shared: Global, personal: Personal, clock: Clock) -> Work:
        """w_i = w; theta_i continues, unless it is reset."""
        return Work(shared.w if self.reset_theta else personal.theta, shared.w)

    def step(self, spec: ClientSpec, work: Work, batches: tuple[Batch, ...], clock: Clock) -> tuple[Work, Metrics]:
        """Solve the inner problem on the batch, then move w_i toward its solution."""
        (batch,) = batches
        theta, w = work.theta, work.w
        velocity = spec.sgd.init(theta.params)
        losses = []
        for _ in range(self.inner_steps):
            grads, loss, buffers = cross_entropy_gradient(spec.network, theta, batch)
            grads = _tree.add_scaled(grads, _tree.difference(theta.params, w.params), self.lam)
            params, velocity = spec.sgd.step(theta.params, grads, velocity, clock.lr)
            theta = ModelState(params, buffers)
            losses.append(loss)
        moved = _tree.add_scaled(w.params, _tree.difference(w.params, theta.params), -self.eta * self.lam)
        return Work(theta, ModelState(moved, w.buffers)), {"loss": losses[0]}

    def finish(self, spec: ClientSpec, work: Work, batch: Batch, clock: Clock) -> tuple[Personal, Global]:
        """Keep theta_i, send w_i. No step passes through w_i: for BatchNorm's statistics of it, a batch does here."""
        w = work.w
        buffers = spec.network(w.params, w.buffers, batch.inputs, train=True)[1] if w.buffers else {}
        return Personal(work.theta), send(ModelState(w.params, buffers))

    def deploy(self, spec: ClientSpec, shared: Global, personal: Personal) -> Deployed:
        """theta_i."""
        return Deployed(personal.theta, {})
