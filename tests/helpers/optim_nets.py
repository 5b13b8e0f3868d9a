"""A linear classifier with its mathematics in NumPy, and a small network with BatchNorm."""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from quped import LinearSchedule
from quped.optim import (
    BinaryRelax,
    CenterQuant,
    KMeans,
    ProxQuant,
    QuantizedOptimizer,
    Selection,
    StraightCenters,
    StraightThrough,
    geometric,
)
from quped.simulation.client_round import one_thread

Array = NDArray[np.float64]

RNG = np.random.default_rng(7)
INPUTS, LABELS = RNG.normal(size=(6, 4)), np.array([0, 1, 2, 0, 1, 2])
WEIGHT, BIAS = RNG.normal(size=(3, 4)), RNG.normal(size=3)

METHODS: dict[str, Callable[[torch.optim.Optimizer, Selection], QuantizedOptimizer]] = {
    "CenterQuant": lambda base, chosen: CenterQuant(base, chosen, bits=2, lam=LinearSchedule(0.1), eta2=0.01),
    "CenterQuant-soft": lambda base, chosen: CenterQuant(base, chosen, bits=1, lam=LinearSchedule(0.1), sharpness=5.0),
    "CenterQuant-averaged": lambda base, chosen: CenterQuant(
        base, chosen, bits=1, lam=LinearSchedule(0.1), eta2=0.01, average_gradients=True
    ),
    "ProxQuant": lambda base, chosen: ProxQuant(base, chosen, lam=LinearSchedule(0.1)),
    "BinaryRelax": lambda base, chosen: BinaryRelax(base, chosen, bits=1, lam=geometric(1.0, 1.02)),
    "StraightThrough": lambda base, chosen: StraightThrough(base, chosen, bits=2),
    "StraightThrough-ternary": lambda base, chosen: StraightThrough(base, chosen, levels=3),
    "StraightCenters": lambda base, chosen: StraightCenters(base, chosen, levels=3),
    "KMeans": lambda base, chosen: KMeans(base, chosen, bits=2, per_channel=True),
}


def classifier() -> nn.Linear:
    """Return the linear classifier, in float64."""
    model = nn.Linear(4, 3).double()
    with torch.no_grad():
        model.weight.copy_(torch.tensor(WEIGHT))
        model.bias.copy_(torch.tensor(BIAS))
    return model


def loss_of(model: nn.Module) -> Callable[[], Tensor]:
    """Return a closure for the linear classifier: the mean cross-entropy."""
    return lambda: functional.cross_entropy(model(torch.tensor(INPUTS)), torch.tensor(LABELS))


def gradients(weight: Array, bias: Array) -> tuple[Array, Array]:
    """Differentiate that loss by hand."""
    logits = INPUTS @ weight.T + bias
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    by_logits = (p - np.eye(3)[LABELS]) / len(LABELS)
    return by_logits.T @ INPUTS, by_logits.sum(0)


def closest(x: Array, c: Array) -> NDArray[np.int64]:
    """Return the index of the nearest of the centers c, one set for all weights."""
    return np.asarray(np.abs(x[..., None] - c).argmin(-1))


def shrink(y: Array, by: float) -> Array:
    """Move toward 0, and stop there."""
    return np.asarray(np.sign(y) * np.maximum(np.abs(y) - by, 0))


def distinct(tensor: Tensor) -> int:
    """Count different numbers."""
    return len(set(tensor.flatten().tolist()))


def bn_net(seed: int = 0, width: int = 12) -> nn.Sequential:
    """Return a network for 8 inputs and 3 classes; its second and third linear layers are quantized by default."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Linear(8, width),
            nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.Linear(width, 3),
        )


def batches(count: int, seed: int = 0) -> list[tuple[Tensor, Tensor]]:
    """Return random samples for that network."""
    generator = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(16, 8, generator=generator), torch.randint(3, (16,), generator=generator)) for _ in range(count)
    ]


def train(opt: QuantizedOptimizer, model: nn.Module, data: list[tuple[Tensor, Tensor]]) -> list[float]:
    """Take one step on each batch; return the losses."""

    def closure(x: Tensor, y: Tensor) -> Callable[[], Tensor]:
        return lambda: functional.cross_entropy(model(x), y)

    with one_thread():
        return [float(opt.step(closure(x, y))) for x, y in data]
