"""Accuracy, against NumPy."""

import numpy as np
import pytest
import torch
from torch import Tensor

from quped import _evaluate as evaluate
from quped.data import TensorSamples
from quped.typing import ModelState, Params


def network(params: Params, buffers: Params, inputs: tuple[Tensor, ...], *, train: bool) -> tuple[Tensor, Params]:
    """The inputs themselves are the class scores."""
    assert not train
    assert not params
    return inputs[0], buffers


@pytest.mark.parametrize("count", [1, 5, 12])
def test_every_sample_counts_once(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the last part, too, which may be a smaller one."""
    monkeypatch.setattr(evaluate, "CHUNK", 5)
    rng = np.random.default_rng(count)
    scores, labels = rng.normal(size=(count, 3)), rng.integers(3, size=count)
    samples = TensorSamples(torch.tensor(scores), torch.tensor(labels))
    found = evaluate.accuracy(network, ModelState({}, {}), samples)
    assert found == pytest.approx((scores.argmax(1) == labels).mean())
