"""QuPeL: Ozkara, Singh, Data and Diggavi, QuPeL: Quantized Personalization with Applications to Federated Learning,
2021. Clients meet in a global model through an l2 penalty, so all have the same network."""

from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from quped import _tree
from quped._losses import cross_entropy
from quped.algorithms import _algorithm1
from quped.algorithms._algorithm1 import Learner, Problem
from quped.algorithms.base import ClientSpec, Deployed, GlobalNetwork
from quped.algorithms.quantization import Quantization
from quped.errors import check, check_number
from quped.typing import Batch, Clock, Metrics, Params


class Shared(NamedTuple):
    """The parameters of w. It is never run, so it has no buffers."""

    w: Params


class Work(NamedTuple):
    """x_i with c_i, and w_i."""

    learner: Learner
    w: Params


@dataclass(frozen=True)
class QuPeL:
    """min of mean_i f_i(x_i) + f_i(Q~_ci(x_i)) + lambda R(x_i, c_i) + lambda_p/2 ||x_i - w||^2.

    x_i and c_i by Algorithm 1 with the penalty's gradient lambda_p (x_i - w_i) added;
    w_i <- w_i - eta3 lambda_p (w_i - x_i);  w <- mean of w_i. For another penalty see `penalty_on`.
    """

    lambda_p: float = 0.2
    """lambda_p, the strength of the penalty."""
    eta3: float = 0.5
    """eta_3, the learning rate of w_i."""
    penalty_on: Literal["x", "both"] = "x"
    """The models that the penalty pulls to w_i: x_i, or x_i and Q~_ci(x_i). With "both" it is
    lambda_p/2 (||x_i - w||^2 + ||Q~_ci(x_i) - w||^2): centers feel it, as in the authors' code, and w_i steps toward
    both models. At 32 bits there is no second one."""
    quantization: Quantization = field(default_factory=Quantization)

    name: ClassVar[str] = "qupel"
    quantizes: ClassVar[bool] = True
    global_network: ClassVar[GlobalNetwork] = "same"
    batches_per_step: ClassVar[int] = 1

    def __post_init__(self) -> None:
        check(isinstance(self.quantization, Quantization), "quantization", "a Quantization(...)", self.quantization)
        check_number("lambda_p of QuPeL", self.lambda_p, 0)
        check_number("eta3 of QuPeL", self.eta3, 0)
        check(self.penalty_on in ("x", "both"), "penalty_on of QuPeL", "'x' or 'both'", self.penalty_on)

    def init_shared(self, spec: ClientSpec) -> Shared:
        """Start from the global network's weights."""
        return Shared(spec.global_initial.params)

    def init_personal(self, spec: ClientSpec, shared: Shared) -> Learner:
        """Start from x^0 and c^0."""
        return _algorithm1.begin(spec)

    def start(self, spec: ClientSpec, shared: Shared, personal: Learner, clock: Clock) -> Work:
        """w_i = w; x_i and c_i go on."""
        return Work(_algorithm1.resume(personal, clock, self.quantization.assignment), shared.w)

    def step(self, spec: ClientSpec, work: Work, batches: tuple[Batch, ...], clock: Clock) -> tuple[Work, Metrics]:
        """Take one step of Algorithm 1 with the penalty, then one of w_i."""
        (batch,) = batches
        loss = partial(cross_entropy, labels=batch.labels)
        problem = Problem(spec, self.quantization, batch.inputs, loss, clock)
        if self.penalty_on == "x":
            gap = _tree.difference(work.learner.x.params, work.w)
            penalty = {k: self.lambda_p * v for k, v in gap.items()}
            learner, value = _algorithm1.step(problem, work.learner, penalty)
        else:
            pull = partial(half_squared_distance, work.w, self.lambda_p)
            learner, value = _algorithm1.step(problem._replace(term=pull), work.learner)
        gap = _tree.difference(work.w, learner.x.params)
        if self.penalty_on == "both" and learner.c:
            q = _algorithm1.quantized_student(problem, learner)
            gap = _tree.add_scaled(gap, _tree.difference(work.w, q), 1.0)
        return Work(learner, _tree.add_scaled(work.w, gap, -self.eta3 * self.lambda_p)), {"loss": value}

    def finish(self, spec: ClientSpec, work: Work, batch: Batch, clock: Clock) -> tuple[Learner, Shared]:
        """Keep x_i and c_i, send w_i."""
        return work.learner, Shared(work.w)

    def server_update(self, shared: Shared, mean: Shared) -> Shared:
        """w = mean of w_i."""
        return mean

    def deploy(self, spec: ClientSpec, shared: Shared, personal: Learner) -> Deployed:
        """Q_ci(x_i)."""
        return _algorithm1.deployed(personal, self.quantization.assignment)


def half_squared_distance(w: Params, scale: float, params: Params) -> Tensor:
    """Return scale/2 ||params - w||^2."""
    return scale / 2 * torch.stack([(v - w[k]).square().sum() for k, v in params.items()]).sum()
