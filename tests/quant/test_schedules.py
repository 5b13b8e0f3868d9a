"""lambda(t) by hand, its errors, and which schedule a bit-width gets."""

import math

import pytest

from quped.errors import InvalidValueError
from quped.quant import PAPER, LinearSchedule, schedule_for


def at(schedule: LinearSchedule, t: float) -> float:
    """Return lambda(t)."""
    return schedule(t)


def test_linear_without_decay() -> None:
    """lambda(t) = rate * t: nothing at first, then in equal steps."""
    schedule = LinearSchedule(0.5)
    assert [at(schedule, t) for t in (0.0, 1.0, 2.0, 7.0)] == [0.0, 0.5, 1.0, 3.5]


def test_linear_with_decay() -> None:
    """lambda(t) = rate * t / decay^t: with rate 3 and decay 1/2, t = 1, 2, 3 give 6, 24, 72."""
    schedule = LinearSchedule(3.0, 0.5)
    assert [at(schedule, t) for t in (0.0, 1.0, 2.0, 3.0)] == [0.0, 6.0, 24.0, 72.0]


def test_decay_makes_up_for_that_of_the_learning_rate() -> None:
    """With eta_1(t) = eta * decay^t, the threshold lambda(t) eta_1(t) grows linearly to the end."""
    schedule = LinearSchedule(1e-6, 0.99)
    for t in (1.0, 50.0, 249.0):
        assert at(schedule, t) * 0.1 * 0.99**t == pytest.approx(1e-7 * t, rel=1e-12)


def test_the_papers_schedules() -> None:
    """1 bit: 1e-6 t / 0.99^t; 2 bits: 5e-6 t."""
    assert at(PAPER[1], 100.0) == pytest.approx(1e-4 / 0.99**100, rel=1e-12)
    assert at(PAPER[2], 100.0) == pytest.approx(5e-4, rel=1e-12)


@pytest.mark.parametrize("rate", [-1.0, math.nan, math.inf])
def test_rate_must_be_finite_and_not_negative(rate: float) -> None:
    """A negative rate would push weights away from their centers."""
    message = rf"^The rate of lambda\(t\) must be at least 0 and finite, got {rate!r}\.$"
    with pytest.raises(InvalidValueError, match=message):
        LinearSchedule(rate)


@pytest.mark.parametrize("decay", [0.0, -0.5, 1.01, math.nan])
def test_decay_must_be_a_factor(decay: float) -> None:
    """Decay is above 0 and at most 1."""
    message = rf"^The decay of lambda\(t\) must be above 0 and at most 1, got {decay!r}\.$"
    with pytest.raises(InvalidValueError, match=message):
        LinearSchedule(1.0, decay)


@pytest.mark.parametrize(("decay", "t"), [(0.1, 330.0), (0.9, 7000.0), (0.1, 308.0)])
def test_lambda_stays_finite(decay: float, t: float) -> None:
    """One that does not is told, as it would stop training."""
    with pytest.raises(InvalidValueError, match=rf"lambda\({t:g}\) must be finite, .* got inf"):
        LinearSchedule(1e6, decay)(t)


def test_the_ends_of_the_ranges_are_allowed() -> None:
    """Rate 0 switches the pull off; decay 1 is no decay."""
    assert at(LinearSchedule(0.0, 1.0), 5.0) == 0.0


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        ((1, 2), [1, 2, 2, 2, 2, 2, 2, 2]),
        ((2, 4), [2, 2, 2, 4, 4, 4, 4, 4]),
        ((8, 3), [3, 3, 3, 3, 3, 3, 3, 8]),
        ((5,), [5] * 8),
    ],
)
def test_a_bit_width_takes_the_next_lower_schedule(listed: tuple[int, ...], expected: list[int]) -> None:
    """Bits 1 .. 8 get the largest listed width that is not above them; below all of them, the smallest."""
    schedules = {bits: LinearSchedule(float(bits)) for bits in listed}
    assert [schedule_for(bits, schedules).rate for bits in range(1, 9)] == expected
