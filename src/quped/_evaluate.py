"""Metrics of a model on samples. Nothing here can change a model."""

import torch

from quped.data import Samples
from quped.typing import ModelState, Network

CHUNK = 1000
"""Samples evaluated at once."""


def accuracy(network: Network, model: ModelState, samples: Samples) -> float:
    """Return the share of samples that a model classifies correctly."""
    correct = 0
    with torch.no_grad():
        for first in range(0, len(samples), CHUNK):
            batch = samples.batch(torch.arange(first, min(first + CHUNK, len(samples))))
            logits, _ = network(model.params, model.buffers, batch.inputs, train=False)
            correct += int((logits.argmax(-1) == batch.labels).sum())
    return correct / len(samples)
