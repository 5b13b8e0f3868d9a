"""The paper's tables as files: `tables/*.toml`. A cell of a table, with a seed, is an experiment."""

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated, Any, NamedTuple, cast

from pydantic import Field

from quped.algorithms import ALGORITHMS, FULL_PRECISION
from quped.errors import InvalidValueError, check, did_you_mean
from quped.experiments.schema import Data, Experiment, NetworkChoice, Section, validate
from quped.experiments.train import Recipe
from quped.records import plain

FOLDER = Path(__file__).parent / "tables"


class Row(NamedTuple):
    """A method as the tables list it."""

    title: str
    algorithm: str
    bits: int
    cost: float
    """Of a step, in steps of FedAvg; to guess how long a run takes."""
    quantization: Mapping[str, bool] = {}
    """What differs from the paper's Algorithm 1."""
    tuned: bool = False
    """Whether lambda(t) is one chosen on validation samples, not the paper's."""
    warmup_epochs: bool = False
    """Whether clients have one model in the epochs that the table names."""


STRAIGHT = {"straight_through": True}

ROWS = {
    "fedavg": Row("FedAvg", "fedavg", 32, 1),
    "local": Row("Local training", "local", 32, 1),
    "local-2bit": Row("Local training", "local", 2, 2.2),
    "local-1bit": Row("Local training", "local", 1, 2.2),
    "quped": Row("QuPeD", "quped", 32, 2.6),
    "quped-2bit": Row("QuPeD", "quped", 2, 3.8),
    "quped-1bit": Row("QuPeD", "quped", 1, 3.8),
    "quped-2bit-fixed": Row("QuPeD, centers fixed", "quped", 2, 3, {"update_centers": False}),
    "quped-1bit-fixed": Row("QuPeD, centers fixed", "quped", 1, 3, {"update_centers": False}),
    "local+-2bit": Row("Local training +", "local", 2, 2.3, STRAIGHT),
    "local+-1bit": Row("Local training +", "local", 1, 2.3, STRAIGHT),
    "quped+-2bit": Row("QuPeD +", "quped", 2, 3.9, STRAIGHT),
    "quped+-1bit": Row("QuPeD +", "quped", 1, 3.9, STRAIGHT),
    "local-2bit-tuned": Row("Local training, lambda tuned", "local", 2, 2.2, tuned=True),
    "quped-2bit-tuned": Row("QuPeD, lambda tuned", "quped", 2, 3.8, tuned=True),
    "quped-together": Row("QuPeD, first together", "quped", 32, 2, warmup_epochs=True),
    "quped-2bit-together": Row("QuPeD, first together", "quped", 2, 2.7, warmup_epochs=True),
    "quped-1bit-together": Row("QuPeD, first together", "quped", 1, 2.7, warmup_epochs=True),
    "qupel-2bit": Row("QuPeL", "qupel", 2, 2.3),
    "qupel-1bit": Row("QuPeL", "qupel", 1, 2.3),
    "pfedme": Row("pFedMe", "pfedme", 32, 5.5),
    "perfedavg": Row("Per-FedAvg", "perfedavg", 32, 2.1),
    "fml": Row("Federated Mutual Learning", "fml", 32, 2.3),
    "float": Row("Full precision", "float", 32, 1),
    "proxquant-1bit": Row("ProxQuant", "proxquant", 1, 1),
    "binaryrelax-1bit": Row("BinaryRelax", "binaryrelax", 1, 1),
    "centers-1bit": Row("Algorithm 1", "centers", 1, 2),
    "centers-2bit": Row("Algorithm 1", "centers", 2, 2),
    "centers+-1bit": Row("Algorithm 1 +", "centers+", 1, 2),
    "centers+-2bit": Row("Algorithm 1 +", "centers+", 2, 2),
}
"""By the name that the command line knows them by. Those with a +, tuned or together are not the paper's."""


class Clients(Section):
    """Clients with one network. Without `bits`, a method's own bit-width is theirs."""

    count: int = Field(ge=1)
    model: NetworkChoice
    bits: int | None = None


class Column(Section):
    """A setting: data, clients, and what differs from the rest of the table; or the recipe of a single network."""

    name: str
    title: str
    short: str | None = None
    """What it is called beside columns of other tables, if not by its title."""
    recipe: dict[str, Any] = Field(default={})
    """How a network is trained on one machine: the fields of a `Recipe`. Then all that follows is not needed."""
    data: Data | None = None
    clients: tuple[Clients, ...] = ()
    global_model: NetworkChoice | None = None
    training: dict[str, Any] = Field(default={})
    lr: dict[str, float] = Field(default={})
    """Learning rates of single algorithms."""
    algorithms: dict[str, dict[str, Any]] = Field(default={})
    """Hyperparameters that differ from those of the table, by algorithm."""
    lam: dict[str, Any] = Field(default={})

    @property
    def label(self) -> str:
        """Its name beside columns of other tables."""
        return self.short or self.title


class Table(Section):
    """A table of the paper."""

    name: str
    title: str
    source: str
    """Where in the paper it stands."""
    methods: tuple[Annotated[str, Field(pattern=f"^({'|'.join(map(re.escape, ROWS))})$")], ...]
    training: dict[str, Any] = Field(default={})
    lam: dict[str, Any] = Field(default={})
    """lambda(t) by bit-width."""
    tuned_lam: dict[str, Any] = Field(default={})
    """lambda(t) by bit-width of the rows that are tuned."""
    warmup_epochs: float = 0.0
    """How many epochs the clients of rows with `warmup_epochs` have one model."""
    algorithms: dict[str, dict[str, Any]] = Field(default={})
    """Hyperparameters that differ from the defaults, by algorithm."""
    columns: tuple[Column, ...]

    def cells(
        self,
        methods: Sequence[str] | None = None,
        columns: Sequence[str] | None = None,
        seeds: int = 3,
        epochs: int | None = None,
    ) -> list["Cell"]:
        """Return the runs of this table, or of a part of it, seed by seed; with `epochs`, shortened to that."""
        check(seeds >= 1, "number of seeds", "at least 1", seeds)
        check(epochs is None or epochs >= 1, "number of epochs", "at least 1", epochs)
        rows = chosen("method", methods, self.methods, self.name)
        names = chosen("column", columns, [column.name for column in self.columns], self.name)
        return [
            Cell(self, column, method, seed, epochs)
            for seed in range(seeds)
            for column in self.columns
            if column.name in names
            for method in rows
            if seed == 0 or ROWS[method].algorithm != "float"  # which is the same for every seed
        ]


@dataclass(frozen=True)
class Cell:
    """One run: a method in a column of a table, with a seed."""

    table: Table
    column: Column
    method: str
    seed: int
    epochs: int | None = None
    """If the run is shortened: to so many."""

    @property
    def path(self) -> Path:
        """Where its result is kept, below the folder of all results."""
        folder = Path(self.table.name) / self.column.name / self.method
        return folder / (f"epochs-{self.epochs}" if self.shortened else "") / f"seed-{self.seed}.json"

    @property
    def full_epochs(self) -> int:
        """The epochs of the paper."""
        return int({**self.table.training, **self.column.training, **self.column.recipe}["epochs"])

    @property
    def shortened(self) -> bool:
        """Whether the run has fewer epochs than the paper's."""
        trains = ROWS[self.method].algorithm != "float"
        return trains and self.epochs is not None and self.epochs < self.full_epochs

    @cached_property
    def recipe(self) -> Recipe | None:
        """The run of a single network; None if it is a federation."""
        row, options = ROWS[self.method], self.column.recipe
        if not options:
            return None
        if row.algorithm == "float":  # the network that the others start from, as it is
            options = {**options, "epochs": 0, "finetune_epochs": 0}
        elif self.shortened:
            options = shorten(options, self.full_epochs, self.epochs or self.full_epochs)
        return Recipe(**options, method=row.algorithm, bits=row.bits, seed=self.seed)

    @cached_property
    def config(self) -> dict[str, Any]:
        """Everything that the result depends on but the seed, as plain values: defaults, too, since they may change."""
        if self.recipe is not None:
            return {**asdict(self.recipe), "seed": 0}
        (method,) = self.experiment.methods
        algorithm = {"name": method.algorithm.name, **asdict(cast(Any, method.algorithm))}
        values = plain({**self.experiment.model_dump(), "algorithm": algorithm})
        return dict(json.loads(json.dumps(values)))  # as a file gives it back

    @cached_property
    def experiment(self) -> Experiment:
        """The run of a federation, as an experiment file would tell it."""
        row, column = ROWS[self.method], self.column
        kind = ALGORITHMS[row.algorithm]
        options: dict[str, Any] = {"name": row.algorithm}
        for level in (self.table, column):
            options |= level.algorithms.get(row.algorithm, {})
        if kind.quantizes:
            lam = self.table.tuned_lam if row.tuned else column.lam or self.table.lam
            options["quantization"] = {"lam": lam, **options.get("quantization", {}), **row.quantization}
        if row.warmup_epochs:
            options["warmup_epochs"] = self.table.warmup_epochs
        clients = [
            {"count": group.count, "model": group.model.model_dump(), "bits": group.bits or row.bits}
            for group in column.clients
        ]
        quantizes = any(group["bits"] != FULL_PRECISION for group in clients)
        training = {**self.table.training, **column.training}
        if row.algorithm in column.lr:
            training["lr"] = column.lr[row.algorithm]
        if not quantizes:
            training["finetune_epochs"] = 0
        if self.shortened:
            training = shorten(training, self.full_epochs, self.epochs or self.full_epochs)
        values: dict[str, Any] = {
            "data": None if column.data is None else column.data.model_dump(),
            "clients": clients,
            "training": training,
            "algorithm": options,
        }
        # Where a client's network and the global one cannot differ, it is the client's.
        if column.global_model is not None and kind.global_network != "same":
            values["global_model"] = column.global_model.model_dump()
        return validate(values, f"{self.table.name}.toml")


def shorten(training: dict[str, Any], full: int, epochs: int) -> dict[str, Any]:
    """Return training for fewer epochs, with schedules that end where those of the full one end."""
    finetune = training.get("finetune_epochs", 0)
    short = {
        **training,
        "epochs": epochs,
        "finetune_epochs": max(1, round(finetune * epochs / full)) if finetune and epochs > 1 else 0,
        "stretch": full / epochs,
    }
    if "evaluate_every" in training:
        short["evaluate_every"] = max(1, round(training["evaluate_every"] * epochs / full))
    return short


def chosen(what: str, wanted: Sequence[str] | None, known: Sequence[str], table: str) -> list[str]:
    """Return those that were asked for, in the order of the table; all if none was."""
    for name in wanted or ():
        if name not in known:
            raise InvalidValueError(f"The table {table} has no {what} '{name}'. {did_you_mean(name, known)}")
    return [name for name in known if wanted is None or name in wanted]


@cache
def tables() -> dict[str, Table]:
    """Return all tables by name."""
    found = {}
    for path in sorted(FOLDER.glob("*.toml")):
        found[path.stem] = Table.model_validate({"name": path.stem, **tomllib.loads(path.read_text())})
    return found


def find_table(name: str) -> Table:
    """Return a table by its name."""
    known = tables()
    if name not in known:
        raise InvalidValueError(f"There is no table '{name}'. {did_you_mean(name, known)}")
    return known[name]
