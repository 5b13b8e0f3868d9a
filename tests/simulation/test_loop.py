"""The plan of a run: rounds, epochs, phases, learning rates, who takes part."""

from dataclasses import replace

import numpy as np
import pytest

from quped.simulation.loop import sample_clients
from quped.simulation.schedule import Schedule
from quped.typing import Phase


def plan(
    *, epochs: int = 5, finetune: int = 2, steps: int = 4, local: int = 2, sampled: int = 3, every: int = 1
) -> Schedule:
    """Return a plan with learning rate 0.1, decaying by 0.9 per epoch."""
    return Schedule(epochs, finetune, steps, local, 0.1, 0.9, sampled, every)


def test_rounds_cover_the_epochs() -> None:
    """epochs * steps / local_steps, rounded up."""
    assert plan().rounds == 10
    assert plan(steps=5, local=10).rounds == 3
    assert plan(epochs=2, steps=1, local=10).rounds == 1
    assert [plan(steps=5, local=10).steps(r) for r in range(3)] == [10, 10, 5]
    assert plan(epochs=2, steps=1, local=10**20).steps(0) == 2


def test_the_clock_by_hand() -> None:
    """Two rounds an epoch; the last two of five epochs fine-tune; t counts completed epochs from 0."""
    clocks = [plan().clock(r) for r in range(10)]
    assert [c.epoch for c in clocks] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert [c.phase for c in clocks] == [Phase.TRAIN] * 6 + [Phase.FINETUNE] * 4
    assert [float(c.t) for c in clocks[::2]] == [0, 1, 2, 3, 4]
    np.testing.assert_allclose([float(c.lr) for c in clocks[::2]], 0.1 * 0.9 ** np.arange(5), rtol=1e-6)


def test_a_shortened_plan_passes_through_the_whole_schedule() -> None:
    """Five epochs of it in each of two, from 0 to 9; a full one is in epoch t when t of them are done."""
    short = replace(plan(epochs=2, finetune=1, steps=4, local=1), stretch=5.0)
    assert [float(short.clock(r).t) for r in range(8)] == [0, 1, 2, 3, 5, 6, 7, 8]
    assert short.clock(7).lr == pytest.approx(0.1 * 0.9**8)
    assert [short.clock(r).epoch for r in (3, 4)] == [0, 1]


def test_evaluations_end_every_nth_epoch_and_the_run() -> None:
    """The last round of an epoch, and always the last round."""
    assert [r for r in range(10) if plan().evaluates(r)] == [1, 3, 5, 7, 9]
    assert [r for r in range(10) if plan(every=2).evaluates(r)] == [3, 7, 9]
    assert [r for r in range(10) if plan(every=100).evaluates(r)] == [9]


def test_sampling_is_without_replacement_fair_and_reproducible() -> None:
    """K distinct clients in ascending order; every client about equally often; the same for the same seed."""
    p = plan(sampled=3)
    rounds = [sample_clients(p, 10, 0, r) for r in range(1000)]
    assert all(len(set(r)) == 3 and r == sorted(r) for r in rounds)
    counts = np.bincount(np.concatenate(rounds), minlength=10)
    assert counts.sum() == 3000
    # Binomial(1000, 0.3) has deviation 14.5: five of them.
    assert abs(counts - 300).max() < 73
    assert rounds == [sample_clients(p, 10, 0, r) for r in range(1000)]
    assert rounds != [sample_clients(p, 10, 1, r) for r in range(1000)]


def test_everyone_takes_part_when_all_are_asked() -> None:
    """K = n needs no drawing."""
    assert sample_clients(plan(sampled=4), 4, 0, 0) == [0, 1, 2, 3]
