"""Whether PyTorch transforms what runs here, instead of just running it.

Clients are computed at once, stacked, under torch.func.vmap; a step is traced before it is compiled. Either way it must
consist of operations that PyTorch knows: no kernels of our own, no decisions by the values of tensors, and gradients
by torch.func.
"""

import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal, cast

import torch
from torch import Tensor
from torch.nn import functional

from quped.typing import Clock

_active = ContextVar[Literal["", "vmap", "tracing"]]("transform", default="")


def transformed() -> bool:
    """Say whether PyTorch transforms what runs here."""
    return bool(_active.get())


def under_vmap() -> bool:
    """Say whether clients are being computed at once."""
    return _active.get() == "vmap"


@contextmanager
def entering(transform: Literal["vmap", "tracing"]) -> Iterator[None]:
    """Transform what runs within the block."""
    token = _active.set(transform)
    try:
        yield
    finally:
        _active.reset(token)


class Decisions:
    """What a trace followed from the numbers of its clock, where code compared them."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._made: list[tuple[Callable[[Clock], bool], bool]] = []

    def decide(self, test: Callable[[Clock], bool]) -> bool:
        """Return what a test says, and remember it."""
        answer = test(self.clock)
        self._made.append((test, answer))
        return answer

    def hold(self, clock: Clock) -> bool:
        """Say whether the trace would be the same with another clock."""
        return clock.phase == self.clock.phase and all(test(clock) is answer for test, answer in self._made)


Compare = Callable[[Any, Any], bool]
Combine = Callable[[Any, Any], Any]


class TracedNumber:
    """A number of the clock while a step is traced: calculations with it become part of the graph, comparisons are
    remembered as decisions. Anything else that code may do with a number raises a TypeError."""

    def __init__(self, of: Callable[[Clock], float], tensor: Tensor, decisions: Decisions) -> None:
        self.of, self.tensor, self.decisions = of, tensor, decisions

    def _combined(self, combine: Combine, left: Any, right: Any) -> Any:
        """Return what two operands make, one of which is this number."""
        if isinstance(left, Tensor) or isinstance(right, Tensor):
            return combine(tensor_of(left), tensor_of(right))
        first, second = function_of(left), function_of(right)
        return TracedNumber(
            lambda clock: combine(first(clock), second(clock)),
            combine(tensor_of(left), tensor_of(right)),
            self.decisions,
        )

    def _compared(self, compare: Compare, other: Any) -> bool:
        """Return how this number compares to another one; to a tensor, as part of the graph."""
        if isinstance(other, Tensor):
            return compare(self.tensor, other)
        first, second = self.of, function_of(other)
        return self.decisions.decide(lambda clock: compare(first(clock), second(clock)))

    def __add__(self, other: Any) -> Any:
        return self._combined(operator.add, self, other)

    def __radd__(self, other: Any) -> Any:
        return self._combined(operator.add, other, self)

    def __sub__(self, other: Any) -> Any:
        return self._combined(operator.sub, self, other)

    def __rsub__(self, other: Any) -> Any:
        return self._combined(operator.sub, other, self)

    def __mul__(self, other: Any) -> Any:
        return self._combined(operator.mul, self, other)

    def __rmul__(self, other: Any) -> Any:
        return self._combined(operator.mul, other, self)

    def __truediv__(self, other: Any) -> Any:
        return self._combined(operator.truediv, self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return self._combined(operator.truediv, other, self)

    def __pow__(self, other: Any) -> Any:
        return self._combined(operator.pow, self, other)

    def __rpow__(self, other: Any) -> Any:
        return self._combined(operator.pow, other, self)

    def __neg__(self) -> Any:
        return self._combined(operator.mul, -1, self)

    def __lt__(self, other: Any) -> bool:
        return self._compared(operator.lt, other)

    def __le__(self, other: Any) -> bool:
        return self._compared(operator.le, other)

    def __gt__(self, other: Any) -> bool:
        return self._compared(operator.gt, other)

    def __ge__(self, other: Any) -> bool:
        return self._compared(operator.ge, other)

    def __eq__(self, other: object) -> bool:
        return self._compared(operator.eq, other)

    def __hash__(self) -> int:
        raise TypeError("a number of the clock has no hash while a step is traced")

    def __bool__(self) -> bool:
        return self._compared(operator.ne, 0)

    def __format__(self, spec: str) -> str:
        return format(self.of(self.decisions.clock), spec)


def tensor_of(number: Any) -> Any:
    """Return the tensor of a traced number, and any other operand as it is."""
    return number.tensor if isinstance(number, TracedNumber) else number


def function_of(number: Any) -> Callable[[Clock], Any]:
    """Return a number as a function of the clock."""
    return number.of if isinstance(number, TracedNumber) else lambda clock: number


def traced_clock(decisions: Decisions, numbers: Tensor) -> Clock:
    """Return a clock whose numbers are the entries of a tensor; what is decided by them is remembered."""
    fields = {
        name: TracedNumber(operator.attrgetter(name), numbers[i], decisions) for i, name in enumerate(CLOCK_NUMBERS)
    }
    return decisions.clock._replace(**cast(Any, fields))


CLOCK_NUMBERS = ("round", "epoch", "t", "lr", "initial_lr", "progress")
"""The fields of a clock that are numbers."""


def plus(a: Tensor, b: Tensor, scale: float) -> Tensor:
    """Return a + scale * b."""
    if isinstance(scale, TracedNumber):
        return (a + b * scale.tensor).to(a.dtype)  # with 0-dim tensors, the number's type would win
    return torch.add(a, b, alpha=scale)


def shrunk(x: Tensor, bound: float) -> Tensor:
    """Return x moved toward 0 by a bound, at most to 0."""
    if isinstance(bound, TracedNumber):
        return (x - x.clamp(-bound.tensor, bound.tensor)).to(x.dtype)
    return functional.softshrink(x, bound)
