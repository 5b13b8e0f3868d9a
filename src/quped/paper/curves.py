"""Accuracy by epoch, as a picture."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from quped.paper.compare import BITS, Comparison, Line, plus_minus
from quped.paper.table import Column
from quped.report.plots.files import write

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import SubFigure

MARKS = {"FP": "o", "2": "s", "1": "^", "mixed": "D"}
"""Of the paper's numbers, by the bits of a line."""

SHAPES = {"FP": "o", "2": "□", "1": "△", "mixed": "◇"}
"""The same, as letters."""

CROWDED = 8
"""With more curves than this, each bit-width gets its own panel."""


def draw(title: str, comparison: Comparison, file: Path) -> None:
    """Draw the curves of a table: a field for each column and length of runs."""
    from matplotlib.figure import Figure  # here, because it would slow the start of every command

    fields = [(column, part) for column, lines in comparison for part in by_length(lines)]
    figure = Figure(figsize=(11, 5.8 * len(fields)), layout="constrained")
    figure.suptitle(title)
    parts = figure.subfigures(len(fields), 1, squeeze=False, hspace=0.03)
    for part, (column, lines) in zip(parts.flat, fields, strict=True):
        draw_column(part, column, lines)
    write(figure, file)


def by_length(lines: Sequence[Line]) -> list[list[Line]]:
    """Return lines in groups with runs of equal length, the longest first: schedules of other lengths pass faster.

    A network that was only evaluated is a line in each.
    """
    epochs = [line.records[0]["epochs"] for line in lines]
    lengths = sorted({n for n in epochs if n > 0} or set(epochs), reverse=True)
    return [[line for line, n in zip(lines, epochs, strict=True) if n in (0, length)] for length in lengths]


def draw_column(part: "SubFigure", column: Column, lines: Sequence[Line]) -> None:
    """Draw the curves of a column in one panel or, if they are too many, in one for each bit-width."""
    split = [bits for bits in BITS if any(line.bits == bits for line in lines)] if len(lines) > CROWDED else []
    axes = part.subplots(1, max(len(split), 1), sharey=True, squeeze=False)[0]
    if not split:
        draw_panel(axes[0], lines, lines)
        axes[0].legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False)
    for axis, bits in zip(axes, split, strict=False):
        draw_panel(axis, [line for line in lines if line.bits == bits], lines)
        axis.set(title=BITS[bits])
        axis.legend(fontsize=7, loc="upper left", bbox_to_anchor=(-0.05, -0.13), frameon=False)
    over = "" if column.recipe else ", mean over clients"
    axes[0].set(ylabel=f"test accuracy in %{over}")
    part.suptitle(f"{column.title}\n", fontsize=11)
    marked = {line.bits for line in lines if line.paper is not None}
    shapes = "" if split else ": " + ", ".join(f"{SHAPES[bits]} {BITS[bits]}" for bits in BITS if bits in marked)
    if marked:
        part.text(0.5, 0.93, f"marks at the right are the paper's{shapes}", fontsize=8, color="#666666", ha="center")


def draw_panel(axis: "Axes", lines: Sequence[Line], column: Sequence[Line]) -> None:
    """Draw some curves of a column, on the scale of all; the paper's final accuracies are marks at the right edge."""
    edge = max(1, *(line.records[0]["epochs"] for line in column))
    finals = [value for line in column for value in (line.mean, line.mean if line.paper is None else line.paper.mean)]
    top = max(*finals, *(max(curve(line)[1]) for line in column))
    span = max(top - min(finals), (100 - top) / 4, 1.0)  # few curves still show a part of their way up
    floor = min(finals) - span
    lines = sorted(lines, key=lambda line: -line.mean)
    for line in lines:
        x, y = curve(line)
        if line.records[0]["epochs"] == 0:  # only evaluated: a level, not a curve
            x, y = [0, edge], y * 2
        axis.plot(
            x,
            y,
            color=line.row.color,
            linestyle=line.row.line,
            linewidth=2.4 if line.row.highlight else 1.1,
            marker="." if len(x) == 1 else "",
            label=legend(line, floor),
        )
    papers = [(line, line.paper.mean) for line in lines if line.paper is not None]
    for (line, mean), shift in zip(papers, shifts([mean for _, mean in papers], span / 25), strict=True):
        axis.plot(
            [edge * (1.02 + 0.02 * shift)],
            [mean],
            marker=MARKS[line.bits],
            color=line.row.color,
            fillstyle="full" if line.row.highlight else "none",
            clip_on=False,
            linestyle="none",
            markersize=5,
        )
    starts = sorted({start for line in lines if (start := finetuning_start(line)) is not None})
    for i, start in enumerate(starts):
        axis.axvline(start, color="#bbbbbb", linewidth=0.8, linestyle=(0, (1, 3)))
        axis.text(start, max(floor, 0) + i * span / 20, " fine-tuning", fontsize=7, color="#888888", va="bottom")
    axis.set(xlabel="epoch", xlim=(0, edge * 1.1), ylim=(max(floor, 0), min(top + 0.15 * span, 100.5)))
    axis.locator_params(axis="x", integer=True)
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)


def finetuning_start(line: Line) -> float | None:
    """Return the epoch in which fine-tuning of a full run begins; None without fine-tuning."""
    first = line.records[0]
    epochs = first["config"].get("training", first["config"]).get("finetune_epochs", 0)
    return first["epochs"] - epochs if epochs and not first["shortened"] else None


def legend(line: Line, floor: float) -> str:
    """Return a line of the legend, which mentions a curve that left the picture for a while."""
    bits = "" if line.bits in ("FP", "mixed") else f", {BITS[line.bits]}"
    paper = "" if line.paper is None else f" (paper {line.paper.mean:.2f})"
    y = curve(line)[1]
    entry = next((i for i, value in enumerate(y) if value >= floor), len(y))
    lowest = min(y[entry:], default=floor)
    fall = f", fell to {lowest:.0f} on the way" if lowest < floor else ""
    return f"{line.title}{bits}: {plus_minus(line.mean, line.std)}{paper}{fall}"


def shifts(heights: Sequence[float], distance: float) -> list[int]:
    """Return steps to the right for marks at some heights, so that no two overlap that are nearer than a distance."""
    steps: list[int] = []
    for i, height in enumerate(heights):
        taken = {steps[j] for j in range(i) if abs(heights[j] - height) < distance}
        steps.append(next(step for step in range(len(heights)) if step not in taken))
    return steps


def curve(line: Line) -> tuple[list[float], list[float]]:
    """Return epochs and accuracies in percent, mean over seeds.

    A run that began with the model of another one has no accuracies before, so epochs are those that all seeds have.
    """
    if line.row.reads != "accuracy":
        return [line.records[0]["epochs"]], [line.mean]
    seeds = [{point["epoch"]: point["accuracy"] for point in record["curve"]} for record in line.records]
    epochs = [epoch for epoch in seeds[0] if all(epoch in seed for seed in seeds)]
    return (
        [epoch + 1 for epoch in epochs],
        [100 * float(np.mean([seed[epoch] for seed in seeds])) for epoch in epochs],
    )
