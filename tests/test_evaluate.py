"""Accuracy, against NumPy."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from quped import Client, FedAvg, Federation
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
    own = np.array([0, 2])
    both = evaluate.score(network, ModelState({}, {}), samples, torch.tensor(own))
    assert both.accuracy == found
    assert both.own_classes == pytest.approx((own[scores[:, own].argmax(1)] == labels).mean())


def test_own_classes_by_hand() -> None:
    """Class 1 is nobody's: its samples are wrong, and it takes none from the others."""
    scores = torch.tensor([[0.2, 0.9, 0.1], [0.1, 0.9, 0.3], [0.0, 0.9, 0.1], [0.5, 0.1, 0.2]])
    samples = TensorSamples(scores, torch.tensor([0, 2, 1, 0]))
    found = evaluate.score(network, ModelState({}, {}), samples, torch.tensor([0, 2]))
    assert found == evaluate.Score(0.5, 0.75)
    assert torch.is_grad_enabled()


@pytest.mark.parametrize(("count", "worst"), [(1, 0.0), (9, 0.0), (10, 0.0), (20, 0.5 / 19), (39, 1 / 38)])
def test_the_worst_tenth_of_clients(count: int, worst: float) -> None:
    """At least one of them; never more than a tenth where there are ten."""
    accuracies = {f"c{i}": i / max(1, count - 1) for i in reversed(range(count))}
    found = evaluate.over_clients(accuracies)
    assert found["worst_tenth"] == pytest.approx(worst)
    assert found["mean"] == pytest.approx(np.mean(list(accuracies.values())))
    assert found["std"] == pytest.approx(np.std(list(accuracies.values())))
    assert found["per_client"] == accuracies


def test_who_is_hurt_by_hand() -> None:
    """Errors are 5 points of 100 samples at 0.5, 2.5 of 400, and 0 where all or nothing is right."""
    mine = {"a": 0.5, "b": 0.5, "c": 0.5, "zero": 0.0, "alone": 0.1, "untested": 0.1}
    theirs = {"a": 0.59, "b": 0.61, "c": 0.56, "zero": 0.1, "untested": 0.9}
    samples = {"a": 100, "b": 100, "c": 400, "zero": 10, "alone": 10, "untested": 0}
    assert evaluate.hurt(mine, theirs, samples) == {"a": False, "b": True, "c": True, "zero": True}
    assert not any(evaluate.hurt(theirs, mine, samples).values())


def test_without_clients_there_is_no_accuracy() -> None:
    assert evaluate.over_clients({}) == {"mean": None, "std": None, "worst_tenth": None, "per_client": {}}


@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_scores_clients_among_their_own_classes(workers: int) -> None:
    """A federation of two clients that lack a class each: deployed models and the global one, in every engine."""
    inputs, labels = torch.randn(60, 4, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 3
    members = []
    for i in range(2):
        have = labels != i
        members.append(Client(f"c{i}", (inputs[have], labels[have]), (inputs[have], labels[have]), nn.Linear(4, 3)))
    result = Federation(members, FedAvg(), seed=1).fit(epochs=2, batch_size=10, workers=workers, progress=False)
    module = result.global_module()
    for i in range(2):
        have = labels != i
        logits = module(inputs[have]).detach()
        logits[:, i] = -torch.inf
        expected = float((logits.argmax(1) == labels[have]).double().mean())
        assert result.accuracy_own_classes[f"c{i}"] == pytest.approx(expected)
        assert result.accuracy_own_classes[f"c{i}"] >= result.accuracy[f"c{i}"]
    mean = np.mean(list(result.accuracy_own_classes.values()))
    assert result.global_accuracy_own_classes == pytest.approx(mean)
    written = result.to_dict()
    assert written["accuracy_own_classes"]["mean"] == pytest.approx(mean)
    assert written["accuracy_own_classes"]["per_client"] == result.accuracy_own_classes
    assert written["global_accuracy_own_classes"] == result.global_accuracy_own_classes
    assert written["accuracy"]["worst_tenth"] == min(result.accuracy.values())
