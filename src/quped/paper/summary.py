"""The records in one table and one picture: our clients at 2 bits beside the best method in full precision."""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from quped.paper.claims import standard_error
from quped.paper.compare import Comparison, Line, markdown_table, pairs, plus_minus, text
from quped.paper.table import Column
from quped.report.plots.files import write

HEADER = (
    "Data set",
    "Ours at 2 bits",
    "Accuracy",
    "kB",
    "Below local",
    "Best in full precision",
    "Accuracy",
    "kB",
    "Difference",
)


TICKS = 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000
"""Of the picture, in kB."""


class Pair(NamedTuple):
    """A column of a table: our row at 2 bits, and the best one in full precision."""

    column: Column
    ours: Line
    best: Line
    ours_kilobytes: float | None
    best_kilobytes: float | None

    @property
    def difference(self) -> str:
        """How far ours is above the other, with the standard error over clients and seeds, at equal seeds."""
        both = pairs(self.ours.records, self.best.records)
        if not both:
            return ""
        gaps = [a[self.ours.row.reads]["mean"] - b[self.best.row.reads]["mean"] for a, b in both]
        error = standard_error(self.ours.row, self.best.row, both)
        return f"{100 * np.mean(gaps):+.2f} ± {100 * error:.2f}"

    def texts(self) -> tuple[str, ...]:
        """Return the cells of its line."""
        ours, best = self.ours, self.best
        return (
            self.column.label,
            ours.row.title,
            plus_minus(ours.mean, ours.std),
            text("{:.1f}", self.ours_kilobytes),
            text("{:.0%}", ours.below_local),
            best.row.title,
            plus_minus(best.mean, best.std),
            text("{:.1f}", self.best_kilobytes),
            self.difference,
        )


def kilobytes(line: Line, lines: Iterable[Line]) -> float | None:
    """Return the packed size of a client's model, mean over clients; None if no record has it.

    Records may be older than the size: rows with the same bits and codebooks have the same network.
    """
    alike = [line, *(o for o in lines if (o.bits, o.row.per_channel) == (line.bits, line.row.per_channel))]
    sizes = (record.get("bytes_packed") for one in alike for record in one.records)
    size = next((size for size in sizes if size is not None), None)
    return None if size is None else float(size) / 1000


def summarize(comparisons: Iterable[Comparison]) -> list[Pair]:
    """Return a pair for every setting in which all clients have one network, and both lines are of full length.

    Ours is the flagship of the table, or else the best of the highlighted rows.
    """
    found: dict[str, Pair] = {}
    for comparison in comparisons:
        for column, lines in comparison:
            full = [line for line in lines if column.clients and not line.records[0]["shortened"]]
            ours = [line for line in full if line.bits == "2" and line.row.highlight and not column.mixed]
            ours = [line for line in ours if line.row.flagship] or ours
            exact = [line for line in full if line.bits == "FP" and not column.mixed]
            if ours and exact and column.label not in found:
                chosen = best_of(ours), best_of(exact)
                found[column.label] = Pair(column, *chosen, *(kilobytes(line, full) for line in chosen))
    return list(found.values())


def best_of(lines: Iterable[Line]) -> Line:
    """Return the line with the highest accuracy."""
    return max(lines, key=lambda line: line.mean)


def markdown(summary: Iterable[Pair]) -> str:
    """Return the summary as Markdown; nothing if it is empty."""
    lines = [pair.texts() for pair in summary]
    rule = ("---", "---", "---:", "---:", "---:", "---", "---:", "---:", "---:")
    return markdown_table([HEADER, rule, *lines]) if lines else ""


def draw(summary: Iterable[Pair], file: Path) -> None:
    """Draw accuracy over size: an arrow for each data set, from the best in full precision to ours at 2 bits."""
    from matplotlib.figure import Figure  # here, because it would slow the start of every command

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axis = figure.subplots()
    for i, pair in enumerate(summary):
        color, size, large = f"C{i % 10}", pair.ours_kilobytes, pair.best_kilobytes
        if size is None or large is None:
            continue
        axis.annotate(
            "", (size, pair.ours.mean), (large, pair.best.mean), arrowprops={"arrowstyle": "->", "color": color}
        )
        axis.plot([large], [pair.best.mean], "o", color=color, fillstyle="none")
        axis.plot([size], [pair.ours.mean], "s", color=color, label=pair.column.label)
    axis.set_xscale("log")
    axis.set_xticks(TICKS, [str(tick) for tick in TICKS])
    axis.minorticks_off()
    axis.set(
        xlabel="kB per client",
        xlim=(TICKS[0], TICKS[-1]),
        ylabel="test accuracy in %, mean over clients",
        title="A client's model: ours at 2 bits (■) beside the best in full precision (○)",
    )
    axis.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.01, 1.0))
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)
    write(figure, file)
