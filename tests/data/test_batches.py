"""Batches depend on (seed, client, round) and on nothing else."""

import numpy as np
import torch

from quped.data import TensorSamples
from quped.data.batches import draw, stream
from quped.data.datasets import DATASETS

DATA = TensorSamples(torch.arange(10.0), torch.arange(10))


def drawn(round_: int, *, batches_per_step: int = 1, seed: int = 0, client: str = "a") -> list[list[int]]:
    """Return the labels of each batch of a round of 3 steps."""
    steps = draw(
        DATA,
        seed=seed,
        client=client,
        round_=round_,
        first=3 * round_,
        steps=3,
        batch_size=4,
        batches_per_step=batches_per_step,
    )
    return [batch.labels.tolist() for step in steps for batch in step]


def test_every_sample_once_before_any_twice() -> None:
    """A round draws 12 of 10 samples, so that passes continue through rounds."""
    labels = np.array([drawn(r) for r in range(5)]).reshape(-1, 10)
    assert all(sorted(row) == list(range(10)) for row in labels.tolist())


def test_rounds_can_be_drawn_in_any_order() -> None:
    """Round 3 is the same whether or not rounds 0 to 2 were drawn."""
    assert drawn(3) == [drawn(r) for r in range(4)][3]
    assert drawn(3) != drawn(2)
    assert drawn(3) != drawn(3, seed=1)
    assert drawn(3) != drawn(3, client="b")


def test_draws_of_a_step_are_independent() -> None:
    """The first equals the only draw of other algorithms; the second is another permutation."""
    both = drawn(0, batches_per_step=2)
    assert both[::2] == drawn(0)
    assert both[1::2] != drawn(0)


def test_stream_starts_anywhere() -> None:
    """A part of the stream is the stream's part."""
    whole = stream(0, "a", 0, 7, 0, 50)
    assert np.array_equal(stream(0, "a", 0, 7, 20, 15), whole[20:35])


def test_digits() -> None:
    """The data set that needs no download: a fifth of each class is for testing."""
    dataset = DATASETS["digits"]()
    assert (len(dataset.train), len(dataset.test)) == (1442, 355)
    assert dataset.train.batch(torch.arange(3)).inputs[0].shape == (3, *dataset.input_shape)
    assert dataset.test.labels.bincount().min() >= 34
