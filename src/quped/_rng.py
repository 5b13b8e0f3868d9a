"""Randomness as an argument: a generator for every purpose, made from a key. Nothing here has a state."""

import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import RLock
from typing import cast

import numpy as np
import torch

LOCK = RLock()
"""Held while torch is seeded: threads that use its one generator take turns."""


def generator(seed: int, *key: int | str) -> np.random.Generator:
    """Return the generator that belongs to a key, such as (seed, "batches", client, round)."""
    return np.random.default_rng([seed, *(zlib.crc32(k.encode()) if isinstance(k, str) else k for k in key)])


@contextmanager
def torch_seeded(seed: int, *key: int | str) -> Iterator[None]:
    """Seed torch (initial weights, dropout) from a key within the block, and leave its state outside unchanged."""
    # Seeding torch seeds GPUs, too. Asking for their state would start them, which a forked process must not; and for
    # those that have not started, torch notes down the call stack each time, which takes longer than a small step.
    started = cast(Callable[[], bool], torch.cuda.is_initialized)()
    gpus = range(torch.cuda.device_count()) if started else ()
    with LOCK, torch.random.fork_rng(gpus):
        sow = torch.manual_seed if started else torch.default_generator.manual_seed
        sow(int(generator(seed, *key).integers(2**63)))
        yield
