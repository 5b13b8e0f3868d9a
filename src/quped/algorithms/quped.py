"""QuPeD: Ozkara, Singh, Data and Diggavi, QuPeD: Quantized Personalization via Distillation with Applications to
Federated Learning, 2021. Algorithm 2."""

from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from quped._losses import Softened, cross_entropy, distillation
from quped.algorithms import _algorithm1
from quped.algorithms._algorithm1 import Learner, Problem
from quped.algorithms._autodiff import gradient, pullback
from quped.algorithms._averaging import Averaging
from quped.algorithms.base import ClientSpec, Deployed, Global, GlobalNetwork, send
from quped.algorithms.quantization import Quantization
from quped.errors import check, check_number, number
from quped.typing import Batch, Clock, Metrics, ModelState, Params, Phase


class Work(NamedTuple):
    """x_i with c_i, and w_i with its velocity of this round."""

    learner: Learner
    w: ModelState
    velocity: Params


@dataclass(frozen=True)
class QuPeD(Averaging):
    """min of mean_i F_i(x_i, c_i, w), with

    F_i = (1 - lambda_p) (f_i(x) + f_i(Q~_c(x))) + lambda R(x, c) + lambda_p (f^KD(x, w) + f^KD(Q~_c(x), w)),
    f^KD(x, w) = D_KL(s(w) || s(x)).

    x_i and c_i by Algorithm 1, then w_i <- w_i - eta_3 lambda_p grad_w (f^KD(x_i, w_i) + f^KD(Q~_ci(x_i), w_i)), with
    eta_3 a multiple of eta_1; w <- mean of w_i. w never sees a label (but see `warmup_epochs`). A client with 32 bits
    has no second term in either bracket.
    """

    lambda_p: float = 0.25
    """lambda_p, the share of distillation in a client's loss."""
    global_lr_ratio: float = 1.0
    """eta_3 / eta_1. With 1 / lambda_p, w_i steps along the gradient of its divergence with x_i's learning rate; of
    two divergences, if x_i is quantized. Its weight decay grows in the same proportion."""
    temperature: float = 1.0
    """T, the temperature of the distillation."""
    softened: Softened = "both"
    """Whose logits T divides: those of "both", or of the "teacher" alone, as in the authors' code:
    f^KD = T^2 D_KL(s(w / T) || s(x)). With T = 1 both are the paper's."""
    warmup_epochs: float = 0.0
    """Not in the paper: while t is below this, w learns from labels, as in FedAvg, and a client with the global network
    has no other model than w_i. Its x_i starts from the w_i of its last such round, or from w if it took part in none,
    with new centers."""
    quantization: Quantization = field(default_factory=Quantization)

    name: ClassVar[str] = "quped"
    quantizes: ClassVar[bool] = True
    global_network: ClassVar[GlobalNetwork] = "any"
    batches_per_step: ClassVar[int] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check(isinstance(self.quantization, Quantization), "quantization", "a Quantization(...)", self.quantization)
        check_number("lambda_p of QuPeD", self.lambda_p, 0, 1)
        check_number("global_lr_ratio of QuPeD", self.global_lr_ratio, 0)
        check(number(self.temperature) > 0, "temperature of QuPeD", "above 0", self.temperature)
        check(self.softened in ("both", "teacher"), "softened of QuPeD", "'both' or 'teacher'", self.softened)
        check_number("warmup_epochs of QuPeD", self.warmup_epochs, 0)

    def is_warming_up(self, clock: Clock) -> bool:
        """Say whether w learns from labels still."""
        return clock.t < self.warmup_epochs and clock.phase is Phase.TRAIN

    def init_personal(self, spec: ClientSpec, shared: Global) -> Learner:
        """Start from x^0 and c^0; with a warm-up, from w."""
        return (
            _algorithm1.begin_learned(spec, shared.w)
            if self.warmup_epochs and spec.has_global_network
            else _algorithm1.begin(spec)
        )

    def start(self, spec: ClientSpec, shared: Global, personal: Learner, clock: Clock) -> Work:
        """w_i = w (line 6); x_i and c_i go on."""
        learner = _algorithm1.resume(personal, clock, self.quantization.assignment)
        return Work(learner, shared.w, spec.sgd.init(shared.w.params))

    def step(self, spec: ClientSpec, work: Work, batches: tuple[Batch, ...], clock: Clock) -> tuple[Work, Metrics]:
        """Lines 9 to 13. The forward pass of w_i serves as teacher of x_i and for its own update."""
        (batch,) = batches
        w = work.w
        w_logits, pull_back, w_buffers = pullback(
            lambda params: spec.global_network(params, w.buffers, batch.inputs, train=True), w.params
        )

        kd = partial(distillation, temperature=self.temperature, softened=self.softened)

        def loss(logits: Tensor) -> Tensor:
            divergence = kd(w_logits, logits, trains="student")
            return (1 - self.lambda_p) * cross_entropy(logits, batch.labels) + self.lambda_p * divergence

        problem = Problem(spec, self.quantization, batch.inputs, loss, clock)
        if self.is_warming_up(clock):
            by_logits, value, _ = gradient(lambda logits: (cross_entropy(logits, batch.labels), {}), w_logits)
            learner, value = (
                (work.learner, value) if spec.has_global_network else _algorithm1.step(problem, work.learner)
            )
            eta3 = clock.lr
        else:
            learner, value = _algorithm1.step(problem, work.learner)
            students = _algorithm1.student_logits(problem, learner)

            def teaching(teacher: Tensor) -> tuple[Tensor, Params]:
                divergences = [kd(teacher, student, trains="teacher") for student in students]
                return self.lambda_p * torch.stack(divergences).sum(), {}

            by_logits = gradient(teaching, w_logits)[0]
            eta3 = clock.lr * self.global_lr_ratio
        params, velocity = spec.sgd.step(w.params, pull_back(by_logits), work.velocity, eta3)
        return Work(learner, ModelState(params, w_buffers), velocity), {"loss": value}

    def finish(self, spec: ClientSpec, work: Work, batch: Batch, clock: Clock) -> tuple[Learner, Global]:
        """Keep x_i and c_i, send w_i (line 15)."""
        follows = self.is_warming_up(clock) and spec.has_global_network
        return _algorithm1.begin_learned(spec, work.w) if follows else work.learner, send(work.w)

    def deploy(self, spec: ClientSpec, shared: Global, personal: Learner) -> Deployed:
        """Q_ci(x_i) (line 19)."""
        return _algorithm1.deployed(personal, self.quantization.assignment)
