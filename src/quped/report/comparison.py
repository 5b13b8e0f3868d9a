"""Our numbers beside the paper's: as values, as Markdown, and in the documents."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from quped.algorithms import FULL_PRECISION
from quped.errors import RunError
from quped.experiments.paper import FIGURES, Figure
from quped.experiments.reproduce import Result, stored
from quped.experiments.table import ROWS, Cell, Column, Table, tables

HEADER = ("Method", "Bits", "Ours", "Seeds", "Paper", "Difference")


class Line(NamedTuple):
    """A method in a column of a table."""

    method: str
    bits: str
    results: list[Result]
    """Of its seeds; of equal length."""
    paper: Figure | None
    """None of a method that is not in the paper's table."""

    @property
    def mean(self) -> float:
        """Test accuracy in percent, mean over clients and seeds, after the last round."""
        return float(np.mean(self.accuracies))

    @property
    def std(self) -> float | None:
        """Standard deviation over seeds; none of a single one."""
        return float(np.std(self.accuracies, ddof=1)) if len(self.results) > 1 else None

    @property
    def accuracies(self) -> list[float]:
        """Of each seed, in percent."""
        return [100 * float(result["accuracy"]["mean"]) for result in self.results]

    @property
    def title(self) -> str:
        """The method's name; a shortened run says so."""
        first = self.results[0]
        short = f" [{first['epochs']} of {first['full_epochs']} epochs]" if first["shortened"] else ""
        return ROWS[self.method].title + short

    @property
    def difference(self) -> float | None:
        """From the paper's accuracy."""
        return None if self.paper is None else self.mean - self.paper.mean

    def texts(self) -> tuple[str, ...]:
        """Return what stands in the table."""
        paper = "" if self.paper is None else shown(*self.paper)
        difference = "" if self.difference is None else f"{self.difference:+.2f}"
        return self.title, self.bits, shown(self.mean, self.std), str(len(self.results)), paper, difference

    def values(self) -> dict[str, Any]:
        """Return the line as plain values."""
        first = self.results[0]
        return {
            **{"method": self.method, "bits": self.bits, "mean": round(self.mean, 4), "seeds": len(self.results)},
            "std": None if self.std is None else round(self.std, 4),
            "paper": None if self.paper is None else self.paper._asdict(),
            "difference": None if self.difference is None else round(self.difference, 4),
            **{"shortened": first["shortened"], "epochs": first["epochs"], "full_epochs": first["full_epochs"]},
            "seconds": [result["seconds"] for result in self.results],
        }


def shown(mean: float, std: float | None) -> str:
    """Return an accuracy as it stands in a table."""
    return f"{mean:.2f}" if std is None else f"{mean:.2f} ± {std:.2f}"


def lines(table: Table, column: Column, folder: Path, epochs: int | None = None) -> list[Line]:
    """Return the methods of a column that were run.

    With `epochs`, those runs; otherwise full ones, and where there are none, the longest.
    """
    found = []
    for method in table.methods:
        lengths = [epochs] if epochs is not None else [None, *shortened_lengths(folder / table.name, column, method)]
        for length in lengths:
            results = list(seeds(table, column, method, folder, length))
            if results:
                widths = {group.bits or ROWS[method].bits for group in column.clients} or {ROWS[method].bits}
                width = min(widths)
                bits = "mixed" if len(widths) > 1 else "FP" if width == FULL_PRECISION else str(width)
                found.append(Line(method, bits, results, FIGURES[table.name][column.name].get(method)))
                break
    return found


def seeds(table: Table, column: Column, method: str, folder: Path, epochs: int | None) -> list[Result]:
    """Return the results of all seeds from 0 on."""
    results: list[Result] = []
    while (result := stored(Cell(table, column, method, len(results), epochs), folder)) is not None:
        results.append(result)
    return results


def shortened_lengths(folder: Path, column: Column, method: str) -> list[int]:
    """Return the epochs of shortened runs, the longest first."""
    names = (path.name.removeprefix("epochs-") for path in (folder / column.name / method).glob("epochs-*"))
    return sorted((int(name) for name in names if name.isdigit()), reverse=True)


def markdown(table: Table, folder: Path, epochs: int | None = None) -> str:
    """Return the whole table as Markdown; nothing if nothing was run."""
    parts: list[str] = []
    everything: list[Result] = []
    for column in table.columns:
        found = lines(table, column, folder, epochs)
        if found:
            rows = [HEADER, ("---",) * 2 + ("---:",) * 4, *(line.texts() for line in found)]
            parts += [f"**{column.title}**", "\n".join(f"| {' | '.join(row)} |" for row in rows)]
            everything += [result for line in found for result in line.results]
    if not everything:
        return ""
    parts.append(provenance(everything))
    return "\n\n".join(parts)


def provenance(results: Sequence[Result]) -> str:
    """Say when, with what and for how long the numbers were computed."""
    dates = sorted({result["date"] for result in results})
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    versions = sorted({", ".join(f"{k} {v}" for k, v in result["versions"].items()) for result in results})
    hours = sum(result["seconds"] for result in results) / 3600
    return f"{len(results)} runs, {hours:.1f} hours of computing, {when}; {'; '.join(versions)}."


def document(text: str, folder: Path) -> str:
    """Return a document with each block between `<!-- results: TABLE -->` and `<!-- end -->` made from the records."""
    parts = re.split(r"(<!-- results: \S+ -->).*?(<!-- end -->)", text, flags=re.DOTALL)
    # Of every three parts the second is a beginning and the third an end.
    for i in range(1, len(parts), 3):
        name = parts[i].split()[2]
        if name not in tables():
            raise RunError(f"The document asks for the results of a table '{name}', which does not exist.")
        parts[i] += f"\n{markdown(tables()[name], folder)}\n"
    return "".join(parts)
