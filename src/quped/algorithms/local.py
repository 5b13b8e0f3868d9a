"""Local training: every client alone. Algorithm 1 of the paper at fewer than 32 bits, SGD at 32."""

from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

from quped.algorithms import alternating
from quped.algorithms.alternating import Learner, Problem
from quped.algorithms.base import Empty, Meeting, Task
from quped.algorithms.quantization import Quantization
from quped.errors import check
from quped.losses import cross_entropy
from quped.typing import Batch, Clock, Metrics, Model


@dataclass(frozen=True)
class Local:
    """min over x, c of F_lambda(x, c) = f(x) + f(Q~_c(x)) + lambda R(x, c), at each client by itself."""

    quantization: Quantization = field(default_factory=Quantization)

    name: ClassVar[str] = "local"
    quantizes: ClassVar[bool] = True
    meets_in: ClassVar[Meeting] = "none"
    draws: ClassVar[int] = 1

    def __post_init__(self) -> None:
        """Check the ranges."""
        check(isinstance(self.quantization, Quantization), "quantization", "a Quantization(...)", self.quantization)

    def init_shared(self, task: Task) -> Empty:
        """Nothing is shared."""
        return Empty()

    def init_personal(self, task: Task, shared: Empty) -> Learner:
        """Start from x^0 and c^0."""
        return alternating.begin(task)

    def start(self, task: Task, shared: Empty, personal: Learner, clock: Clock) -> Learner:
        """Go on from the last round."""
        return alternating.resume(personal, clock, self.quantization.border)

    def step(self, task: Task, work: Learner, batches: tuple[Batch, ...], clock: Clock) -> tuple[Learner, Metrics]:
        """Take one step of Algorithm 1 with f the cross-entropy."""
        (batch,) = batches
        loss = partial(cross_entropy, labels=batch.labels)
        learner, value = alternating.step(Problem(task, self.quantization, batch.inputs, loss, clock), work)
        return learner, {"loss": value}

    def finish(self, task: Task, work: Learner, batch: Batch, clock: Clock) -> tuple[Learner, Empty]:
        """Keep everything, send nothing."""
        return work, Empty()

    def combine(self, shared: Empty, mean: Empty) -> Empty:
        """Nothing is shared."""
        return shared

    def deploy(self, task: Task, shared: Empty, personal: Learner) -> Model:
        """Q_c(x)."""
        return alternating.deployed(personal, self.quantization.border)
