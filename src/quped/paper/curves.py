"""Accuracy by epoch, as a picture."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from quped.algorithms import FULL_PRECISION
from quped.paper.compare import BITS, Line, Rows, shown
from quped.paper.table import ROWS, Column
from quped.report.plots.files import write

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import SubFigure

OURS = {
    "quped": {FULL_PRECISION: "#08306b", 2: "#2171b5", 1: "#6baed6"},
    "quped-tuned": {2: "#54278f"},
    "quped-together": {FULL_PRECISION: "#7a0177", 2: "#c51b8a", 1: "#f768a1"},
    "quped+": {2: "#006d2c", 1: "#41ab5d"},
    "centers": {2: "#08306b", 1: "#4292c6"},
    "centers+": {2: "#006d2c", 1: "#41ab5d"},
}
"""Drawn thick and solid; the fewer bits, the lighter."""

PEERS = {
    **{"local": "#e69138", "local+": "#7f6000", "local-tuned": "#b45f06", "fedavg": "#666666", "qupel": "#45818e"},
    **{"pfedme": "#a64d79", "perfedavg": "#cc0000", "fml": "#674ea7"},
    **{"quped-fixed": "#cc0000", "float": "#666666", "proxquant": "#cc0000", "binaryrelax": "#e69138"},
}
"""Drawn thin; dashed at 2 bits, dotted at 1 bit."""

STYLES = {FULL_PRECISION: "-", 2: "--", 1: ":"}
MARKS = {"FP": "o", "2": "s", "1": "^", "mixed": "D"}
"""Of the paper's figures, by what a line of the table says of bits."""

SHAPES = {"FP": "o", "2": "□", "1": "△", "mixed": "◇"}
"""The same, as letters."""

CROWDED = 8
"""More curves than this cannot be told apart in one field."""


def draw(title: str, found: Rows, file: Path) -> None:
    """Draw the curves of a table, one field for each column."""
    from matplotlib.figure import Figure  # here, because it would slow the start of every command

    fields = [(column, some) for column, lines in found for some in by_length(lines)]
    figure = Figure(figsize=(11, 5.8 * len(fields)), layout="constrained")
    figure.suptitle(title)
    parts = figure.subfigures(len(fields), 1, squeeze=False, hspace=0.03)
    for part, (column, some) in zip(parts.flat, fields, strict=True):
        draw_column(part, column, some)
    write(figure, file)


def draw_column(part: "SubFigure", column: Column, found: Sequence[Line]) -> None:
    """Draw the curves of a column: in one field, or, if they are too many, in one for each bit-width."""
    split = [bits for bits in BITS if any(line.bits == bits for line in found)] if len(found) > CROWDED else []
    axes = part.subplots(1, max(len(split), 1), sharey=True, squeeze=False)[0]
    if not split:
        draw_field(axes[0], found, found)
        axes[0].legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False)
    for axis, bits in zip(axes, split, strict=False):
        draw_field(axis, [line for line in found if line.bits == bits], found)
        axis.set(title=BITS[bits])
        axis.legend(fontsize=7, loc="upper left", bbox_to_anchor=(-0.05, -0.13), frameon=False)
    who = "" if column.recipe else ", mean over clients"
    axes[0].set(ylabel=f"test accuracy in %{who}")
    part.suptitle(f"{column.title}\n", fontsize=11)
    marked = {line.bits for line in found if line.paper is not None}
    shapes = "" if split else ": " + ", ".join(f"{SHAPES[bits]} {BITS[bits]}" for bits in BITS if bits in marked)
    if marked:
        part.text(0.5, 0.93, f"marks at the right are the paper's{shapes}", fontsize=8, color="#666666", ha="center")


def by_length(found: Sequence[Line]) -> list[list[Line]]:
    """Return lines with runs of equal length, the longest first: the schedules of others pass at another speed.

    What was not trained at all is a line in each.
    """
    epochs = [line.results[0]["epochs"] for line in found]
    lengths = sorted({n for n in epochs if n > 0} or set(epochs), reverse=True)
    return [[line for line, n in zip(found, epochs, strict=True) if n in (0, length)] for length in lengths]


def draw_field(axis: "Axes", found: Sequence[Line], column: Sequence[Line]) -> None:
    """Draw some curves of a column, on its scale; the paper's final accuracies are marks at the right edge."""
    edge = max(1, *(line.results[0]["epochs"] for line in column))
    finals = [value for line in column for value in (line.mean, line.mean if line.paper is None else line.paper.mean)]
    top = max(*finals, *(max(curve(line)[1]) for line in column))
    span = max(top - min(finals), (100 - top) / 4, 1.0)  # where few curves are, a part of their way up is seen
    floor = min(finals) - span
    found = sorted(found, key=lambda line: -line.mean)
    for line in found:
        x, y = curve(line)
        if line.results[0]["epochs"] == 0:  # as it was given: it has no curve
            x, y = [0, edge], y * 2
        color, style = look(line.method)
        width, point = (2.4 if own(line.method) else 1.1), ("." if len(x) == 1 else "")
        axis.plot(x, y, color=color, linestyle=style, linewidth=width, marker=point, label=label(line, floor))
    papers = [(line, line.paper.mean) for line in found if line.paper is not None]
    for (line, mean), shift in zip(papers, apart([mean for _, mean in papers], span / 25), strict=True):
        axis.plot(
            *([edge * (1.02 + 0.02 * shift)], [mean]),
            marker=MARKS[line.bits],
            color=look(line.method)[0],
            fillstyle="full" if own(line.method) else "none",
            clip_on=False,
            linestyle="none",
            markersize=5,
        )
    for start in sorted({start for line in found if (start := finetuning(line)) is not None}):
        axis.axvline(start, color="#bbbbbb", linewidth=0.8, linestyle=(0, (1, 3)))
        axis.text(start, max(floor, 0), " fine-tuning", fontsize=7, color="#888888", va="bottom")
    axis.set(xlabel="epoch", xlim=(0, edge * 1.1), ylim=(max(floor, 0), min(top + 0.15 * span, 100.5)))
    axis.locator_params(axis="x", integer=True)
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)


def finetuning(line: Line) -> float | None:
    """Return the epoch from which a full run is fine-tuned; None if it is not."""
    first = line.results[0]
    epochs = first["config"].get("training", first["config"]).get("finetune_epochs", 0)
    return first["epochs"] - epochs if epochs and not first["shortened"] else None


def kind(method: str) -> str:
    """Return a method's name without its bits."""
    return re.sub(r"-\dbit", "", method)


def own(method: str) -> bool:
    """Say whether a method is the paper's or ours, not a peer."""
    return kind(method) in OURS


def look(method: str) -> tuple[str, str]:
    """Return the color and the style of a method's curve."""
    name, bits = kind(method), ROWS[method].bits
    return (OURS[name][bits], "-") if own(method) else (PEERS[name], STYLES[bits])


def label(line: Line, floor: float) -> str:
    """Return a line of the legend; it tells of a curve that was in the picture and left it."""
    bits = "" if line.bits in ("FP", "mixed") else f", {BITS[line.bits]}"
    paper = "" if line.paper is None else f" (paper {line.paper.mean:.2f})"
    y = curve(line)[1]
    seen = next((i for i, value in enumerate(y) if value >= floor), len(y))
    lowest = min(y[seen:], default=floor)
    fall = f", fell to {lowest:.0f} on the way" if lowest < floor else ""
    return f"{line.title}{bits}: {shown(line.mean, line.std)}{paper}{fall}"


def apart(heights: Sequence[float], distance: float) -> list[int]:
    """Return a place to the right for each of some marks, so that those in one place are so far from each other."""
    places: list[int] = []
    for i, height in enumerate(heights):
        taken = {places[j] for j in range(i) if abs(heights[j] - height) < distance}
        places.append(next(place for place in range(len(heights)) if place not in taken))
    return places


def curve(line: Line) -> tuple[list[float], list[float]]:
    """Return epochs and accuracies in percent, mean over seeds."""
    first = line.results[0]["curve"]
    return (
        [point["epoch"] + 1 for point in first],
        [100 * float(np.mean([result["curve"][i]["accuracy"] for result in line.results])) for i in range(len(first))],
    )
