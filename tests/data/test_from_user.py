"""Data from users: several forms become the same samples, and other forms get an error with a remedy."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from quped.data import Data, TensorSamples, as_samples
from quped.errors import DataError

INPUTS, LENGTHS, LABELS = torch.arange(12.0).reshape(4, 3), torch.tensor([3, 1, 2, 3]), torch.tensor([0, 2, 1, 0])
ROWS = [0, 2, 3]


class Items(torch.utils.data.Dataset[Any]):
    """A PyTorch data set of the given items."""

    def __init__(self, *items: object) -> None:
        """Keep the items."""
        self.items = items

    def __len__(self) -> int:
        """Return their number."""
        return len(self.items)

    def __getitem__(self, index: int) -> object:
        """Return one of them."""
        return self.items[index]


PAIRS = list(zip(INPUTS, LABELS, strict=True))

ONE_INPUT: dict[str, Data] = {
    "tensors": (INPUTS, LABELS),
    "arrays": (INPUTS.double().numpy()[::-1].copy()[::-1], LABELS.numpy().astype(np.uint8)),
    "list of pairs": PAIRS,
    "list of pairs of arrays": [(x.double().numpy(), int(y)) for x, y in PAIRS],
    "TensorDataset": TensorDataset(INPUTS, LABELS),
    "Dataset": Items(*PAIRS),
    "samples": TensorSamples(INPUTS, LABELS),
}
TRIPLES = list(zip(INPUTS, LENGTHS, LABELS, strict=True))
NESTED = [((x, n), y) for x, n, y in TRIPLES]
TWO_INPUTS: dict[str, Data] = {
    "tensors": ((INPUTS, LENGTHS), LABELS),
    "list": TRIPLES,
    "nested list": NESTED,
    "TensorDataset": TensorDataset(INPUTS, LENGTHS, LABELS),
    "Dataset": Items(*TRIPLES),
    "nested Dataset": Items(*NESTED),
    "samples": TensorSamples((INPUTS, LENGTHS), LABELS),
}


@pytest.mark.parametrize(
    ("data", "inputs"),
    [
        *(pytest.param(data, (INPUTS,), id=form) for form, data in ONE_INPUT.items()),
        *(pytest.param(data, (INPUTS, LENGTHS), id=f"two inputs, {form}") for form, data in TWO_INPUTS.items()),
    ],
)
def test_forms_of_data(data: Data, inputs: tuple[torch.Tensor, ...]) -> None:
    """All give the same batches, in the networks' type of numbers."""
    samples = as_samples(data, "training data")
    assert samples.labels.tolist() == LABELS.tolist()
    batch = samples.batch(torch.tensor(ROWS))
    assert batch.labels.dtype == torch.int64
    assert batch.labels.tolist() == LABELS[ROWS].tolist()
    assert len(batch.inputs) == len(inputs)
    for part, expected in zip(batch.inputs, inputs, strict=True):
        assert part.dtype == expected.dtype
        assert torch.equal(part, expected[ROWS])


class Stream(IterableDataset[Any]):
    """A data set without a length."""

    def __iter__(self) -> Iterator[object]:
        """Return its items in turn."""
        return iter(PAIRS)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (DataLoader(TensorDataset(INPUTS, LABELS)), r"DataLoader.* pass loader\.dataset"),
        (Stream(), r"IterableDataset.* pass list\(dataset\)"),
        ([(INPUTS[0], 0), (INPUTS[0, :2], 1)], r"cannot be stacked.*pad_sequence"),
        ((INPUTS, LENGTHS, LABELS), r"got 3 things.* \(\(input, \.\.\.\), labels\)"),
        ([[[1.0], 0], [[2.0], 1], [[3.0], 0]], r"got 3 things.*torch\.stack\(inputs\)"),
        (([INPUTS[0], INPUTS[1]], LABELS[:2]), r"stack a list of tensors with torch\.stack"),
        (((INPUTS, LENGTHS[:2]), LABELS), "2 inputs but 4 labels"),
        (((INPUTS, INPUTS / 0), LABELS), "hold NaN or infinity: clean"),
        (Items((INPUTS[0], (1, 2)), (INPUTS[1], (1, 2))), "class numbers.* one integer for each sample"),
        ([(INPUTS[0], "cat"), (INPUTS[1], "dog")], "labels .* numbers.* number the classes"),
        (Items({"x": INPUTS[0], "y": 0}), r"items \(input, \.\.\., label\).* item 0 is a dict.* Wrap"),
        (Items((torch.tensor([math.nan]), 0)), "Sample 0 .* holds NaN"),
        ((INPUTS, LABELS.float()), "got float32 .* convert them to integers"),
        ((INPUTS, torch.eye(4)), r"one-hot.* y\.argmax\(1\)"),
        ((INPUTS, LABELS - 1), "0 or more, got -1"),
        ([], r"pair \(inputs, labels\), got 0 things"),
        ("mnist", r"pair \(inputs, labels\), a PyTorch data set"),
    ],
)
def test_other_forms_are_refused(data: Data, message: str) -> None:
    """The error names the client and the remedy."""
    with pytest.raises(DataError, match=message) as caught:
        as_samples(data, "training data of client 'phone'")
    assert "client 'phone'" in str(caught.value)
