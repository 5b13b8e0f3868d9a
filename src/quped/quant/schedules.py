"""lambda(t): how hard the weights are pulled to their centers, as training goes on."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from quped.errors import check, number


@dataclass(frozen=True)
class LinearSchedule:
    """lambda(t) = rate * t / decay^t, with t in epochs.

    With `decay` equal to the learning rate's decay per epoch, lambda(t) * eta_1(t) grows linearly to the end.
    """

    rate: float
    decay: float = 1.0

    # Read by the validator of experiment files, which otherwise ignores what it does not know.
    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    def __post_init__(self) -> None:
        """Check the ranges."""
        check(0 <= number(self.rate) < math.inf, "rate of lambda(t)", "at least 0 and finite", self.rate)
        check(0 < number(self.decay) <= 1, "decay of lambda(t)", "above 0 and at most 1", self.decay)

    def __call__(self, t: float) -> float:
        """Return lambda(t)."""
        shrunk = self.decay**t
        value = self.rate * t / shrunk if shrunk else math.inf
        check(value < math.inf, f"lambda({t:g})", "finite, which it is for fewer epochs or a larger decay", value)
        return value


PAPER: Mapping[int, LinearSchedule] = {1: LinearSchedule(1e-6, 0.99), 2: LinearSchedule(5e-6)}
"""The paper's schedules for MNIST and FEMNIST, by bit-width."""


def schedule_for(bits: int, schedules: Mapping[int, LinearSchedule]) -> LinearSchedule:
    """Return the schedule of the largest listed bit-width that is not above `bits`, or else of the smallest."""
    return schedules[max((b for b in schedules if b <= bits), default=min(schedules))]
