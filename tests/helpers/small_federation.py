"""A federation that runs in a blink, for contracts that every algorithm must keep."""

from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from quped import Client, Federation, FitResult, QuPeD, _tree
from quped.algorithms import ALGORITHMS, AnyAlgorithm
from quped.result import Progress

FEATURES, CLASSES = 6, 3


class Net(nn.Module):
    """Three layers, so that the middle one is quantized, and BatchNorm, so that there are buffers."""

    def __init__(self, width: int = 8) -> None:
        """Build the layers."""
        super().__init__()
        # Without a bias, which BatchNorm would cancel: every parameter here has a gradient.
        self.first = nn.Linear(FEATURES, width, bias=False)
        self.norm = nn.BatchNorm1d(width)
        self.middle = nn.Linear(width, width)
        self.last = nn.Linear(width, CLASSES)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        hidden = torch.relu(self.norm(self.first(inputs)))
        logits: torch.Tensor = self.last(torch.relu(self.middle(hidden)))
        return logits


def wide_net() -> nn.Module:
    """A network that another client may have."""
    return Net(width=12)


def samples(key: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return separable samples of all classes."""
    rng = torch.Generator().manual_seed(key)
    labels = torch.arange(count) % CLASSES
    inputs = torch.randn(count, FEATURES, generator=rng) + 2 * nn.functional.one_hot(labels, FEATURES)
    return inputs, labels


def clients(algorithm: AnyAlgorithm, count: int = 3) -> list[Client]:
    """Return clients as different as the algorithm allows."""
    mixed = algorithm.global_network != "same"
    return [
        Client(
            name=f"c{i}",
            train=samples(i, 20 + i),
            test=samples(100 + i, 12),
            model=wide_net if mixed and i % 2 else Net,
            bits=(2, 1, 32)[i % 3] if algorithm.quantizes else 32,
        )
        for i in range(count)
    ]


def values(tensor: torch.Tensor) -> set[float]:
    """Return the distinct values of a tensor."""
    return set(tensor.flatten().tolist())


def assert_same(a: FitResult, b: FitResult) -> None:
    """Assert that two runs agree bit for bit, in models and in every evaluation."""
    left, right = dict(_tree.items(dict(a.models))), dict(_tree.items(dict(b.models)))
    assert left.keys() == right.keys()
    for path, leaf in left.items():
        assert torch.equal(leaf, right[path]), path
    assert [(e.round, e.loss, e.accuracy) for e in a.curve] == [(e.round, e.loss, e.accuracy) for e in b.curve]


def algorithms() -> dict[str, Callable[[], AnyAlgorithm]]:
    """Return every algorithm of the package, and QuPeD with epochs in which clients have one model."""
    return {**ALGORITHMS, "quped-together": partial(QuPeD, warmup_epochs=2.0)}


def fit(
    algorithm: AnyAlgorithm,
    members: list[Client] | None = None,
    *,
    evaluate_every: int = 1,
    clients_per_round: int | None = None,
    momentum: float = 0.0,
    progress: Callable[[Progress], None] = lambda _: None,
) -> FitResult:
    """Train for a few rounds that reach the fine-tuning phase."""
    federation = Federation(members or clients(algorithm), algorithm, Net, seed=3)
    return federation.fit(
        epochs=6,
        finetune_epochs=2,
        local_steps=2,
        batch_size=8,
        evaluate_every=evaluate_every,
        clients_per_round=clients_per_round,
        momentum=momentum,
        workers=0,
        progress=progress,
    )
