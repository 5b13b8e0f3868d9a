"""Batches as a function of (seed, client, round), independent of the process and of the order of calls."""

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from quped._rng import generator
from quped.data.samples import Samples
from quped.typing import Batch


def stream(seed: int, client: str, source: int, samples: int, first: int, count: int) -> NDArray[np.int64]:
    """Return `count` positions, from `first` on, of an endless stream of passes through the samples.

    Every pass is a new permutation, so that each sample is seen once before any is seen twice. A client has one
    independent stream for each `source`.
    """
    parts = []
    for epoch in range(first // samples, (first + count - 1) // samples + 1):
        order = generator(seed, "batches", client, source, epoch).permutation(samples)
        parts.append(order[max(first - epoch * samples, 0) : first + count - epoch * samples])
    return np.concatenate(parts)


def draw(
    data: Samples,
    *,
    seed: int,
    client: str,
    round_: int,
    first: int,
    steps: int,
    batch_size: int,
    batches_per_step: int,
) -> Iterator[tuple[Batch, ...]]:
    """Yield the batches of one client's round, whose first step has the number `first` in the run.

    For each step, a tuple of `batches_per_step` independent batches.
    """
    size = min(batch_size, len(data))
    sources = [
        stream(seed, client, source, len(data), first * size, steps * size).reshape(steps, size)
        for source in range(batches_per_step)
    ]
    rng = generator(seed, "augment", client, round_)
    for step in range(steps):
        yield tuple(data.batch(torch.from_numpy(source[step]), rng) for source in sources)
