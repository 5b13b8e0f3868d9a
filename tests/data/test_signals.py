"""Batches of signals."""

import pickle
from pathlib import Path

import pytest
import torch

from quped.data.datasets.signals import SignalSamples
from quped.data.download import store


def test_batches_are_normalised_and_travel_as_a_reference(tmp_path: Path) -> None:
    signals = torch.arange(24, dtype=torch.float16).view(4, 2, 1, 3)
    tensors = {"train_signals": signals, "train_labels": torch.tensor([0, 1, 2, 1])}
    file = tmp_path / "some.safetensors"
    store.write(file, tensors, "a test", tmp_path)
    samples = SignalSamples(file, "train", (1.0, 2.0), (2.0, 4.0))
    content = pickle.dumps(samples)
    assert len(content) < 400
    for one in (samples, pickle.loads(content)):
        (inputs,), labels = one.batch(torch.tensor([1, 3]))
        assert inputs.dtype == torch.get_default_dtype()
        assert inputs[0].tolist() == [[[2.5, 3.0, 3.5]], [[1.75, 2.0, 2.25]]]  # 6, 7, 8 and 9, 10, 11
        assert labels.tolist() == [1, 1]
        assert len(one) == 4
    assert torch.equal(signals, store.read(file).tensors["train_signals"])  # a batch is a copy
    assert float(samples.batch(torch.tensor([0])).inputs[0][0, 0, 0, 0]) == pytest.approx(-0.5)
