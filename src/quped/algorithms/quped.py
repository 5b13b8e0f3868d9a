"""QuPeD: Ozkara, Singh, Data and Diggavi, QuPeD: Quantized Personalization via Distillation with Applications to
Federated Learning, 2021. Algorithm 2."""

from dataclasses import dataclass, field, replace
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from quped.algorithms import alternating
from quped.algorithms.alternating import Learner, Problem
from quped.algorithms.base import Global, Meeting, Task, gradient, pullback, receive, send
from quped.algorithms.quantization import Quantization
from quped.errors import check, check_number, number
from quped.losses import cross_entropy, distillation
from quped.typing import Batch, Clock, Metrics, Model, Params, Phase


class Work(NamedTuple):
    """x_i with c_i, and w_i with its velocity of this round."""

    learner: Learner
    w: Model
    velocity: Params


@dataclass(frozen=True)
class QuPeD:
    """min of mean_i F_i(x_i, c_i, w), with

    F_i = (1 - lambda_p) (f_i(x) + f_i(Q~_c(x))) + lambda R(x, c) + lambda_p (f^KD(x, w) + f^KD(Q~_c(x), w)),
    f^KD(x, w) = D_KL(s(w) || s(x)).

    x_i and c_i by Algorithm 1, then w_i <- w_i - eta_3 lambda_p grad_w (f^KD(x_i, w_i) + f^KD(Q~_ci(x_i), w_i)), with
    eta_3 a multiple of eta_1; w <- mean of w_i. w never sees a label (but see `together`). A client with 32 bits
    has no second term in either bracket.
    """

    lambda_p: float = 0.25
    """lambda_p, the share of distillation in a client's loss."""
    eta3_over_eta1: float = 1.0
    """eta_3 / eta_1. With 1 / lambda_p, w_i steps along the gradient of its divergence with x_i's learning rate; of
    two divergences, if x_i is quantized. Its weight decay grows in the same proportion."""
    temperature: float = 1.0
    """Temperature of the distillation."""
    together: float = 0.0
    """Beyond the paper: while t is below this, w learns from labels, as in FedAvg, and a client with its network has no
    other model than w_i. x_i starts from the w_i of the last such round in which it took part, or from w if there was
    none, with new centers."""
    quantization: Quantization = field(default_factory=Quantization)

    name: ClassVar[str] = "quped"
    quantizes: ClassVar[bool] = True
    meets_in: ClassVar[Meeting] = "any"
    draws: ClassVar[int] = 1

    def __post_init__(self) -> None:
        """Check the ranges."""
        check(isinstance(self.quantization, Quantization), "quantization", "a Quantization(...)", self.quantization)
        check_number("lambda_p of QuPeD", self.lambda_p, 0, 1)
        check_number("eta3_over_eta1 of QuPeD", self.eta3_over_eta1, 0)
        check(number(self.temperature) > 0, "temperature of QuPeD", "above 0", self.temperature)
        check_number("together of QuPeD", self.together, 0)

    def is_together(self, clock: Clock) -> bool:
        """Say whether w learns from labels still."""
        return clock.t < self.together and clock.phase is Phase.TRAIN

    def init_shared(self, task: Task) -> Global:
        """Start from the global network's weights."""
        return Global(task.global_initial)

    def init_personal(self, task: Task, shared: Global) -> Learner:
        """Start from x^0 and c^0; after epochs together, from w."""
        return starting_from(task, shared.w) if self.together and task.alike else alternating.begin(task)

    def start(self, task: Task, shared: Global, personal: Learner, clock: Clock) -> Work:
        """w_i = w (line 6); x_i and c_i go on."""
        learner = alternating.resume(personal, clock, self.quantization.border)
        return Work(learner, shared.w, task.sgd.init(shared.w.params))

    def step(self, task: Task, work: Work, batches: tuple[Batch, ...], clock: Clock) -> tuple[Work, Metrics]:
        """Lines 9 to 13. The forward pass of w_i serves as teacher of x_i and for its own update."""
        (batch,) = batches
        w = work.w
        w_logits, pull_back, w_buffers = pullback(
            lambda params: task.global_network(params, w.buffers, batch.inputs, train=True), w.params
        )

        def loss(logits: Tensor) -> Tensor:
            kd = distillation(w_logits, logits, trains="student", temperature=self.temperature)
            return (1 - self.lambda_p) * cross_entropy(logits, batch.labels) + self.lambda_p * kd

        problem = Problem(task, self.quantization, batch.inputs, loss, clock)
        if self.is_together(clock):
            by_logits, value, _ = gradient(lambda logits: (cross_entropy(logits, batch.labels), {}), w_logits)
            learner, value = (work.learner, value) if task.alike else alternating.step(problem, work.learner)
            eta3 = clock.lr
        else:
            learner, value = alternating.step(problem, work.learner)
            students = alternating.student_logits(problem, learner)

            def teaching(teacher: Tensor) -> tuple[Tensor, Params]:
                kds = [distillation(teacher, s, trains="teacher", temperature=self.temperature) for s in students]
                return self.lambda_p * torch.stack(kds).sum(), {}

            by_logits = gradient(teaching, w_logits)[0]
            eta3 = clock.lr * self.eta3_over_eta1
        params, velocity = task.sgd.step(w.params, pull_back(by_logits), work.velocity, eta3)
        return Work(learner, Model(params, w_buffers), velocity), {"loss": value}

    def finish(self, task: Task, work: Work, batch: Batch, clock: Clock) -> tuple[Learner, Global]:
        """Keep x_i and c_i, send w_i (line 15)."""
        follows = self.is_together(clock) and task.alike
        return starting_from(task, work.w) if follows else work.learner, send(work.w)

    def combine(self, shared: Global, mean: Global) -> Global:
        """w = mean of w_i (line 16)."""
        return receive(shared, mean)

    def deploy(self, task: Task, shared: Global, personal: Learner) -> Model:
        """Q_ci(x_i) (line 19)."""
        return alternating.deployed(personal, self.quantization.border)


def starting_from(task: Task, w: Model) -> Learner:
    """Return x_i = w, with centers at the means of their weights; of two centers, those of each sign.

    Evenly between the smallest and the largest weight, most weights of a network that has learned lie between two.
    """
    return alternating.begin(replace(task, initial=w, start="range" if task.bits == 1 else "kmeans"))
