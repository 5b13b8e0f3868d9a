"""The words every other module is written in."""

from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple, Protocol

from torch import Tensor

Params = dict[str, Tensor]
"""Tensors by name. Never changed in place: a step makes a new dictionary."""

Metrics = dict[str, Tensor]
"""0-dim tensors by name, one value per step."""


class ModelState(NamedTuple):
    """The tensors of one network that change: what is trained, and what is not, such as BatchNorm statistics."""

    params: Params
    buffers: Params


class Batch(NamedTuple):
    """Inputs as the network's forward takes them (text has two: tokens and offsets), and class labels."""

    inputs: tuple[Tensor, ...]
    labels: Tensor


class Network(Protocol):
    """A network without weights: a pure function of the weights it is given."""

    def __call__(
        self, params: Params, buffers: Params, inputs: tuple[Tensor, ...], *, train: bool
    ) -> tuple[Tensor, Params]:
        """Return the logits and the buffers after the pass; the arguments stay as they are."""
        ...


class Phase(StrEnum):
    """What a client does with its weights."""

    TRAIN = "train"
    """Full-precision weights are pulled toward their centers."""
    FINETUNE = "finetune"
    """Weights sit on their centers, the assignment is frozen; centers and unquantized parts learn on."""


class Clock(NamedTuple):
    """Where in the run a round is. Constant within a round."""

    round: int
    epoch: int
    phase: Phase
    t: float
    """The paper's t of lambda(t): epochs completed so far (0 in the first)."""
    lr: float
    """eta_1 at this epoch."""
    initial_lr: float
    """eta_1 in the first epoch."""
    progress: float
    """The share of the run's steps that were taken before this round: 0 in the first, below 1 in the last."""


LossFn = Callable[[Tensor], Tensor]
"""Logits in, a scalar out."""
