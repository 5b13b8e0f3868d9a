"""Metrics of a model on samples. Nothing here can change a model."""

from typing import NamedTuple

import torch

from quped.data import Samples
from quped.losses import cross_entropy
from quped.typing import Model, Network

CHUNK = 1000
"""Samples evaluated at once."""


class Score(NamedTuple):
    """How a model does on a set of samples."""

    accuracy: float
    loss: float


def score(network: Network, model: Model, samples: Samples) -> Score:
    """Return the share of samples classified correctly, and the mean cross-entropy."""
    correct, loss = 0, 0.0
    with torch.no_grad():
        for first in range(0, len(samples), CHUNK):
            indices = torch.arange(first, min(first + CHUNK, len(samples)))
            batch = samples.batch(indices)
            logits, _ = network(model.params, model.buffers, batch.inputs, train=False)
            correct += int((logits.argmax(-1) == batch.labels).sum())
            loss += float(cross_entropy(logits, batch.labels)) * len(indices)
    return Score(correct / len(samples), loss / len(samples))
