"""Metrics of a model on samples, and of many clients. Nothing here can change a model."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from quped.data import Samples
from quped.typing import ModelState, Network

CHUNK = 1000
"""Samples evaluated at once."""


class Score(NamedTuple):
    """How well a model does on a client's samples."""

    accuracy: float
    """The share of samples that it classifies correctly."""
    own_classes: float
    """The same if it may only choose among the classes in the client's training data."""
    weights: dict[str, Any] | None = None
    """Of a client whose weights are watched, where they lie around their centers."""


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
    slowest: dict[str, float] = field(default_factory=dict)
    """Seconds that a round takes the slowest clients, at most five, the slowest first: the mean of their rounds since
    the last evaluation. Empty if clients are computed at once."""
    median_seconds: float | None = None
    """The same for the client in the middle."""
    weights: dict[str, Any] = field(default_factory=dict)
    """For one client of each kind, how its weights lie around their centers; see `quped.quant.histogram`."""

    @property
    def mean(self) -> float:
        """Test accuracy, mean over clients; NaN if none has test samples."""
        return float(np.mean(list(self.accuracy.values()))) if self.accuracy else float("nan")


def accuracy(network: Network, model: ModelState, samples: Samples) -> float:
    """Return the share of samples that a model classifies correctly."""
    correct = sum(int((logits.argmax(-1) == labels).sum()) for logits, labels in outputs(network, model, samples))
    return correct / len(samples)


def score(network: Network, model: ModelState, samples: Samples, classes: Tensor) -> Score:
    """Return how well a model does on the samples of a client that has these classes, ascending."""
    correct = among_own = 0
    for logits, labels in outputs(network, model, samples):
        correct += int((logits.argmax(-1) == labels).sum())
        among_own += int((classes[logits[:, classes].argmax(-1)] == labels).sum())
    return Score(correct / len(samples), among_own / len(samples))


@torch.no_grad()
def outputs(network: Network, model: ModelState, samples: Samples) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the logits and the labels of all samples, some at a time."""
    for first in range(0, len(samples), CHUNK):
        batch = samples.batch(torch.arange(first, min(first + CHUNK, len(samples))))
        yield network(model.params, model.buffers, batch.inputs, train=False)[0], batch.labels


def over_clients(accuracy: Mapping[str, float]) -> dict[str, Any]:
    """Return accuracies with their mean, standard deviation and the mean of the worst tenth, at least one client."""
    values = list(accuracy.values())
    worst = sorted(values)[: max(1, len(values) // 10)]
    return {
        "mean": float(np.mean(values)) if values else None,
        "std": float(np.std(values)) if values else None,
        "worst_tenth": float(np.mean(worst)) if values else None,
        "per_client": dict(accuracy),
    }


def hurt(accuracy: Mapping[str, float], other: Mapping[str, float], samples: Mapping[str, int]) -> dict[str, bool]:
    """Say which clients are hurt by a method: their accuracy p is below that of another one by more than two standard
    errors sqrt(p (1 - p) / n) of their n test samples. Only clients that are everywhere are listed."""
    common = [name for name in accuracy if name in other and samples.get(name)]
    return {name: other[name] - accuracy[name] > 2 * binomial_error(accuracy[name], samples[name]) for name in common}


def binomial_error(share: float, count: int) -> float:
    """Return the standard error of a share of so many independent samples."""
    return math.sqrt(share * (1 - share) / count)
