"""Claims that one row is better than another, and whether the records agree: differences at equal seeds and clients."""

import math
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from quped._evaluate import binomial_error
from quped.experiments.schema import Section
from quped.paper.compare import (
    BITS,
    accuracy_of_clients,
    bits_label,
    evaluated_samples,
    find_records,
    length,
    markdown_table,
    pairs,
    recorded_seeds,
)
from quped.paper.records import NETWORK, Record
from quped.paper.table import Column, Row, Table

FILE = Path(__file__).with_suffix(".toml")

Verdict = Literal["holds", "inconclusive", "fails"]

DECISIVE = 2
"""Standard errors by which a mean difference must differ from 0."""


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
    error: float
    """The standard error of their mean, over clients and seeds; NaN if it is not known."""
    paper: float | None

    @property
    def mean(self) -> float:
        """Mean over seeds."""
        return float(np.mean(self.differences))

    @property
    def verdict(self) -> Verdict:
        """A claim holds if the mean difference is above 0 by more than two standard errors, and fails if below."""
        if abs(self.mean) > DECISIVE * self.error:
            return "holds" if self.mean > 0 else "fails"
        return "inconclusive"

    @property
    def seeds_disagree(self) -> bool:
        """Whether a seed alone has the other sign than the mean that decided."""
        return self.verdict != "inconclusive" and any(self.mean * one < 0 for one in self.differences)

    @property
    def where(self) -> str:
        """The column, which pair of the claim it is, and the length of shortened runs."""
        return f"{self.column.label}{self.pair}{self.epochs}"

    def texts(self) -> tuple[str, ...]:
        """Return the cells of its line."""
        error = "" if math.isnan(self.error) else f" ± {self.error:.2f}"
        paper = "" if self.paper is None else f"{self.paper:+.2f}"
        verdict = f"{self.verdict}, not at every seed" if self.seeds_disagree else self.verdict
        return self.where, f"{self.mean:+.2f}{error}", str(len(self.seeds)), paper, verdict

    def values(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "column": self.column.label,
            "better": self.better.name,
            "worse": self.worse.name,
            "epochs": self.epochs.strip(),
            "differences": {s: round(d, 4) for s, d in zip(self.seeds, self.differences, strict=True)},
            "mean": round(self.mean, 4),
            "standard_error": None if math.isnan(self.error) else round(self.error, 4),
            "paper": self.paper,
            "verdict": self.verdict,
            "seeds_disagree": self.seeds_disagree,
        }


def evidence(claim: Claim, tables: Iterable[Table], folder: Path) -> Iterator[Evidence]:
    """Yield the comparisons that the records in a folder allow."""
    for table in tables:
        rows = table.rows
        rows_of_pairs = [(rows[first], rows[second]) for first, second in claim.pairs if {first, second} <= rows.keys()]
        titles = Counter(worse.title for _, worse in rows_of_pairs)
        for column in table.columns.values():
            if column.mixed != claim.mixed:
                continue
            for better, worse in rows_of_pairs:
                words = [worse.title] if len(titles) > 1 else []
                words += [BITS[bits_label(worse.bits)]] if titles[worse.title] > 1 else []
                pair = "".join(f", {word}" for word in words)
                if (result := difference(table, column, better, worse, pair, folder)) is not None:
                    yield result


def difference(table: Table, column: Column, better: Row, worse: Row, label: str, folder: Path) -> Evidence | None:
    """Compare two rows at equal seeds: full runs if there are both, or else the longest; None without common ones."""
    seeds_of = [recorded_seeds(column, row, folder) for row in (better, worse)]
    for epochs in sorted(seeds_of[0].keys() & seeds_of[1].keys(), key=lambda n: float("-inf") if n is None else -n):
        a, b = (
            find_records(table, column, row, epochs, seeds[epochs], folder)
            for row, seeds in zip((better, worse), seeds_of, strict=True)
        )
        if both := pairs(a, b):
            known = column.name in better.paper and column.name in worse.paper
            return Evidence(
                column,
                better,
                worse,
                label,
                epochs=length(both[0][0]),
                seeds=[first["seed"] for first, _ in both],
                differences=[100 * (x[better.reads]["mean"] - y[worse.reads]["mean"]) for x, y in both],
                error=100 * standard_error(better, worse, both),
                paper=round(better.paper[column.name].mean - worse.paper[column.name].mean, 2) if known else None,
            )
    return None


def standard_error(better: Row, worse: Row, records: Sequence[tuple[Record, Record]]) -> float:
    """Return the standard error of the mean difference between two rows, paired over clients and seeds.

    For a single network it is that of its test samples, as if those of the two rows were others; NaN if unknown.
    """
    clients = [(accuracy_of_clients(better, a), accuracy_of_clients(worse, b)) for a, b in records]
    differences = [mine[name] - theirs[name] for mine, theirs in clients for name in mine.keys() & theirs.keys()]
    if any(mine.keys() != {NETWORK} for mine, _ in clients):
        return float(np.std(differences, ddof=1) / math.sqrt(len(differences))) if len(differences) > 1 else math.nan
    samples = [evaluated_samples(*pair).get(NETWORK) for pair in records]
    shares = [(pair, n) for pair, n in zip(clients, samples, strict=True) if n is not None]
    if len(shares) < len(clients):
        return math.nan
    variances = [binomial_error(one[NETWORK], n) ** 2 for pair, n in shares for one in pair]
    return math.sqrt(sum(variances)) / len(clients)


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
