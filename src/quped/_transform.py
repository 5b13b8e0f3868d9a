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


def arithmetic(combine: Callable[[Any, Any], Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return an operator of traced numbers, and the same for a traced number on the right."""

    def combined(left: Any, right: Any, decisions: Decisions) -> Any:
        tensor = combine(tensor_of(left), tensor_of(right))
        if isinstance(left, Tensor) or isinstance(right, Tensor):
            return tensor
        first, second = function_of(left), function_of(right)
        return TracedNumber(lambda clock: combine(first(clock), second(clock)), tensor, decisions)

    return (
        lambda self, other: combined(self, other, self.decisions),
        lambda self, other: combined(other, self, self.decisions),
    )


def comparison(compare: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """Return a comparison of traced numbers: with a number a decision, with a tensor a part of the graph."""

    def compared(self: "TracedNumber", other: Any) -> Any:
        if isinstance(other, Tensor):
            return compare(self.tensor, other)
        first, second = self.of, function_of(other)
        return self.decisions.decide(lambda clock: compare(first(clock), second(clock)))

    return compared


class TracedNumber:
    """A number of the clock while a step is traced: calculations with it become part of the graph, comparisons are
    remembered as decisions. Anything else that code may do with a number raises a TypeError."""

    def __init__(self, of: Callable[[Clock], float], tensor: Tensor, decisions: Decisions) -> None:
        self.of, self.tensor, self.decisions = of, tensor, decisions

    __add__, __radd__ = arithmetic(operator.add)
    __sub__, __rsub__ = arithmetic(operator.sub)
    __mul__, __rmul__ = arithmetic(operator.mul)
    __truediv__, __rtruediv__ = arithmetic(operator.truediv)
    __pow__, __rpow__ = arithmetic(operator.pow)
    __lt__, __le__ = comparison(operator.lt), comparison(operator.le)
    __gt__, __ge__ = comparison(operator.gt), comparison(operator.ge)
    __eq__, __ne__ = comparison(operator.eq), comparison(operator.ne)

    def __neg__(self) -> Any:
        return self * -1

    def __bool__(self) -> bool:
        return bool(self != 0)

    def __hash__(self) -> int:
        raise TypeError("a number of the clock has no hash while a step is traced")

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
