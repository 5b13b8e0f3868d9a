"""Our numbers beside the paper's: as values and as Markdown."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from quped._evaluate import hurt, over_clients
from quped.algorithms import FULL_PRECISION
from quped.paper.records import NETWORK, Record, find_record, inputs_id
from quped.paper.runs import PaperRun
from quped.paper.table import Column, PaperNumber, Row, Table

HEADER = (
    "Method",
    "Bits",
    "Measured",
    "Worst tenth",
    "Below local",
    "Below FedAvg",
    "w",
    "New clients",
    "Seeds",
    "Paper",
    "Difference",
)

BITS = {"FP": "full precision", "2": "2 bits", "1": "1 bit", "mixed": "mixed bits"}
"""The bits of a line in words."""


def bits_label(bits: int) -> str:
    """Return a bit-width as a line has it."""
    return "FP" if bits == FULL_PRECISION else str(bits)


class Line(NamedTuple):
    """A row in a column, with its records."""

    row: Row
    bits: str
    records: list[Record]
    """One for each seed, all of equal length."""
    paper: PaperNumber | None
    """None for a row that the paper does not have."""
    below_local: float | None = None
    """The share of clients, at all seeds, that local training with the same bits serves better; None if unknown."""
    below_fedavg: float | None = None
    """The share of clients that FedAvg serves better."""

    @property
    def accuracies(self) -> list[float]:
        """Test accuracy in percent after the last round, mean over clients, for each seed."""
        return [100 * float(record[self.row.reads]["mean"]) for record in self.records]

    @property
    def worst_tenth(self) -> float | None:
        """The same of the worst tenth of clients, mean over seeds; None for a single network."""
        tenths = [over_clients(clients)["worst_tenth"] for clients in map(self.clients, self.records)]
        return None if self.clients(self.records[0]).keys() == {NETWORK} else 100 * float(np.mean(tenths))

    @property
    def global_accuracy(self) -> float | None:
        """The same of the global model, mean over seeds; None if the records tell of none."""
        found = (record.get(f"global_{self.row.reads}") for record in self.records)
        known = [value for value in found if value is not None]
        return 100 * float(np.mean(known)) if len(known) == len(self.records) else None

    @property
    def newcomers(self) -> float | None:
        """The same of clients that came after the run, mean over seeds; None if there are none."""
        known = [
            r["newcomers"][self.row.reads]["mean"] for r in self.records if self.row.reads in r.get("newcomers", {})
        ]
        return 100 * float(np.mean(known)) if len(known) == len(self.records) else None

    def clients(self, record: Record) -> Mapping[str, float]:
        """Return the accuracy of each client in a record."""
        return accuracy_of_clients(self.row, record)

    @property
    def mean(self) -> float:
        """Mean over seeds."""
        return float(np.mean(self.accuracies))

    @property
    def std(self) -> float | None:
        """Standard deviation over seeds; None for a single one."""
        return float(np.std(self.accuracies, ddof=1)) if len(self.records) > 1 else None

    @property
    def title(self) -> str:
        """The row's title, with the length of a shortened run."""
        return self.row.label + length(self.records[0])

    @property
    def difference(self) -> float | None:
        """How far the mean is above the paper's."""
        return None if self.paper is None else self.mean - self.paper.mean

    def texts(self) -> tuple[str, ...]:
        """Return the cells of the line."""
        return (
            self.title,
            self.bits,
            plus_minus(self.mean, self.std),
            text("{:.2f}", self.worst_tenth),
            text("{:.0%}", self.below_local),
            text("{:.0%}", self.below_fedavg),
            text("{:.2f}", self.global_accuracy),
            text("{:.2f}", self.newcomers),
            str(len(self.records)),
            "" if self.paper is None else plus_minus(*self.paper),
            text("{:+.2f}", self.difference),
        )

    def values(self) -> dict[str, Any]:
        """Return the line as plain values."""
        first = self.records[0]
        seeds = [record["seed"] for record in self.records]
        return {
            "method": self.row.name,
            "bits": self.bits,
            "mean": round(self.mean, 4),
            "seeds": len(seeds),
            "accuracies": {seed: round(value, 4) for seed, value in zip(seeds, self.accuracies, strict=True)},
            "std": rounded(self.std),
            "worst_tenth": rounded(self.worst_tenth),
            "below_local": rounded(self.below_local),
            "below_fedavg": rounded(self.below_fedavg),
            "global_accuracy": rounded(self.global_accuracy),
            "newcomers": rounded(self.newcomers),
            "paper": None if self.paper is None else self.paper._asdict(),
            "difference": rounded(self.difference),
            "shortened": first["shortened"],
            "epochs": first["epochs"],
            "full_epochs": first["full_epochs"],
            "seconds": [record["seconds"] for record in self.records],
        }


Comparison = list[tuple[Column, list[Line]]]
"""The columns of a table that have records, each with its lines."""


def text(form: str, value: float | None) -> str:
    """Return a number in a form; nothing if there is none."""
    return "" if value is None else form.format(value)


def rounded(value: float | None) -> float | None:
    """Return a number as the files of tables have it."""
    return None if value is None else round(value, 4)


def accuracy_of_clients(row: Row, record: Record) -> Mapping[str, float]:
    """Return the accuracy of each client that a row reads in a record, or that of a single network."""
    accuracy = record[row.reads]
    clients: Mapping[str, float] = accuracy.get("per_client", {NETWORK: accuracy["mean"]})
    return clients


def length(record: Record) -> str:
    """Return the length of a shortened run in words, and nothing for a full one."""
    return f" [{record['epochs']} of {record['full_epochs']} epochs]" if record["shortened"] else ""


def plus_minus(mean: float, std: float | None) -> str:
    """Return an accuracy as a table shows it."""
    return f"{mean:.2f}" if std is None else f"{mean:.2f} ± {std:.2f}"


def compare(table: Table, folder: Path, epochs: int | None = None) -> Comparison:
    """Return the records of a table beside the paper's numbers.

    With `epochs`, only runs of this length. Otherwise full runs; a row without any has a line for each length.
    """
    columns = ((column, lines(table, column, folder, epochs)) for column in table.columns.values())
    return [(column, present) for column, present in columns if present]


def lines(table: Table, column: Column, folder: Path, epochs: int | None) -> list[Line]:
    """Return the rows of a column that have records."""
    present = []
    for row in table.rows.values():
        seeds = recorded_seeds(column, row, folder)
        if epochs is None:
            lengths = [None, *sorted((n for n in seeds if n is not None), reverse=True)]
        else:
            lengths = [epochs if PaperRun(table, column, row, 0, epochs).shortened else None]
        for n in lengths:
            if records := find_records(table, column, row, n, seeds.get(n, set()), folder):
                widths = {bits_label(group.bits or row.bits) for group in column.clients} or {bits_label(row.bits)}
                bits = widths.pop() if len(widths) == 1 else "mixed"
                present.append(Line(row, bits, records, row.paper.get(column.name)))
                if n is None:
                    break
    return [
        line._replace(
            below_local=share_below(line, [o for o in present if o.row.is_plain("local") and o.bits == line.bits]),
            below_fedavg=share_below(line, [o for o in present if o.row.is_plain("fedavg")]),
        )
        for line in present
    ]


def share_below(line: Line, references: Sequence[Line]) -> float | None:
    """Return the share of a line's clients that are hurt, compared with a reference at equal seeds and lengths.

    None if there is nothing to compare, or if no record tells the number of test samples.
    """
    verdicts = [
        is_hurt
        for other in references
        if other.row.name != line.row.name and length(other.records[0]) == length(line.records[0])
        for mine, theirs in pairs(line.records, other.records)
        for is_hurt in hurt(line.clients(mine), other.clients(theirs), evaluated_samples(mine, theirs)).values()
    ]
    return float(np.mean(verdicts)) if verdicts else None


def evaluated_samples(*records: Record) -> Mapping[str, int]:
    """Return the test samples of each client in runs with equal seeds and inputs, if one of the records tells them."""
    return next((record["test_samples"] for record in records if "test_samples" in record), {})


def pairs(first: Sequence[Record], second: Sequence[Record]) -> list[tuple[Record, Record]]:
    """Return the records with equal seeds and inputs."""
    by_seed = {record["seed"]: record for record in second}
    both = [(record, by_seed[record["seed"]]) for record in first if record["seed"] in by_seed]
    return [(a, b) for a, b in both if inputs_id(a) == inputs_id(b)]


def recorded_seeds(column: Column, row: Row, folder: Path) -> dict[int | None, set[int]]:
    """Return the seeds with a record under any table, by the epochs of a shortened run; None for full ones."""
    seeds: dict[int | None, set[int]] = {}
    for place in folder.glob(f"*/{column.name}/{row.recorded_as}"):
        for path in [*place.glob("seed-*.json"), *place.glob("epochs-*/seed-*.json")]:
            epochs = None if path.parent == place else int(path.parent.name.removeprefix("epochs-"))
            seeds.setdefault(epochs, set()).add(int(path.stem.removeprefix("seed-")))
    return seeds


def find_records(
    table: Table, column: Column, row: Row, epochs: int | None, seeds: set[int], folder: Path
) -> list[Record]:
    """Return the records of a row in a column that may be averaged; `epochs` is None for full runs."""
    runs = [PaperRun(table, column, row, seed, epochs) for seed in sorted(seeds)]
    found = [record for run in runs if (record := find_record(run, folder)) is not None]
    return with_equal_inputs([record for record in found if row.reads in record])


def with_equal_inputs(records: Sequence[Record]) -> list[Record]:
    """Return the records with the same data or weights, of several such groups the largest."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(inputs_id(record), []).append(record)
    return max(groups.values(), key=len, default=[])


def values(table: Table, comparison: Comparison) -> dict[str, Any]:
    """Return a table as plain values."""
    columns: dict[str, list[dict[str, Any]]] = {name: [] for name in table.columns}
    columns |= {column.name: [line.values() for line in present] for column, present in comparison}
    return {"table": table.name, "title": table.title, "source": table.source, "columns": columns}


def markdown(comparison: Comparison) -> str:
    """Return a table as Markdown; nothing without records."""
    if not comparison:
        return ""
    parts: list[str] = []
    for column, present in comparison:
        header, *texts = cells(present)
        parts += [f"**{column.title}**", markdown_table([header, ["---"] * 2 + ["---:"] * (len(header) - 2), *texts])]
    runs = {  # several rows may read one record
        (line.row.recorded_as, column.name, record["seed"], record["epochs"]): record
        for column, present in comparison
        for line in present
        for record in line.records
    }
    parts.append(provenance(list(runs.values())))
    return "\n\n".join(parts)


def cells(lines: Sequence[Line]) -> list[list[str]]:
    """Return the header and the lines of a column, without what no line has."""
    texts = [line.texts() for line in lines]
    kept = [i for i in range(len(HEADER)) if any(line[i] for line in texts)]
    return [[line[i] for i in kept] for line in (HEADER, *texts)]


def markdown_table(lines: Sequence[Sequence[str]]) -> str:
    """Return cells as a table in Markdown."""
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def provenance(records: Sequence[Record]) -> str:
    """Return when, on which inputs, with which versions and in what time numbers were computed."""
    dates = sorted({record["date"] for record in records})
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    versions = sorted({", ".join(f"{k} {v}" for k, v in record["versions"].items()) for record in records})
    hours = sum(record["seconds"] for record in records) / 3600
    runs = f"{len(records)} runs" if len(records) > 1 else "1 run"
    time = f"{hours:.1f} hours" if hours >= 1 else f"{60 * hours:.0f} minutes"
    samples = sorted({record["samples"] for record in records if "samples" in record})
    trained = f" {' and '.join(f'{n:,}' for n in samples)} training samples;" if samples else ""
    weights = sorted({record["weights"][:12] for record in records if "weights" in record})
    started = f" initial weights with SHA-256 {' and '.join(weights)};" if weights else ""
    return f"{runs}, {time} of computing, {when};{trained}{started} {'; '.join(versions)}."
