"""FedAvg with fine-tuning: FedAvg (McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized
Data, 2017), then every client alone. Options: the head first (LP-FT: Kumar et al., Fine-Tuning can Distort Pretrained
Features and Underperform Out-of-Distribution, 2022), and a head that FedAvg leaves as it was (FedBABU: Oh, Kim and Yun,
FedBABU: Toward Enhanced Representation for Federated Image Classification, 2022)."""

from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from quped import _tree
from quped._losses import cross_entropy
from quped.algorithms import _algorithm1
from quped.algorithms._algorithm1 import Learner, Problem
from quped.algorithms._averaging import Averaging
from quped.algorithms._head import check_head, parts
from quped.algorithms._sgd_step import sgd_step
from quped.algorithms.base import ClientSpec, Deployed, Global, GlobalNetwork, send
from quped.algorithms.quantization import Quantization
from quped.errors import check, check_number
from quped.typing import Batch, Clock, Metrics, ModelState, Params, Phase


class Personal(NamedTuple):
    """The client's own model, and whether it is in use: until the client's first round alone, it has none but w."""

    learner: Learner
    is_own: Tensor


class Work(NamedTuple):
    """The client's own model, and w_i with its velocity of this round. A round changes one of them."""

    learner: Learner
    w: ModelState
    velocity: Params


class Payload(NamedTuple):
    """w_i, and 1; in a round alone w as it came, and 0."""

    w: ModelState
    has_learned: Tensor


@dataclass(frozen=True)
class FedAvgFT(Averaging):
    """While t < `warmup_epochs`, FedAvg: w_i <- w_i - lr grad f_i(w_i) from w; w <- mean of w_i. Then every client by
    itself, from x_i = w: x_i <- x_i - lr grad f_i(x_i) at 32 bits; at fewer, x_i and c_i by Algorithm 1, with centers
    at the means of their weights (k-means; at 1 bit the means of each sign). w stays as it is.

    A client deploys Q_ci(x_i), and w, quantized with such centers, until its first round alone. Fine-tuning of hardened
    weights is alone in any case.
    """

    warmup_epochs: float = 20.0
    """The epochs of FedAvg. An algorithm does not know the length of a run: 20 suits the usual 30 epochs."""
    head_first_epochs: float = 0.0
    """LP-FT: for so many epochs after them only the head of x_i learns, at Q_ci(x_i), with all else as it is."""
    frozen_head: bool = False
    """FedBABU: the head of w keeps its initial weights."""
    head: tuple[str, ...] | None = None
    """The parameters of the head, for both options; by default those of the network's last layer."""
    quantization: Quantization = field(default_factory=Quantization)

    name: ClassVar[str] = "fedavgft"
    quantizes: ClassVar[bool] = True
    global_network: ClassVar[GlobalNetwork] = "same"
    batches_per_step: ClassVar[int] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check(isinstance(self.quantization, Quantization), "quantization", "a Quantization(...)", self.quantization)
        check_number("warmup_epochs of FedAvgFT", self.warmup_epochs, 0)
        check_number("head_first_epochs of FedAvgFT", self.head_first_epochs, 0)
        check(isinstance(self.frozen_head, bool), "frozen_head of FedAvgFT", "True or False", self.frozen_head)
        check_head(self.head, "FedAvgFT")
        check(self.head is None or len(self.head) > 0, "head of FedAvgFT", "None or some names", self.head)

    def is_common(self, clock: Clock) -> bool:
        """Say whether the clients train w."""
        return clock.t < self.warmup_epochs and clock.phase is Phase.TRAIN

    def init_shared(self, spec: ClientSpec) -> Global:
        """Start from the global network's weights."""
        if self.frozen_head or self.head_first_epochs:
            parts(spec, self.head)  # refuses a head that the network does not have
        return super().init_shared(spec)

    def init_personal(self, spec: ClientSpec, shared: Global) -> Personal:
        """Return a model that is not in use: its centers need not be good ones."""
        return Personal(_algorithm1.begin_at(spec, shared.w, dict.fromkeys(spec.bits, "range")), torch.tensor(False))

    def start(self, spec: ClientSpec, shared: Global, personal: Personal, clock: Clock) -> Work:
        """w_i = w; alone, x_i continues, or starts from w."""
        learner = personal.learner
        if not self.is_common(clock):
            learner = _algorithm1.resume(own_model(spec, shared, personal), clock, self.quantization.assignment)
        return Work(learner, shared.w, spec.sgd.init(shared.w.params))

    def step(self, spec: ClientSpec, work: Work, batches: tuple[Batch, ...], clock: Clock) -> tuple[Work, Metrics]:
        """Take one SGD step on w_i, or one step alone."""
        (batch,) = batches
        if self.is_common(clock):
            names = parts(spec, self.head).body if self.frozen_head else None
            w, velocity, loss = sgd_step(spec.sgd, spec.global_network, work.w, work.velocity, batch, clock.lr, names)
            return Work(work.learner, w, velocity), {"loss": loss}
        f = partial(cross_entropy, labels=batch.labels)
        problem = Problem(spec, self.quantization, batch.inputs, f, clock)
        if clock.t < self.warmup_epochs + self.head_first_epochs and clock.phase is Phase.TRAIN:
            learner, loss = _algorithm1.step_part(problem, work.learner, parts(spec, self.head).head)
        else:
            learner, loss = _algorithm1.step(problem, work.learner)
        return work._replace(learner=learner), {"loss": loss}

    def finish(self, spec: ClientSpec, work: Work, batch: Batch, clock: Clock) -> tuple[Personal, Payload]:
        """Send w_i; alone, keep x_i and c_i, and send w as it came."""
        common = self.is_common(clock)
        return Personal(work.learner, torch.tensor(not common)), Payload(send(work.w).w, torch.tensor(float(common)))

    def server_update(self, shared: Global, mean: Payload) -> Global:
        """w = mean of w_i, or beyond it. Alone w stays: the mean of equal numbers need not be the same bits."""
        return super().server_update(shared, mean) if bool(mean.has_learned) else shared

    def deploy(self, spec: ClientSpec, shared: Global, personal: Personal) -> Deployed:
        """Q_ci(x_i); before the client's first round alone, w with centers of its own."""
        return _algorithm1.deployed(own_model(spec, shared, personal), self.quantization.assignment)


def own_model(spec: ClientSpec, shared: Global, personal: Personal) -> Learner:
    """Return the client's own model if it is in use, or else one that begins at w."""
    return _tree.choose(personal.is_own, lambda: personal.learner, lambda: _algorithm1.begin_learned(spec, shared.w))
