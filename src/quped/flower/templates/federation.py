"""A federation: how it learns, what its members share, and what each of them has."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from quped import Client, QuPeD
from quped.data import Subset
from quped.data.datasets import DATASETS
from quped.models import build

NODES = 3


def algorithm() -> QuPeD:
    """Return how the nodes learn."""
    return QuPeD()


def global_model() -> nn.Module:
    """Return the network that the nodes share."""
    return build("cnn1", (1, 8, 8), 10)


def client(node: Mapping[str, Any]) -> Client:
    """Return the client at a node, from its --node-config and its own disk. Put your data here."""
    digits = DATASETS["digits"]()
    train, test = (
        Subset(samples, torch.arange(node["part"], len(samples), NODES)) for samples in (digits.train, digits.test)
    )
    return Client(node["name"], train, test, global_model, bits=node["bits"])
