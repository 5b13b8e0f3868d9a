"""A run as a person watches it in a terminal, made of its record."""

import shlex
from collections.abc import Sequence

import numpy as np
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from quped.records import in_use
from quped.report.page import labels
from quped.report.reading import Run, Values

BLOCKS = "▁▂▃▄▅▆▇█"
DOTS = ((0x40, 0x04, 0x02, 0x01), (0x80, 0x20, 0x10, 0x08))
"""The bits of a braille character: left and right column, from the bottom to the top."""
MOST_BEHIND = 5
"""Clients that are listed because they are behind the others."""
CURVE_ROWS = 7
WIDE = 80
"""Columns of a terminal in which there is room for all."""


def is_over(family: Sequence[Run]) -> bool:
    """Say whether nothing more will come: all methods are finished, or one has failed."""
    return all(run.result is not None for run in family) or any(run.failure for run in family)


def view(family: Sequence[Run], width: int) -> RenderableType:
    """Return the picture of a run: its methods, the curve of the one that runs, and clients that need a look."""
    current = next((run for run in family if run.result is None and run.curve), None)
    shown = current or next((run for run in family if run.curve), None)
    parts: list[RenderableType] = [headline(family), methods_table(family, width)]
    if shown is not None:
        name = labels(list(family), [list(family)])[list(family).index(shown)]
        parts += [curve_picture(shown, name, width), beside(behind_table(shown), slowest_table(shown), width)]
    return Group(*parts)


def headline(family: Sequence[Run]) -> Text:
    """Say what is watched, and how it stands."""
    folder = family[0].folder
    failure = next((run.failure for run in family if run.failure), None)
    if failure:
        return Text(f"{folder} ended with an error: {failure}", style="bold red")
    if is_over(family):
        return Text(f"{folder} is finished.", style="bold")
    if in_use(folder):
        return Text(f"{folder} is under way.", style="bold")
    return Text(f"{folder} is not running now.\nContinue it with: {resume_command(family[0])}", style="bold yellow")


def resume_command(run: Run) -> str:
    """Return the command that continues a run."""
    if "nodes" in run.config:  # a federation on Flower
        return "flwr run, with the same app and record"
    command = "train" if run.recipe is not None else "run"
    return f"quped {command} --resume {shlex.quote(str(run.folder))}"


def methods_table(family: Sequence[Run], width: int) -> Table:
    """One line per method: a bar, its accuracy, and how that developed."""
    table = Table.grid(padding=(0, 2))
    for name, run in zip(labels(list(family), [list(family)]), family, strict=True):
        done = epochs_done(run)
        share = 1.0 if run.result is not None else done / run.epochs if run.epochs else 0.0
        means = mean_accuracies(run)
        cells = [
            escape(name),
            bar(share, 20 if width >= WIDE else 8),
            f"epoch {done}/{run.epochs}" if done else "waiting",
        ]
        cells += [f"{means[-1]:.1%}" if means else "", sparkline(means, 24) if width >= WIDE else ""]
        table.add_row(*cells, f"{seconds(run):.0f} s" if run.curve else "")
    return table


def epochs_done(run: Run) -> int:
    """Return how many epochs have been evaluated."""
    return int(run.curve[-1]["epoch"]) + 1 if run.curve else 0


def seconds(run: Run) -> float:
    """Return how long a run took so far."""
    return float(run.curve[-1].get("seconds") or 0)


def mean_accuracies(run: Run) -> list[float]:
    """Return the mean accuracy over clients at every evaluation that has one."""
    means = [mean_of(point) for point in run.curve]
    return [mean for mean in means if np.isfinite(mean)]


def mean_of(point: Values) -> float:
    """Return the mean accuracy at a point; NaN if no client was tested."""
    held = point["accuracy"]
    values = list(held.values()) if isinstance(held, dict) else [held]
    return float(np.mean(values)) if values else float("nan")


def curve_picture(run: Run, name: str, width: int) -> RenderableType:
    """Return the mean accuracy by round, in braille."""
    means = mean_accuracies(run)
    if len(means) < 2:
        return Text("")
    low, high = min(means), max(means)
    lines = braille(means, max(20, min(width, 100) - 10), CURVE_ROWS)
    edge = [f"{high:7.1%} ", *["        "] * (CURVE_ROWS - 2), f"{low:7.1%} "]
    first, last = (int(run.curve[i]["round"]) + 1 for i in (0, -1))
    picture = "\n".join(left + line for left, line in zip(edge, lines, strict=True))
    return Text(f"\nMean accuracy of {name}, rounds {first} to {last}\n{picture}\n")


def beside(left: RenderableType, right: RenderableType, width: int) -> RenderableType:
    """Put two tables side by side if there is room: a small terminal then shows both."""
    if width < WIDE:
        return Group(left, right)
    pair = Table.grid(padding=(0, 3))
    pair.add_row(left, right)
    return pair


def behind_table(run: Run) -> RenderableType:
    """List the clients with the lowest accuracy, and how it developed."""
    last = run.curve[-1]["accuracy"]
    if not isinstance(last, dict) or len(last) < 2:
        return Text("")
    table = Table(title="Clients behind the others", title_justify="left", box=None, padding=(0, 2, 0, 0))
    table.add_column("client")
    table.add_column("accuracy", justify="right")
    table.add_column("so far")
    for client in sorted(last, key=lambda key: float(last[key]))[:MOST_BEHIND]:
        values = [point["accuracy"][client] for point in run.curve if client in point["accuracy"]]
        table.add_row(escape(client), f"{last[client]:.1%}", sparkline(values, 12))
    return table


def slowest_table(run: Run) -> RenderableType:
    """List the clients whose rounds take longest, at the last evaluation that has times."""
    timed = [point for point in run.curve if "slowest" in point]
    point = next((point for point in reversed(timed) if point["slowest"]), None)
    if point is None:
        unknown = "The slowest clients are not known:\nthis engine computes clients at once."
        return Text(unknown if timed else "")
    median = point["median_seconds"]
    table = Table(title="Slowest clients", title_justify="left", box=None, padding=(0, 2, 0, 0))
    table.add_column("client")
    table.add_column("a round", justify="right")
    table.add_column("median", justify="right")
    for client, taken in point["slowest"].items():
        table.add_row(escape(client), f"{taken:.3g} s", f"{median:.3g} s")
    return table


def bar(share: float, width: int) -> str:
    """Return a bar that is filled to a share."""
    full = round(max(0.0, min(1.0, share)) * width)
    return "━" * full + "╌" * (width - full)


def resample(values: Sequence[float], count: int) -> list[float]:
    """Return at most so many of the values, evenly, with the last one."""
    if len(values) <= count:
        return list(values)
    return [values[round((i + 1) * len(values) / count) - 1] for i in range(count)]


def levels(values: Sequence[float], steps: int) -> list[int]:
    """Return which of so many steps between the lowest and the highest value each one is on."""
    low, high = min(values), max(values)
    return [round((value - low) / (high - low) * (steps - 1)) if high > low else 0 for value in values]


def sparkline(values: Sequence[float], width: int) -> str:
    """Return a curve that is one line high."""
    return "".join(BLOCKS[i] for i in levels(resample(values, width), len(BLOCKS))) if values else ""


def braille(values: Sequence[float], width: int, rows: int) -> list[str]:
    """Return a curve of dots, from the top line to the bottom; a character has two by four of them."""
    cells = np.zeros((rows, width), int)
    heights = levels(resample(values, 2 * width), 4 * rows)
    columns = [round(i * (2 * width - 1) / max(1, len(heights) - 1)) for i in range(len(heights))]
    for column, height in zip(range(2 * width), np.interp(range(2 * width), columns, heights), strict=True):
        row, dot = divmod(round(float(height)), 4)
        cells[rows - 1 - row, column // 2] |= DOTS[column % 2][dot]
    return ["".join(chr(0x2800 + int(cell)) for cell in line) for line in cells]
