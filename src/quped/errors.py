"""One family of errors. Each message names the thing, the cause and, where there is one, the remedy."""

import difflib
import math
import signal
from collections.abc import Iterable
from numbers import Integral, Real
from typing import cast


class QupedError(Exception):
    """Anything a user can put right. The command line prints it without a traceback and exits with 2."""


class InvalidValueError(QupedError, ValueError):
    """A hyperparameter, option or field with a value that it cannot have."""


class DataError(QupedError):
    """Data that cannot be learned from."""


class NetworkError(QupedError):
    """A network that does not fit its data or its algorithm."""


class RunError(QupedError):
    """A run that cannot start, or cannot go on."""


class BadUpdateError(RunError):
    """A client's round that gave numbers or tensors which nobody can use."""


class ModelFileError(QupedError):
    """A model file that cannot be written or read."""


class InterruptedRunError(KeyboardInterrupt):
    """A run that was asked by a signal to stop, and left a checkpoint. Nobody's mistake: so not of the family."""

    def __init__(self, round_: int, signal_number: int) -> None:
        """Tell after which round it stopped, and by which signal."""
        name = signal.Signals(signal_number).name
        super().__init__(f"Stopped by {name} after round {round_ + 1}, with a checkpoint.")
        self.signal_number = signal_number


def check(ok: bool, what: str, rule: str, got: object) -> None:
    """Raise `The WHAT must be RULE, got GOT.` unless `ok`."""
    if not ok:
        raise InvalidValueError(f"The {what} must be {rule}, got {shown(got)}.")


def shown(value: object) -> str:
    """Return a value as Python writes it; of one that is long, the beginning."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # Python does not write numbers with thousands of digits
        return "a value too long to be shown"
    return text if len(text) <= 200 else f"{text[:200]} ..."


def number(value: object) -> float:
    """Return a number, Python's or NumPy's, as a float, and anything else as NaN: that is in no range."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.inf if cast(int, value) > 0 else -math.inf


def check_number(what: str, value: object, low: float, high: float = math.inf) -> None:
    """Check that `value` is a number in [low, high]."""
    rule = f"at least {low:g}" if high == math.inf else f"between {low:g} and {high:g}"
    check(low <= number(value) <= high, what, rule, value)


def is_whole(value: object) -> bool:
    """Say whether a value is a whole number, Python's or NumPy's; True and False are not."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def check_whole(what: str, value: object, low: int, high: float = math.inf) -> None:
    """Check that `value` is a whole number in [low, high]."""
    rule = f"of at least {low}" if high == math.inf else f"from {low} to {high:g}"
    check(is_whole(value) and low <= number(value) <= high, what, f"a whole number {rule}", value)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a sentence that suggests the known word nearest to `word`, and lists all of them."""
    names = sorted(known)
    if not names:
        return "There are none."
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.4)
    hint = f"Did you mean '{close[0]}'? " if close else ""
    return f"{hint}Known: {', '.join(names)}."
