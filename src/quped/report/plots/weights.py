"""How the weights of a layer gather at their centers, as a picture."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from quped.report.plots.files import write


def draw(curve: Sequence[dict[str, Any]], file: Path) -> None:
    """Draw, epoch by epoch, where the weights of a layer are, and its centers; `curve` is of a `result.json`."""
    from matplotlib.colors import LogNorm  # here, because it would slow the start of every command
    from matplotlib.figure import Figure

    first = curve[0]["weights"]
    epochs = [point["epoch"] + 1 for point in curve]
    shares = np.array([point["weights"]["counts"] for point in curve], float).T / sum(first["counts"])
    figure = Figure(figsize=(9, 4.5), layout="tight")
    axis = figure.subplots()
    extent = (epochs[0] - 0.5, epochs[-1] + 0.5, -first["reach"], first["reach"])
    image = axis.imshow(
        np.maximum(shares, 1e-5),
        cmap="Blues",
        norm=LogNorm(1e-4, 1),
        aspect="auto",
        interpolation="nearest",
        origin="lower",
        extent=extent,
    )
    # An epoch is a column of the picture: lines reach both edges, also if there is only one epoch.
    edges = [extent[0], *epochs, extent[1]]
    for i, path in enumerate(zip(*(point["weights"]["centers"] for point in curve), strict=True)):
        values = [path[0], *path, path[-1]]
        axis.plot(edges, values, color="#cc4125", linewidth=1.2, label="centers" if i == 0 else None)
    hard = [point["epoch"] + 1 for point in curve if point["phase"] == "finetune"]
    if hard:
        axis.axvline(
            hard[0] - 0.5, color="#555555", linewidth=1, linestyle="--", label="weights are put on their centers"
        )
    axis.set_title(f"weights of {first['name']}", loc="left")
    axis.set(xlabel="epoch", ylabel="value", xlim=extent[:2], ylim=extent[2:])
    axis.locator_params(axis="x", integer=True)
    # Above the picture, where it hides no center.
    axis.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, fontsize=8, frameon=False)
    figure.colorbar(image, label="share of the weights", pad=0.02)
    write(figure, file)
