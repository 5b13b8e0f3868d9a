"""What comes out of a federation."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from torch import nn

from quped._evaluate import over_clients
from quped.algorithms import Deployed
from quped.errors import InvalidValueError, did_you_mean
from quped.models import FunctionalNetwork
from quped.records import plain, versions
from quped.typing import ModelState


@dataclass(frozen=True)
class Evaluation:
    """A point of the learning curve."""

    round: int
    """From 0."""
    epoch: int
    """From 0: the one in which the round began."""
    phase: str
    """"train" or "finetune"."""
    loss: float
    """Training loss, mean over the round's clients and steps."""
    accuracy: dict[str, float]
    """Test accuracy of each client's deployed model; clients without test samples are not listed."""
    seconds: float
    """Since the run began."""
    accuracy_own_classes: dict[str, float] = field(default_factory=dict)
    """The same if a model may only choose among the classes in its client's training data."""

    @property
    def mean(self) -> float:
        """Test accuracy, mean over clients; NaN if none has test samples."""
        return float(np.mean(list(self.accuracy.values()))) if self.accuracy else float("nan")


@dataclass(frozen=True)
class ClientResult:
    """What came out for one client."""

    name: str
    network: str
    bits: dict[str, int]
    """Bits per weight of each quantized parameter; empty in full precision."""
    samples: int
    """Training samples."""
    accuracy: float | None
    """On the client's test samples; None without any."""
    parameters: int
    bytes_packed: int
    """Size of the model with its quantized parameters packed."""
    bytes_float32: int
    """Size of the same model in float32."""


@dataclass(frozen=True)
class FitResult:
    """The result of `Federation.fit`."""

    algorithm: str
    seed: int
    epochs: int
    rounds: int
    """Rounds that were run: fewer than scheduled if a callback ended the run."""
    seconds: float
    curve: list[Evaluation] = field(repr=False)
    """One point per evaluation. The last one, after the last round, is the result."""
    clients: list[ClientResult]
    models: Mapping[str, Deployed] = field(repr=False)
    """Each client's deployed tensors, with the codebooks of the quantized ones."""
    networks: Mapping[str, FunctionalNetwork] = field(repr=False)
    global_model: ModelState | None = field(repr=False)
    """The tensors of the global model w; None for methods without."""
    global_accuracy: float | None
    """Accuracy of w on the clients' own test samples, mean over clients: whether there was something to learn from."""
    global_accuracy_own_classes: float | None
    """The same if w may only choose among the classes in each client's training data: what a method gains that does
    nothing but know them."""
    global_network: FunctionalNetwork = field(repr=False)
    options: dict[str, Any] = field(repr=False)
    """The method's `hyperparameters`, and the `training`: the options, and what follows from them.
    A `batch_size` of None: clients have their own."""

    @property
    def accuracy(self) -> dict[str, float]:
        """Test accuracy of each client's deployed model after the last round."""
        return self.curve[-1].accuracy

    @property
    def accuracy_own_classes(self) -> dict[str, float]:
        """The same if a model may only choose among the classes in its client's training data."""
        return self.curve[-1].accuracy_own_classes

    def module(self, client: str) -> nn.Module:
        """Return a client's model as an ordinary module in evaluation mode, with hard-quantized weights."""
        if client not in self.models:
            raise InvalidValueError(f"There is no client {client!r}. {did_you_mean(str(client), self.models)}")
        return self.networks[client].module(self.models[client].state)

    def global_module(self) -> nn.Module:
        """Return the global model as an ordinary module in evaluation mode: a start for clients that join later."""
        if self.global_model is None:
            raise InvalidValueError(f"The method {self.algorithm} leaves no global model to use.")
        return self.global_network.module(self.global_model)

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain values, as `result.json` holds them."""
        result = {
            "format": FORMAT,
            "algorithm": self.algorithm,
            "seed": self.seed,
            "accuracy": over_clients(self.accuracy),
            "accuracy_own_classes": over_clients(self.accuracy_own_classes),
            "global_accuracy": self.global_accuracy,
            "global_accuracy_own_classes": self.global_accuracy_own_classes,
            "clients": [asdict(client) for client in self.clients],
            "epochs": self.epochs,
            "rounds": self.rounds,
            **self.options,
            "seconds": round(self.seconds, 3),
            "versions": versions(),
        }
        return dict(plain(result))


FORMAT = 2
"""Of result files; raised when a key changes its name or meaning."""
