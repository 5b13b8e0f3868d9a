"""A federation that runs in a blink, and comparisons of its results."""

from collections.abc import Callable
from functools import partial

import torch

from quped import FedAvg, FedAvgFT, FedRep, FitResult, PerFedAvg, PFedMe, QuPeD, QuPeL, Round, _tree
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
    """Return every algorithm of the package, and some with options that change what they keep and send."""
    return {
        **ALGORITHMS,
        "fedavg-momentum": partial(FedAvg, server_momentum=0.9),
        "quped-warmup": partial(QuPeD, warmup_epochs=2.0),
        "fedavgft-alone": partial(FedAvgFT, warmup_epochs=2.0),
        "fedavgft-head": partial(FedAvgFT, warmup_epochs=1.0, head_first_epochs=2.0, frozen_head=True),
        "fedper": partial(FedRep, jointly=True),
        "perfedavg-global": partial(PerFedAvg, adapts="global"),
        "pfedme-reset": partial(PFedMe, reset_theta=True),
        "qupel-both": partial(QuPeL, penalty_on="both"),
    }
