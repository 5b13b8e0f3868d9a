"""Claims that one row is better than another, and whether the records agree: differences at equal seeds."""

import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from quped.experiments.schema import Section
from quped.paper.compare import BITS, bits_label, find_records, length, markdown_table, recorded_seeds
from quped.paper.records import inputs_id
from quped.paper.table import Column, Row, Table

FILE = Path(__file__).with_suffix(".toml")

Verdict = Literal["holds", "inconclusive", "fails"]

DECISIVE = 0.3
"""Points by which a row must be ahead at a single seed; with less, another seed may say otherwise."""


class Claim(Section):
    """That in each pair the first row is better than the second."""

    text: str
    pairs: tuple[tuple[str, str], ...]
    mixed: bool = False
    """Whether it is about clients with different networks and bit-widths."""


class Group(Section):
    """Claims about one topic."""

    title: str
    claims: tuple[Claim, ...]


class ClaimsFile(Section):
    """All claims."""

    groups: tuple[Group, ...]


@cache
def groups() -> tuple[Group, ...]:
    """Return all claims, by topic."""
    return ClaimsFile.model_validate(tomllib.loads(FILE.read_text())).groups


class Evidence(NamedTuple):
    """Two rows in a column of a table, run at the same seeds and of equal length."""

    column: Column
    better: Row
    worse: Row
    pair: str
    """The pair in words, if the claim has several."""
    epochs: str
    """The length of shortened runs, in words."""
    seeds: list[int]
    differences: list[float]
    """In points of test accuracy, at each seed."""
    paper: float | None

    @property
    def mean(self) -> float:
        """Mean over seeds."""
        return float(np.mean(self.differences))

    @property
    def verdict(self) -> Verdict:
        """A claim holds if all differences are positive, and fails if all are negative. One alone must be decisive."""
        enough = DECISIVE if len(self.differences) == 1 else 0.0
        if min(self.differences) > enough:
            return "holds"
        return "fails" if max(self.differences) < -enough else "inconclusive"

    @property
    def where(self) -> str:
        """The column, which pair of the claim it is, and the length of shortened runs."""
        return f"{self.column.label}{self.pair}{self.epochs}"

    def texts(self) -> tuple[str, ...]:
        """Return the cells of its line."""
        std = f" ± {np.std(self.differences, ddof=1):.2f}" if len(self.differences) > 1 else ""
        paper = "" if self.paper is None else f"{self.paper:+.2f}"
        return self.where, f"{self.mean:+.2f}{std}", str(len(self.seeds)), paper, self.verdict

    def values(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "column": self.column.label,
            "better": self.better.name,
            "worse": self.worse.name,
            "epochs": self.epochs.strip(),
            "differences": {s: round(d, 4) for s, d in zip(self.seeds, self.differences, strict=True)},
            "mean": round(self.mean, 4),
            "paper": self.paper,
            "verdict": self.verdict,
        }


def evidence(claim: Claim, tables: Iterable[Table], folder: Path) -> Iterator[Evidence]:
    """Yield the comparisons that the records in a folder allow."""
    for table in tables:
        rows = table.rows
        pairs = [(rows[better], rows[worse]) for better, worse in claim.pairs if {better, worse} <= rows.keys()]
        by_title = len({worse.title for _, worse in pairs}) > 1
        for column in table.columns.values():
            if column.mixed != claim.mixed:
                continue
            for better, worse in pairs:
                label = f", {worse.title if by_title else BITS[bits_label(worse.bits)]}" if len(pairs) > 1 else ""
                if (result := difference(table, column, better, worse, label, folder)) is not None:
                    yield result


def difference(table: Table, column: Column, better: Row, worse: Row, label: str, folder: Path) -> Evidence | None:
    """Compare two rows at equal seeds: full runs if there are both, or else the longest; None without common ones."""
    seeds_of = [recorded_seeds(column, row, folder) for row in (better, worse)]
    for epochs in sorted(seeds_of[0].keys() & seeds_of[1].keys(), key=lambda n: float("-inf") if n is None else -n):
        a, b = (
            {record["seed"]: record for record in find_records(table, column, row, epochs, seeds[epochs], folder)}
            for row, seeds in zip((better, worse), seeds_of, strict=True)
        )
        if seeds := [seed for seed in sorted(a.keys() & b.keys()) if inputs_id(a[seed]) == inputs_id(b[seed])]:
            differences = [100 * (a[seed]["accuracy"]["mean"] - b[seed]["accuracy"]["mean"]) for seed in seeds]
            known = column.name in better.paper and column.name in worse.paper
            paper = round(better.paper[column.name].mean - worse.paper[column.name].mean, 2) if known else None
            return Evidence(column, better, worse, label, length(a[seeds[0]]), seeds, differences, paper)
    return None


HEADER = ("Claim", "Where", "Difference", "Seeds", "Paper", "Verdict")

Findings = list[tuple[Group, list[tuple[Claim, list[Evidence]]]]]
"""The claims with evidence, by topic."""


def findings(tables: Iterable[Table], folder: Path) -> Findings:
    """Return the claims that the records in a folder say something about."""
    tables = list(tables)
    by_group: Findings = []
    for group in groups():
        claims = [(claim, list(evidence(claim, tables, folder))) for claim in group.claims]
        if known := [(claim, some) for claim, some in claims if some]:
            by_group.append((group, known))
    return by_group


def lines(claims: Iterable[tuple[Claim, list[Evidence]]]) -> list[tuple[str, ...]]:
    """Return the lines of a table of claims; a claim's text stands in the first of its lines."""
    return [("" if i else claim.text, *one.texts()) for claim, some in claims for i, one in enumerate(some)]


def markdown(findings: Findings) -> str:
    """Return the claims as Markdown, a table for each topic."""
    rule = ("---", "---", "---:", "---:", "---:", "---")
    parts = [
        part
        for group, claims in findings
        for part in (f"**{group.title}**", markdown_table([HEADER, rule, *lines(claims)]))
    ]
    return "\n\n".join(parts)


def values(findings: Findings) -> list[dict[str, Any]]:
    """Return the claims, each with its evidence, as plain values."""
    return [
        {"group": group.title, "claim": claim.text, "evidence": [one.values() for one in some]}
        for group, claims in findings
        for claim, some in claims
    ]
