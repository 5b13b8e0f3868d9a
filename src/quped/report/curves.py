"""Accuracy by epoch, as a picture."""

from pathlib import Path

import numpy as np

from quped.algorithms import FULL_PRECISION
from quped.experiments.table import ROWS, Table
from quped.report.comparison import Line, lines
from quped.report.picture import write

COLORS = {
    **{"quped": "#0b5394", "local": "#e69138", "fedavg": "#777777", "qupel": "#6aa84f"},
    **{"quped+": "#3d9be9", "local+": "#bf9000"},
    **{"pfedme": "#a64d79", "perfedavg": "#cc0000", "fml": "#674ea7"},
    **{"centers": "#0b5394", "float": "#777777", "proxquant": "#cc0000", "binaryrelax": "#6aa84f"},
}
STYLES = {FULL_PRECISION: "-", 2: "--", 1: ":"}


def draw(table: Table, folder: Path, file: Path, epochs: int | None = None) -> bool:
    """Draw the curves of a table, one field for each column; return whether there was anything to draw.

    QuPeD is drawn thick, its peers thin. The paper's final accuracies are marks at the right edge.
    """
    import matplotlib as mpl  # here, because it would slow the start of every command

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    fields = [(column, found) for column in table.columns if (found := lines(table, column, folder, epochs))]
    if not fields:
        return False
    figure, axes = plt.subplots(1, len(fields), figsize=(8.5 * len(fields), 5), squeeze=False)
    for axis, (column, found) in zip(axes[0], fields, strict=True):
        edge = max(1, *(line.results[0]["epochs"] for line in found))
        heights: list[float] = []
        for line in sorted(found, key=lambda line: -line.mean):
            row, color = ROWS[line.method], COLORS[line.method.split("-")[0]]
            x, y = curve(line)
            heights += [line.mean, line.mean if line.paper is None else line.paper.mean]
            ours = row.algorithm in ("quped", "centers")
            bits = "" if line.bits in ("FP", "mixed") else f", {line.bits} bit{'s' if line.bits != '1' else ''}"
            axis.plot(
                *(x, y),
                color=color,
                linestyle=STYLES[row.bits],
                linewidth=2.4 if ours else 1.0,
                label=f"{line.title}{bits}: {line.mean:.1f}",
            )
            if line.paper is not None:
                axis.plot(
                    *([edge * 1.02], [line.paper.mean]),
                    marker="<" if ours else "_",
                    color=color,
                    fillstyle="full" if row.bits == FULL_PRECISION else "none",
                    clip_on=False,
                    linestyle="none",
                )
        axis.set(title=column.title, xlabel="epoch", ylabel="test accuracy in %, mean over clients")
        axis.set_xlim(0, edge * 1.04)
        lowest, top = min(heights), max(heights)
        span = max(top - lowest, 1.0)
        axis.set_ylim(lowest - span, top + 0.15 * span)
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(
            fontsize=8,
            loc="lower left",
            bbox_to_anchor=(1.03, 0.0),
            title="last epoch; marks: the paper",
            title_fontsize=8,
        )
    figure.suptitle(table.title)
    write(figure, file)
    return True


def curve(line: Line) -> tuple[list[float], list[float]]:
    """Return epochs and accuracies in percent, mean over seeds."""
    first = line.results[0]["curve"]
    return (
        [point["epoch"] + 1 for point in first],
        [100 * float(np.mean([result["curve"][i]["accuracy"] for result in line.results])) for i in range(len(first))],
    )
