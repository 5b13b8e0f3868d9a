"""What all pictures share."""

from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from quped.records import write_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def write(figure: "Figure", file: Path) -> None:
    """Write a picture as PNG: the file is there with all of it, or not there."""
    file.parent.mkdir(parents=True, exist_ok=True)
    content = BytesIO()
    figure.savefig(content, dpi=120, format="png")
    write_bytes(file, content.getvalue())
