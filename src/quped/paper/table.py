"""The paper's tables as files. A row is one entry of a table's file, or of `rows.toml` if several tables share it."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import ValidationError

from quped.errors import InvalidValueError, did_you_mean
from quped.experiments.schema import Data, NetworkChoice, Newcomers, Section, describe, read_toml

FOLDER = Path(__file__).parent / "tables"
SHARED_ROWS = Path(__file__).parent / "rows.toml"

Entry = dict[str, Any]


class PaperNumber(NamedTuple):
    """An accuracy that the paper reports, in percent: mean and standard deviation over three runs."""

    mean: float
    std: float | None = None
    """None where the paper gives none."""


class Options(Section):
    """Options of a run, as far as they differ from the defaults."""

    algorithm: Mapping[str, Any] = {}
    """Hyperparameters. A row also has the algorithm's `name`; for a single network, that of a method of `train`."""
    quantization: Mapping[str, Any] = {}
    """Hyperparameters of Algorithm 1, for algorithms that quantize."""
    training: Mapping[str, Any] = {}


class Row(Options):
    """A method as a table lists it."""

    name: str
    title: str
    bits: int
    per_channel: bool = False
    """Whether every output channel of a quantized layer has centers of its own."""
    cost: float
    """Of a step, in steps of FedAvg: for estimates of the time that is left."""
    color: str
    line: str = "-"
    """Of the curve, as Matplotlib writes it."""
    highlight: bool = False
    """Whether the row stands out in pictures and terminals."""
    flagship: bool = False
    """Whether the summary shows this row at its bits, whichever other is better."""
    ours: bool = False
    """Whether the paper does not have this row."""
    seeds: int | None = None
    """How many seeds there are, for a row that does not depend on them."""
    record_of: str | None = None
    """The row whose records this one reads: then it has no runs of its own."""
    reads: Literal["accuracy", "accuracy_own_classes"] = "accuracy"
    """What it reads in a record."""
    paper: Mapping[str, PaperNumber] = {}
    """The paper's numbers by column."""

    @property
    def label(self) -> str:
        """The title, marked if the row is ours."""
        return f"{self.title} (ours)" if self.ours else self.title

    @property
    def recorded_as(self) -> str:
        """The row that its records name."""
        return self.record_of or self.name

    def is_plain(self, algorithm: str) -> bool:
        """Say whether the row is this algorithm as the table has it, without options of its own."""
        return self.algorithm == {"name": algorithm} and not self.quantization and self.reads == "accuracy"


class Clients(Section):
    """Clients with one network. Without `bits`, they have the bit-width of the row."""

    count: int
    model: NetworkChoice
    bits: int | None = None


class Setting(Options):
    """Options of a table or a column."""

    by_algorithm: Mapping[str, Options] = {}
    """Options for the rows with an algorithm, by its name."""


class Column(Setting):
    """A setting: data and clients of a federation, or the network and data of a single machine."""

    name: str
    title: str
    short: str | None = None
    """Its name beside columns of other tables, if not the title."""
    data: Data | None = None
    clients: tuple[Clients, ...] = ()
    global_model: NetworkChoice | None = None
    newcomers: Newcomers | None = None
    recipe: Mapping[str, Any] = {}
    """For a single network: fields of a `Recipe`. Then there are no clients."""
    samples: int = 50_000
    """Training samples, for estimates of the time that is left."""
    exact: bool = False
    """Whether the records are of just so many samples, for a data set that is stored in several sizes."""
    cost: float = 1.0
    """Of a step, beside one of CNN1 with the bits of the row: for the same estimates."""

    @property
    def label(self) -> str:
        """Its name beside columns of other tables."""
        return self.short or self.title

    @property
    def mixed(self) -> bool:
        """Whether clients have networks and bit-widths of their own, whichever the row."""
        return any(group.bits is not None for group in self.clients)


class Table(Setting):
    """A table of the paper."""

    name: str
    title: str
    source: str
    """Its place in the paper, or what it adds."""
    grid: tuple[float, ...] = (0.05, 0.075, 0.1, 0.125, 0.15, 0.2)
    """The learning rates to choose from; by default the paper's."""
    rows: Mapping[str, Row]
    columns: Mapping[str, Column]

    @property
    def needs(self) -> list[str]:
        """The data sets to fetch, and the option that runs cannot do without."""
        columns = self.columns.values()
        data = {column.recipe["data"] if column.data is None else column.data.name for column in columns}
        return [*sorted(data), *(["--warm-start FOLDER"] if any(column.recipe for column in columns) else [])]


def load_table(path: Path) -> Table:
    """Read a table from its file."""
    try:
        values = read_toml(path)
        rows = inherit(values.get("rows", {}), shared_rows())
        columns = inherit(values.get("columns", {}))
        return Table.model_validate({"name": path.stem, **values, "rows": rows, "columns": columns})
    except ValidationError as error:
        raise InvalidValueError("\n  ".join([f"{path.name} is not a table:", *describe(error)])) from error


@cache
def shared_rows() -> dict[str, Entry]:
    """Return the rows that tables share."""
    return inherit(read_toml(SHARED_ROWS))


def inherit(entries: Mapping[str, Entry], known: Mapping[str, Entry] = {}) -> dict[str, Entry]:
    """Return entries with their names, each completed by the one that it inherits from.

    This is the entry that `from` names, which is known or stands above, or else the known one with the same name.
    """
    above = dict(known)
    if not isinstance(entries, dict) or not all(isinstance(entry, dict) for entry in entries.values()):
        raise InvalidValueError("The rows and the columns of a table must be tables themselves, each with its name.")
    for name, entry in entries.items():
        parent = entry.get("from", name)
        if "from" in entry and parent not in above:
            raise InvalidValueError(f"'{name}' inherits from '{parent}', which does not stand above it.")
        above[name] = {**merge(above.get(parent, {}), entry), "name": name}
    return {name: above[name] for name in entries}


def merge(parent: Entry, entry: Entry) -> Entry:
    """Return an entry completed by its parent. The paper's numbers are not inherited."""
    merged = {key: value for key, value in parent.items() if key != "paper"}
    for key, value in entry.items():
        both = isinstance(value, dict) and key in merged
        merged[key] = {**merged[key], **value} if both else value
    merged.pop("from", None)
    return merged


@cache
def tables() -> dict[str, Table]:
    """Return the paper's tables by name."""
    return {path.stem: load_table(path) for path in sorted(FOLDER.glob("*.toml"))}


def find_table(name: str) -> Table:
    """Return a table of the paper by its name, or another one by the path of its file."""
    if name.endswith(".toml") and Path(name).is_file():
        return load_table(Path(name))
    if name not in tables():
        raise InvalidValueError(f"There is no table '{name}'. {did_you_mean(name, tables())}")
    return tables()[name]
