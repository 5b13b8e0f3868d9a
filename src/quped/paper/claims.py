"""What the paper says of its methods, and whether our records agree: differences at equal seeds."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from quped.paper.compare import BITS, bits, length, made_from, recorded, results
from quped.paper.figures import FIGURES
from quped.paper.table import ROWS, Column, Table, tables

Verdict = Literal["holds", "level", "does not hold"]

VERDICTS: tuple[Verdict, ...] = ("holds", "level", "does not hold")

DECIDES = 0.3
"""Points by which one method must be ahead of another at a single seed; below that, another seed may say otherwise."""


class Claim(NamedTuple):
    """That in each pair the first method is better than the second."""

    words: str
    pairs: tuple[tuple[str, str], ...]
    mixed: bool = False
    """Whether it is about clients with different networks and bit-widths."""


CLAIMS = (
    Claim("QuPeD in full precision beats FedAvg", (("quped", "fedavg"),)),
    Claim("QuPeD in full precision beats local training", (("quped", "local"),)),
    Claim("QuPeD at 2 bits beats local training at 2 bits", (("quped-2bit", "local-2bit"),)),
    Claim("QuPeD at 1 bit beats local training at 1 bit", (("quped-1bit", "local-1bit"),)),
    Claim(
        "Updates of the centers help, most of all at 1 bit",
        (("quped-1bit", "quped-1bit-fixed"), ("quped-2bit", "quped-2bit-fixed")),
    ),
    Claim("QuPeD beats QuPeL at equal bits", (("quped-2bit", "qupel-2bit"), ("quped-1bit", "qupel-1bit"))),
    Claim("Collaboration helps where networks and bit-widths differ", (("quped", "local"),), mixed=True),
    Claim("QuPeD in full precision beats pFedMe", (("quped", "pfedme"),)),
    Claim("QuPeD in full precision beats Per-FedAvg", (("quped", "perfedavg"),)),
    Claim("QuPeD in full precision beats mutual learning", (("quped", "fml"),)),
    Claim("One network at 1 bit: learned centers beat ProxQuant", (("centers-1bit", "proxquant-1bit"),)),
    Claim("One network at 1 bit: learned centers beat BinaryRelax", (("centers-1bit", "binaryrelax-1bit"),)),
    Claim(
        "Not the paper's: quped+ beats QuPeD",
        (("quped+-2bit", "quped-2bit"), ("quped+-1bit", "quped-1bit")),
    ),
    Claim(
        "Not the paper's: with lambda tuned, 2 bits are better",
        (("quped-2bit-tuned", "quped-2bit"), ("local-2bit-tuned", "local-2bit")),
    ),
    Claim(
        "Not the paper's: with lambda tuned, QuPeD beats local training", (("quped-2bit-tuned", "local-2bit-tuned"),)
    ),
    Claim(
        "Not the paper's: first together, QuPeD is better",
        (("quped-together", "quped"), ("quped-2bit-together", "quped-2bit"), ("quped-1bit-together", "quped-1bit")),
    ),
    Claim(
        "Not the paper's: first together, QuPeD in full precision beats its peers",
        tuple(("quped-together", peer) for peer in ("perfedavg", "fml", "pfedme", "fedavg")),
    ),
    Claim(
        "Not the paper's: quped+ beats local training with the same gradient, local+",
        (("quped+-2bit", "local+-2bit"), ("quped+-1bit", "local+-1bit")),
    ),
    Claim(
        "Not the paper's: with that gradient, Algorithm 1 + beats the other ways to 1 bit",
        tuple(("centers+-1bit", f"{peer}-1bit") for peer in ("centers", "proxquant", "binaryrelax")),
    ),
)


class Evidence(NamedTuple):
    """Two methods in a column of a table, run at the same seeds and of equal length."""

    column: Column
    better: str
    worse: str
    epochs: str
    """Which part of the paper's epochs, of shortened runs."""
    seeds: list[int]
    differences: list[float]
    """At each seed, in points of test accuracy."""
    paper: float | None

    @property
    def mean(self) -> float:
        """Over seeds."""
        return float(np.mean(self.differences))

    @property
    def verdict(self) -> Verdict:
        """Whether one is ahead at every seed; at a single one, by as much as decides."""
        enough = DECIDES if len(self.differences) == 1 else 0.0
        if min(self.differences) > enough:
            return "holds"
        return "does not hold" if max(self.differences) < -enough else "level"

    def where(self, claim: Claim) -> str:
        """Return the column, of shortened runs their length, and of a claim with several pairs which one it is."""
        part = ""
        if len(claim.pairs) > 1:
            row, peer = ROWS[self.better], ROWS[self.worse]
            widths = {ROWS[worse].bits for _, worse in claim.pairs}
            part = f", {peer.title}" if len(widths) == 1 else f", {BITS[bits(row.bits)]}"
        return f"{self.column.label}{part}{self.epochs}"

    def texts(self, claim: Claim) -> tuple[str, ...]:
        """Return what a table says of it."""
        spread = f" ± {np.std(self.differences, ddof=1):.2f}" if len(self.differences) > 1 else ""
        paper = "" if self.paper is None else f"{self.paper:+.2f}"
        return self.where(claim), f"{self.mean:+.2f}{spread}", str(len(self.seeds)), paper, self.verdict

    def values(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            **{"column": self.column.label, "better": self.better, "worse": self.worse, "epochs": self.epochs.strip()},
            "differences": dict(zip(self.seeds, (round(d, 4) for d in self.differences), strict=True)),
            **{"mean": round(self.mean, 4), "paper": self.paper, "verdict": self.verdict},
        }


def evidence(claim: Claim, folder: Path) -> Iterator[Evidence]:
    """Yield what the records in a folder say of a claim: full runs, or else the longest of which there are both."""
    for table in tables().values():
        for column in table.columns:
            if bool(column.clients) and all(group.bits is not None for group in column.clients) != claim.mixed:
                continue
            for better, worse in claim.pairs:
                if better in table.methods and worse in table.methods:
                    yield from compared(table, column, better, worse, folder)


def compared(table: Table, column: Column, better: str, worse: str, folder: Path) -> Iterator[Evidence]:
    """Yield the comparison of two methods, if both were run at one length."""
    runs = [recorded(column, method, folder) for method in (better, worse)]
    for epochs in sorted(runs[0].keys() & runs[1].keys(), key=lambda n: float("-inf") if n is None else -n):
        a, b = (
            {result["seed"]: result for result in results(table, column, method, epochs, there[epochs], folder)}
            for method, there in zip((better, worse), runs, strict=True)
        )
        if seeds := [seed for seed in sorted(a.keys() & b.keys()) if made_from(a[seed]) == made_from(b[seed])]:
            differences = [100 * (a[seed]["accuracy"]["mean"] - b[seed]["accuracy"]["mean"]) for seed in seeds]
            theirs = FIGURES[table.name][column.name]
            known = better in theirs and worse in theirs
            paper = round(theirs[better].mean - theirs[worse].mean, 2) if known else None
            yield Evidence(column, better, worse, length(a[seeds[0]]), seeds, differences, paper)
            return


HEADER = ("Where", "Difference", "Seeds", "Paper", "The claim")

Known = list[tuple[Claim, list[Evidence]]]
"""The claims that there are records about, each with what they say of it."""


def known(folder: Path) -> Known:
    """Return what the records in a folder say of the claims."""
    found = ((claim, list(evidence(claim, folder))) for claim in CLAIMS)
    return [(claim, some) for claim, some in found if some]


def markdown(found: Known) -> str:
    """Return the claims as a table: where each has which verdict."""
    lines: list[tuple[str, ...]] = [("Claim", "It holds", "Level", "It does not hold"), ("---",) * 4]
    for claim, some in found:
        cells: dict[str, list[str]] = {verdict: [] for verdict in VERDICTS}
        for where, difference, _, paper, verdict in (e.texts(claim) for e in some):
            cells[verdict].append(f"{where} {difference}" + (f" ({paper})" if paper else ""))
        lines.append((claim.words, *("<br>".join(cell) for cell in cells.values())))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def values(found: Known) -> list[dict[str, Any]]:
    """Return the claims, each with its evidence, as plain values."""
    return [{"claim": claim.words, "evidence": [e.values() for e in some]} for claim, some in found]
