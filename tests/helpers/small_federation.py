"""A federation that runs in a blink, and comparisons of its results."""

from collections.abc import Callable
from functools import partial

import torch

from quped import FitResult, QuPeD, Round, _tree
from quped.algorithms import ALGORITHMS, AnyAlgorithm
from quped.testing import CLASSES, FEATURES, wide_net
from quped.testing import SmallNet as Net
from quped.testing import small_clients as clients
from quped.testing import small_fit as fit
from quped.testing import small_samples as samples

__all__ = [
    "CLASSES",
    "FEATURES",
    "Net",
    "Rounds",
    "algorithms",
    "assert_same",
    "clients",
    "fit",
    "samples",
    "values",
    "wide_net",
]


class Rounds:
    """Keeps every round, and calls a function with it."""

    def __init__(self, then: Callable[[Round], object] = lambda _: None) -> None:
        self.rounds: list[Round] = []
        self._then = then

    def after_round(self, round_: Round) -> None:
        self.rounds.append(round_)
        self._then(round_)


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
    """Return every algorithm of the package, and QuPeD with a warm-up."""
    return {**ALGORITHMS, "quped-warmup": partial(QuPeD, warmup_epochs=2.0)}
