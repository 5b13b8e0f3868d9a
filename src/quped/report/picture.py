"""What all pictures share."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def write(figure: "Figure", file: Path) -> None:
    """Write a picture as PNG: the file is there with all of it, or not there."""
    from matplotlib import pyplot as plt  # here, because it would slow the start of every command

    figure.tight_layout()
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(f".{file.name}")
    figure.savefig(draft, dpi=120, format="png")
    draft.replace(file)
    plt.close(figure)
