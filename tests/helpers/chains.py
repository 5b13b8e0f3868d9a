"""Networks that are chains of plain layers."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from helpers.exported import settled
from quped._rng import torch_seeded
from quped.models import build

IMAGE = (3, 9, 7)


def varied() -> nn.Sequential:
    """Return a network with every option that a chain knows."""
    return nn.Sequential(
        nn.BatchNorm2d(3),
        nn.Conv2d(3, 8, (3, 2), padding=(1, 2), stride=(1, 2), bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(3, stride=1, padding=1),
        nn.Sequential(nn.Conv2d(8, 8, 3, groups=8, dilation=(2, 1), padding="same"), nn.Dropout2d(0.5)),
        nn.AvgPool2d(2, padding=1, count_include_pad=False),
        nn.ReLU(),
        nn.Conv2d(8, 12, 3, groups=2, padding=1),
        nn.BatchNorm2d(12, affine=False),
        nn.MaxPool2d((2, 1)),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d((1, None)),
        nn.Flatten(),
        nn.Identity(),
        nn.Linear(36, 16, bias=False),
        nn.BatchNorm1d(16),
        nn.Dropout(0.2),
        nn.ReLU(),
        nn.BatchNorm1d(16),
        nn.Linear(16, 5),
    )


def tied() -> nn.Sequential:
    """Return a network that uses one matrix three times, and one layer twice."""
    first, second, relu = nn.Linear(6, 6), nn.Linear(6, 6), nn.ReLU()
    second.weight = first.weight
    return nn.Sequential(nn.Linear(4, 6), relu, first, relu, second, relu, first, relu, nn.Linear(6, 3))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "cnn1": (lambda: build("cnn1", (1, 8, 8), 10), (1, 8, 8)),
    "cnn2": (lambda: build("cnn2", (3, 16, 16), 10), (3, 16, 16)),
    "cnn1d": (lambda: build("cnn1d", (6, 1, 40), 12), (6, 1, 40)),
    "mlp": (lambda: build("mlp", (1, 8, 8), 10, hidden=(32, 24)), (1, 8, 8)),
    "varied": (varied, IMAGE),
    "tied": (tied, (4,)),
    "one layer": (lambda: nn.Sequential(nn.Linear(4, 3)), (4,)),
    "no weights": (lambda: nn.Sequential(nn.ReLU(), nn.Flatten()), (3, 2, 2)),
}


def network(name: str) -> tuple[nn.Module, Tensor]:
    """Return one of the networks, with samples for it."""
    make, shape = NETWORKS[name]
    with torch_seeded(0, name):
        module, inputs = make(), torch.randn(40, *shape)
    return settled(module, inputs), inputs
