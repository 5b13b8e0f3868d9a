"""Local training: every client alone. Algorithm 1 of the paper at fewer than 32 bits, SGD at 32."""

from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

from quped._losses import cross_entropy
from quped.algorithms import _algorithm1
from quped.algorithms._algorithm1 import Learner, Problem
from quped.algorithms.base import ClientSpec, Deployed, Empty, GlobalNetwork
from quped.algorithms.quantization import Quantization
from quped.errors import check, check_number
from quped.typing import Batch, Clock, Metrics


@dataclass(frozen=True)
class Local:
    """min over x, c of F_lambda(x, c) = f(x) + f(Q~_c(x)) + lambda R(x, c), at each client by itself."""

    quantization: Quantization = field(default_factory=Quantization)
    label_smoothing: float = 0.0
    """e of the targets (1 - e) onehot(y) + e / classes in f. Distillation from an untrained teacher is nearly this."""

    name: ClassVar[str] = "local"
    quantizes: ClassVar[bool] = True
    global_network: ClassVar[GlobalNetwork] = "none"
    batches_per_step: ClassVar[int] = 1

    def __post_init__(self) -> None:
        check(isinstance(self.quantization, Quantization), "quantization", "a Quantization(...)", self.quantization)
        check_number("label_smoothing of local training", self.label_smoothing, 0, 1)

    def init_shared(self, spec: ClientSpec) -> Empty:
        """Nothing is shared."""
        return Empty()

    def init_personal(self, spec: ClientSpec, shared: Empty) -> Learner:
        """Start from x^0 and c^0."""
        return _algorithm1.begin(spec)

    def start(self, spec: ClientSpec, shared: Empty, personal: Learner, clock: Clock) -> Learner:
        """Go on from the last round."""
        return _algorithm1.resume(personal, clock, self.quantization.assignment)

    def step(
        self, spec: ClientSpec, work: Learner, batches: tuple[Batch, ...], clock: Clock
    ) -> tuple[Learner, Metrics]:
        """Take one step of Algorithm 1 with f the cross-entropy."""
        (batch,) = batches
        loss = partial(cross_entropy, labels=batch.labels, label_smoothing=self.label_smoothing)
        learner, value = _algorithm1.step(Problem(spec, self.quantization, batch.inputs, loss, clock), work)
        return learner, {"loss": value}

    def finish(self, spec: ClientSpec, work: Learner, batch: Batch, clock: Clock) -> tuple[Learner, Empty]:
        """Keep everything, send nothing."""
        return work, Empty()

    def server_update(self, shared: Empty, mean: Empty) -> Empty:
        """Nothing is shared."""
        return shared

    def deploy(self, spec: ClientSpec, shared: Empty, personal: Learner) -> Deployed:
        """Q_c(x)."""
        return _algorithm1.deployed(personal, self.quantization.assignment)
