"""FedRep: Collins, Hassani, Mokhtari and Shakkottai, Exploiting Shared Representations for Personalized Federated
Learning, 2021. With `jointly` FedPer: Arivazhagan et al., Federated Learning with Personalization Layers, 2019."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from quped.algorithms._averaging import receive
from quped.algorithms._head import check_head, parts
from quped.algorithms._sgd_step import sgd_step
from quped.algorithms.base import ClientSpec, Deployed, Global, GlobalNetwork, send
from quped.errors import check, check_whole
from quped.typing import Batch, Clock, Metrics, ModelState, Params


class Shared(NamedTuple):
    """The body, and the buffers of the network. The server has no head, so no model that could be used."""

    body: ModelState


class Personal(NamedTuple):
    """The head h_i, and its velocity."""

    head: Params
    velocity: Params


class Work(NamedTuple):
    """The body b_i with the head h_i, their velocity, and the steps of this round so far."""

    model: ModelState
    velocity: Params
    steps: Tensor


@dataclass(frozen=True)
class FedRep:
    """h_i <- h_i - lr grad_h f_i(b_i, h_i) in the first `head_steps` local steps of a round, from b_i = b; then
    b_i <- b_i - lr grad_b f_i(b_i, h_i) in the others; b <- mean of b_i. A client deploys b with its h_i.

    FedPer steps b_i and h_i together in all of them.
    """

    head_steps: int = 5
    """The local steps of each round that train the head. The rest of `local_steps` trains the body."""
    jointly: bool = False
    """FedPer: every step trains both, and `head_steps` has no meaning."""
    head: tuple[str, ...] | None = None
    """The parameters of h_i; by default those of the network's last layer."""

    name: ClassVar[str] = "fedrep"
    quantizes: ClassVar[bool] = False
    global_network: ClassVar[GlobalNetwork] = "same"
    batches_per_step: ClassVar[int] = 1

    def __post_init__(self) -> None:
        check_whole("head_steps of FedRep", self.head_steps, 0)
        check(isinstance(self.jointly, bool), "jointly of FedRep", "True or False", self.jointly)
        check_head(self.head, "FedRep")

    def init_shared(self, spec: ClientSpec) -> Shared:
        """Start from the weights of the global network's body."""
        w = spec.global_initial
        return Shared(ModelState({k: w.params[k] for k in parts(spec, self.head).body}, w.buffers))

    def init_personal(self, spec: ClientSpec, shared: Shared) -> Personal:
        """Start from the weights of the global network's head."""
        head = {k: spec.global_initial.params[k] for k in parts(spec, self.head).head}
        return Personal(head, spec.sgd.init(head))

    def start(self, spec: ClientSpec, shared: Shared, personal: Personal, clock: Clock) -> Work:
        """b_i = b; h_i continues."""
        body = shared.body
        velocity = spec.sgd.init(body.params) | personal.velocity
        return Work(ModelState(body.params | personal.head, body.buffers), velocity, torch.tensor(0))

    def step(self, spec: ClientSpec, work: Work, batches: tuple[Batch, ...], clock: Clock) -> tuple[Work, Metrics]:
        """Take one SGD step on the part whose turn it is."""
        (batch,) = batches
        head, body = parts(spec, self.head)
        names = None if self.jointly else head if head and int(work.steps) < self.head_steps else body
        model, velocity, loss = sgd_step(spec.sgd, spec.network, work.model, work.velocity, batch, clock.lr, names)
        return Work(model, velocity, work.steps + 1), {"loss": loss}

    def finish(self, spec: ClientSpec, work: Work, batch: Batch, clock: Clock) -> tuple[Personal, Shared]:
        """Keep h_i, send b_i."""
        head, body = parts(spec, self.head)
        params = work.model.params
        own = Personal({k: params[k] for k in head}, {k: work.velocity[k] for k in head if k in work.velocity})
        return own, Shared(send(ModelState({k: params[k] for k in body}, work.model.buffers)).w)

    def server_update(self, shared: Shared, mean: Shared) -> Shared:
        """b = mean of b_i."""
        return Shared(receive(Global(shared.body), mean.body).w)

    def deploy(self, spec: ClientSpec, shared: Shared, personal: Personal) -> Deployed:
        """The body of the server with the client's head."""
        return Deployed(ModelState(shared.body.params | personal.head, shared.body.buffers), {})
