"""What a federation learned."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from torch import nn

from quped.errors import InvalidValueError, check
from quped.models import FunctionalNetwork
from quped.runs import plain, versions
from quped.typing import Model


@dataclass(frozen=True)
class Evaluation:
    """A point of the learning curve."""

    round: int
    epoch: int
    phase: str
    loss: float
    """Training loss, mean over the round's clients and steps."""
    accuracy: dict[str, float]
    """Test accuracy of each client's deployed model."""
    seconds: float
    """Since the start."""

    @property
    def mean(self) -> float:
        """Test accuracy, mean over clients."""
        return float(np.mean(list(self.accuracy.values())))


@dataclass(frozen=True)
class Progress:
    """Told after every round, for progress bars."""

    round: int
    rounds: int
    epoch: int
    phase: str
    loss: float
    evaluation: Evaluation | None
    """None in rounds without evaluation."""


@dataclass(frozen=True)
class ClientReport:
    """What came out for one client."""

    name: str
    model: str
    bits: int
    quantized: tuple[str, ...]
    """Names of the parameters that are quantized."""
    samples: int
    """Training samples."""
    accuracy: float
    parameters: int
    bytes_packed: int
    """Size of the model with its quantized weights at `bits` bits each."""
    bytes_float32: int
    """Size of the same model in float32."""


@dataclass(frozen=True)
class Fit:
    """The result of `Federation.fit`."""

    algorithm: str
    seed: int
    epochs: int
    rounds: int
    seconds: float
    curve: list[Evaluation] = field(repr=False)
    """One point per evaluation. The last one, after the last round, is the result."""
    clients: list[ClientReport]
    models: Mapping[str, Model] = field(repr=False)
    """Each client's deployed tensors."""
    networks: Mapping[str, FunctionalNetwork] = field(repr=False)
    global_model: Model | None = field(repr=False)
    """The tensors of w, in which the clients met; None for methods without."""
    global_accuracy: float | None
    """Test accuracy of w on the clients' own test samples, mean over clients: whether there was something to learn."""
    global_network: FunctionalNetwork = field(repr=False)
    options: dict[str, Any] = field(repr=False)
    """The method's `hyperparameters`, and the `training`: what was asked for, and what followed from it. A
    `batch_size` of None: clients have their own."""

    @property
    def accuracy(self) -> dict[str, float]:
        """Test accuracy of each client's deployed model after the last round."""
        return self.curve[-1].accuracy

    def module(self, client: str) -> nn.Module:
        """Return a client's model as an ordinary module in evaluation mode, with hard-quantized weights."""
        check(client in self.models, "client", f"one of {', '.join(self.models)}", client)
        return self.networks[client].module(self.models[client])

    def global_module(self) -> nn.Module:
        """Return the global model as an ordinary module in evaluation mode: where a client that joins may start."""
        if self.global_model is None:
            raise InvalidValueError(f"The method {self.algorithm} leaves no global model that could be used.")
        return self.global_network.module(self.global_model)

    def result(self) -> dict[str, Any]:
        """Return the run's record as plain values."""
        values = list(self.accuracy.values())
        told = {
            "algorithm": self.algorithm,
            "seed": self.seed,
            "accuracy": {"mean": float(np.mean(values)), "std": float(np.std(values)), "per_client": self.accuracy},
            "global_accuracy": self.global_accuracy,
            "clients": [asdict(client) for client in self.clients],
            "epochs": self.epochs,
            "rounds": self.rounds,
            **self.options,
            "seconds": round(self.seconds, 3),
            "versions": versions(),
        }
        return dict(plain(told))
