"""Our numbers beside the paper's: as values and as Markdown."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from quped.algorithms import FULL_PRECISION
from quped.paper.figures import FIGURES, Figure
from quped.paper.runs import Result, stored
from quped.paper.table import ROWS, Cell, Column, Table, tables

HEADER = ("Method", "Bits", "Ours", "Seeds", "Paper", "Difference")

BITS = {"FP": "full precision", "2": "2 bits", "1": "1 bit", "mixed": "mixed bits"}
"""What a line of a table says of bits, in words."""


def bits(width: int) -> str:
    """Return a bit-width as a line of a table has it."""
    return "FP" if width == FULL_PRECISION else str(width)


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
        return ROWS[self.method].title + length(self.results[0])

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
            "accuracies": {
                result["seed"]: round(value, 4) for result, value in zip(self.results, self.accuracies, strict=True)
            },
            "std": None if self.std is None else round(self.std, 4),
            "paper": None if self.paper is None else self.paper._asdict(),
            "difference": None if self.difference is None else round(self.difference, 4),
            **{"shortened": first["shortened"], "epochs": first["epochs"], "full_epochs": first["full_epochs"]},
            "seconds": [result["seconds"] for result in self.results],
        }


Rows = list[tuple[Column, list[Line]]]
"""Columns of a table, each with its lines."""


def length(result: Result) -> str:
    """Return how long a shortened run was; nothing of a full one."""
    return f" [{result['epochs']} of {result['full_epochs']} epochs]" if result["shortened"] else ""


def shown(mean: float, std: float | None) -> str:
    """Return an accuracy as it stands in a table."""
    return f"{mean:.2f}" if std is None else f"{mean:.2f} ± {std:.2f}"


def rows(table: Table, folder: Path, epochs: int | None = None) -> Rows:
    """Return, for each column of which something was run, the methods that were: see `lines`."""
    found = ((column, lines(table, column, folder, epochs)) for column in table.columns)
    return [(column, some) for column, some in found if some]


def lines(table: Table, column: Column, folder: Path, epochs: int | None) -> list[Line]:
    """Return the methods of a column that were run.

    With `epochs`, those runs; otherwise full ones, and where there are none, those of every length, the longest first.
    """
    found = []
    for method in table.methods:
        seeds = recorded(column, method, folder)
        wanted = epochs if Cell(table, column, method, 0, epochs).shortened else None
        # A run of None epochs is a full one.
        shortened = sorted((n for n in seeds if n is not None), reverse=True)
        for n in [wanted] if epochs is not None else [None, *shortened]:
            if there := results(table, column, method, n, seeds.get(n, set()), folder):
                widths = {group.bits or ROWS[method].bits for group in column.clients} or {ROWS[method].bits}
                told = "mixed" if len(widths) > 1 else bits(min(widths))
                found.append(Line(method, told, there, FIGURES[table.name][column.name].get(method)))
                if n is None:
                    break
    return found


def results(
    table: Table, column: Column, method: str, epochs: int | None, seeds: set[int], folder: Path
) -> list[Result]:
    """Return the runs at these seeds that count as this table's, as far as they are alike; None: full ones."""
    cells = [Cell(table, column, method, seed, epochs) for seed in sorted(seeds)]
    return alike([result for cell in cells if (result := stored(cell, folder)) is not None])


def alike(results: Sequence[Result]) -> list[Result]:
    """Return those that began with the same data or weights, of several such groups the largest: no mean is of two."""
    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(made_from(result), []).append(result)
    return max(groups.values(), key=len, default=[])


def made_from(result: Result) -> str:
    """Return the checksum of the data, or the weights, that a run began with; nothing if its record does not tell."""
    return str(result.get("data") or result.get("weights", ""))


def recorded(column: Column, method: str, folder: Path) -> dict[int | None, set[int]]:
    """Return the seeds that were run, under whichever table, by the epochs of a shortened run; None for full ones."""
    seeds: dict[int | None, set[int]] = {}
    for name in tables():
        place = folder / name / column.name / method
        for path in place.rglob("seed-*.json"):
            match = re.fullmatch(r"(?:epochs-(\d+)/)?seed-(\d+)\.json", path.relative_to(place).as_posix())
            if match:
                seeds.setdefault(int(match[1]) if match[1] else None, set()).add(int(match[2]))
    return seeds


def values(table: Table, found: Rows) -> dict[str, Any]:
    """Return the whole table as plain values."""
    columns = {c.name: list[dict[str, Any]]() for c in table.columns}
    columns |= {column.name: [line.values() for line in some] for column, some in found}
    return {"table": table.name, "title": table.title, "source": table.source, "columns": columns}


def markdown(found: Rows) -> str:
    """Return a whole table as Markdown; nothing if nothing was run."""
    if not found:
        return ""
    parts: list[str] = []
    for column, some in found:
        texts = [HEADER, ("---",) * 2 + ("---:",) * 4, *(line.texts() for line in some)]
        parts += [f"**{column.title}**", "\n".join(f"| {' | '.join(text)} |" for text in texts)]
    parts.append(provenance([result for _, some in found for line in some for result in line.results]))
    return "\n\n".join(parts)


def provenance(results: Sequence[Result]) -> str:
    """Say when, with what and for how long the numbers were computed."""
    dates = sorted({result["date"] for result in results})
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    versions = sorted({", ".join(f"{k} {v}" for k, v in result["versions"].items()) for result in results})
    hours = sum(result["seconds"] for result in results) / 3600
    runs = f"{len(results)} runs" if len(results) > 1 else "1 run"
    time = f"{hours:.1f} hours" if hours >= 1 else f"{60 * hours:.0f} minutes"
    samples = sorted({result["samples"] for result in results if "samples" in result})
    trained = f" {' and '.join(f'{n:,}' for n in samples)} training samples;" if samples else ""
    weights = sorted({result["weights"][:12] for result in results if "weights" in result})
    began = f" begun with the weights of SHA-256 {' and '.join(weights)};" if weights else ""
    return f"{runs}, {time} of computing, {when};{trained}{began} {'; '.join(versions)}."
