"""What a person sees while a federation trains: a bar in a terminal, lines elsewhere."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from quped.errors import check
from quped.simulation.loop import Observer, Round

if TYPE_CHECKING:
    from rich.console import Console

NARROW = 80
"""Columns of a terminal, below which a bar shows less."""

LINES = 10
"""How many lines a run prints where there is no terminal."""


class ProgressLines:
    """Prints a line after every tenth of a run."""

    def __init__(self, title: str, write: Callable[[str], None]) -> None:
        self._title, self._write, self._accuracy = title, write, ""

    def after_round(self, round_: Round) -> None:
        """Print a line if a tenth of the run has passed."""
        self._accuracy = status(round_, self._accuracy)[1]
        number = round_.clock.round
        if number * LINES // round_.rounds != (number + 1) * LINES // round_.rounds:
            loss = status(round_, self._accuracy)[0]
            place = f"round {number + 1}/{round_.rounds}"
            self._write(f"{self._title}: {place}, {loss}{self._accuracy}, {round_.seconds:.0f} s")


def status(round_: Round, accuracy: str) -> tuple[str, str]:
    """Return the loss of a round, and its accuracy, or that of the last evaluation, in words."""
    if round_.evaluation is not None and round_.evaluation.accuracy:
        accuracy = f", accuracy {round_.evaluation.mean:.1%}"
    return f"loss {round_.loss:.3f}", accuracy


@contextmanager
def progress_bars(console: "Console") -> Iterator[Callable[[str], Observer]]:
    """Yield a function that returns an observer for a run with a title: a bar in a terminal, lines elsewhere."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    if not console.is_terminal:
        yield lambda title: ProgressLines(title, lambda line: console.print(line, soft_wrap=True, markup=False))
        return
    wide = console.width >= NARROW
    columns = [
        TextColumn("{task.description:<10}"),
        BarColumn(bar_width=24 if wide else 8),
        TextColumn("{task.fields[rounds]}"),
        TextColumn("{task.fields[status]}"),
        *([TimeElapsedColumn(), TextColumn("left")] if wide else []),
        TimeRemainingColumn(compact=True),
    ]
    with Progress(*columns, console=console) as display:

        class Bar:
            """One bar."""

            def __init__(self, title: str) -> None:
                self._bar = display.add_task(title, total=None, status="", rounds="starting")
                self._accuracy = ""

            def after_round(self, round_: Round) -> None:
                """Move the bar."""
                loss, self._accuracy = status(round_, self._accuracy)
                done = round_.clock.round + 1
                shown = f"{loss}{self._accuracy}" if wide else self._accuracy.removeprefix(", accuracy ")
                rounds = f"round {done:>3}/{round_.rounds}" if wide else f"{done}/{round_.rounds}"
                display.update(self._bar, total=round_.rounds, completed=done, status=shown, rounds=rounds)

        yield Bar


@contextmanager
def progress_observer(wanted: bool, title: str) -> Iterator[Sequence[Observer]]:
    """Yield the observer that shows the progress of one run, if it is wanted."""
    check(isinstance(wanted, bool), "progress", "True or False", wanted)
    if not wanted:
        yield ()
        return
    try:
        from rich.console import Console
    except ImportError:  # it comes with the extra "cli"
        yield (ProgressLines(title, lambda line: print(line, file=sys.stderr)),)
        return
    with progress_bars(Console(stderr=True, highlight=False)) as follow:
        yield (follow(title),)
