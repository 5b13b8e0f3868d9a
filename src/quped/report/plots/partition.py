"""A picture of a partition: the classes and the number of samples of every client."""

from pathlib import Path

import numpy as np

from quped._extras import extra
from quped.data.partition import Share
from quped.data.samples import Dataset
from quped.report.plots.files import write

INK, TRAIN, TEST, MUTED = "#22303c", "#2f6f9f", "#e08a3c", "#9fb4c4"


def draw_partition(dataset: Dataset, shares: list[Share], title: str, file: Path) -> None:
    """Draw samples per client above, the classes of each client below, and clients per class beside; write a PNG."""
    with extra("plot"):  # here, because matplotlib takes most of a second to import
        from matplotlib.colors import LinearSegmentedColormap
        from matplotlib.figure import Figure

    clients, names = len(shares), dataset.class_names
    labels = dataset.train.labels.numpy()
    counts = np.array([np.bincount(labels[share.train], minlength=dataset.classes) for share in shares]).T
    train, test = (np.array([len(part) for part in half]) for half in zip(*shares, strict=True))
    places = np.arange(clients)

    width, height = 0.17 * min(max(clients, 25), 300), 0.3 * dataset.classes
    figure = Figure(figsize=(width + 3, height + 3.4), layout="constrained")
    grid = figure.add_gridspec(2, 2, width_ratios=(width, 1.6), height_ratios=(2.2, height))
    above = figure.add_subplot(grid[0, 0])
    cells = figure.add_subplot(grid[1, 0], sharex=above)
    beside = figure.add_subplot(grid[1, 1], sharey=cells)
    figure.suptitle(title, x=0.01, ha="left", color=INK, fontweight="bold")

    above.bar(places, train, 0.78, color=TRAIN, label=f"training  {extent(train)}")
    above.bar(places, test, 0.78, bottom=train, color=TEST, label=f"test  {extent(test)}")
    above.set_ylabel("samples")
    above.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, frameon=False, borderaxespad=0.2)
    above.tick_params(axis="x", labelbottom=False, length=0)

    colors = LinearSegmentedColormap.from_list("share", ["#d9e6ef", TRAIN])
    mesh = cells.pcolormesh(
        places, np.arange(dataset.classes), np.ma.masked_equal(counts, 0), cmap=colors, vmin=0, ec="white", lw=1.5
    )
    cells.set_yticks(range(dataset.classes), names)
    cells.set_xticks(places[:: 1 if clients <= 25 else max(5, clients // 60)])
    cells.set_xlabel("client")
    cells.invert_yaxis()
    cells.tick_params(length=0)
    corner = figure.add_subplot(grid[0, 1])
    corner.axis("off")
    scale = figure.colorbar(mesh, cax=corner.inset_axes((0, 0.1, 1, 0.08)), orientation="horizontal")
    scale.ax.set_title("training samples\nof a class", fontsize="medium", color=INK, loc="left")
    scale.outline.set_visible(False)

    owners = (counts > 0).sum(1)
    bars = beside.barh(range(dataset.classes), owners, 0.7, color=MUTED)
    beside.bar_label(bars, padding=3, color=INK)
    beside.set_xlabel("clients that have it", loc="left")
    beside.set_xlim(0, owners.max() * 1.2)
    beside.tick_params(labelleft=False, labelbottom=False, length=0)
    for axes in (above, cells, beside, scale.ax):
        axes.spines[:].set_visible(False)
        axes.tick_params(colors=INK)
    write(figure, file)


def extent(sizes: np.ndarray[tuple[int], np.dtype[np.int64]]) -> str:
    """Return the range of the sizes."""
    low, high = int(sizes.min()), int(sizes.max())
    return f"{low}" if low == high else f"{low}-{high}"
