"""The runs behind the paper's tables: which there are, and what each one trains."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from quped.algorithms import ALGORITHMS, FULL_PRECISION
from quped.errors import InvalidValueError, check, check_whole, did_you_mean
from quped.experiments.schema import Experiment, validate
from quped.experiments.train import Recipe
from quped.paper.table import Column, Options, Row, Table
from quped.records import plain
from quped.simulation.options import MOST


@dataclass(frozen=True)
class PaperRun:
    """A row in a column of a table, with a seed."""

    table: Table
    column: Column
    row: Row
    seed: int
    epochs: int | None = None
    """The length of a shortened run."""
    trial_lr: float | None = None
    """The learning rate of a trial, which is evaluated on validation samples; None for a run of the table."""

    @property
    def path(self) -> Path:
        """The file of its record, below the folder of all records."""
        folder = Path(self.table.name) / self.column.name / self.row.recorded_as
        if self.trial_lr is not None:
            folder /= f"grid/lr-{self.trial_lr:g}"
        return folder / (f"epochs-{self.epochs}" if self.shortened else "") / f"seed-{self.seed}.json"

    @property
    def title(self) -> str:
        """What a person calls it."""
        trial = "" if self.trial_lr is None else f" with lr {self.trial_lr:g}"
        return f"{self.column.name} {self.row.name}{trial} {self.seed}"

    @property
    def full_epochs(self) -> int:
        """The epochs of the paper."""
        return self._whole("epochs", self._options("training").get("epochs"), 0)

    @property
    def shortened(self) -> bool:
        """Whether the run has fewer epochs than the paper's."""
        return self.epochs is not None and self.epochs < self.full_epochs

    def _whole(self, name: str, value: object, low: int) -> int:
        """Return a number of the table's file, once it is known to be one."""
        check_whole(f"{name} in {self.table.name}.toml", value, low, MOST)
        return int(cast(int, value))

    def _options(self, section: str) -> dict[str, Any]:
        """Return the options of a section: a row's have precedence over a column's, and these over the table's."""
        name, nothing = self.row.algorithm["name"], Options()
        levels = (
            self.table,
            self.table.by_algorithm.get(name, nothing),
            self.column,
            self.column.by_algorithm.get(name, nothing),
            self.row,
        )
        return {key: value for level in levels for key, value in getattr(level, section).items()}

    @property
    def training(self) -> dict[str, Any]:
        """The options of training. A shortened run passes through the whole schedules of the full one."""
        training, full, epochs = self._options("training"), self.full_epochs, self.epochs
        if self.trial_lr is not None:
            training["lr"] = self.trial_lr
        if epochs is None or not self.shortened:
            return training
        finetune = self._whole("finetune_epochs", training.get("finetune_epochs", 0), 0)
        training["epochs"] = epochs
        training["finetune_epochs"] = max(1, round(finetune * epochs / full)) if finetune and epochs > 1 else 0
        training["schedule_epochs"] = full
        if "evaluate_every" in training:
            every = self._whole("evaluate_every", training["evaluate_every"], 1)
            training["evaluate_every"] = max(1, round(every * epochs / full))
        return training

    @cached_property
    def recipe(self) -> Recipe | None:
        """The run of a single network; None for a federation."""
        if not self.column.recipe:
            return None
        algorithm = self._options("algorithm")
        method = algorithm.pop("name")
        fields = {**self.column.recipe, **algorithm, **self.training, "validation": self.trial_lr is not None}
        return Recipe(**fields, method=method, bits=self.row.bits, seed=self.seed)

    @cached_property
    def experiment(self) -> Experiment:
        """The run of a federation, as an experiment file has it."""
        column, algorithm, training = self.column, self._options("algorithm"), self.training
        kind = ALGORITHMS[algorithm["name"]]
        if "quantization" in kind.__dataclass_fields__:
            algorithm["quantization"] = self._options("quantization")
        clients = [
            {
                "count": group.count,
                "model": group.model.model_dump(),
                "bits": group.bits or self.row.bits,
                "per_channel": self.row.per_channel,
            }
            for group in column.clients
        ]
        if all(group["bits"] == FULL_PRECISION for group in clients):
            training["finetune_epochs"] = 0
        validation = {} if self.trial_lr is None else {"evaluate_on": "validation"}
        values: dict[str, Any] = {
            "data": None if column.data is None else column.data.model_dump() | validation,
            "clients": clients,
            "training": training,
            "algorithm": algorithm,
        }
        if column.newcomers is not None:
            values["newcomers"] = column.newcomers.model_dump()
        # An algorithm that needs the global network at every client has the clients' own.
        if column.global_model is not None and kind.global_network != "same":
            values["global_model"] = column.global_model.model_dump()
        return validate(values, f"{self.table.name}.toml")

    @property
    def lr(self) -> float:
        """The initial learning rate."""
        return float((self.recipe or self.experiment.training).lr)

    @cached_property
    def config(self) -> dict[str, Any]:
        """All that the result depends on but seed and data."""
        return full_config(self.recipe or self.experiment)


def full_config(source: Recipe | Experiment) -> dict[str, Any]:
    """Return a configuration with all defaults, as JSON gives it back."""
    if isinstance(source, Recipe):
        return {**asdict(source), "seed": 0}
    (method,) = source.methods
    algorithm = {"name": method.algorithm.name, **asdict(cast(Any, method.algorithm))}
    values = plain({**source.model_dump(), "algorithm": algorithm})
    return dict(json.loads(json.dumps(values)))


def complete(config: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a recorded configuration with all options: newer ones have their defaults."""
    if "algorithm" in config:
        return full_config(validate(config, name))
    try:
        return full_config(Recipe(**config))
    except TypeError as error:
        raise InvalidValueError(f"{name} has options that this version does not know: {error}.") from error


def paper_runs(
    table: Table,
    methods: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    seeds: int = 3,
    epochs: int | None = None,
) -> list[PaperRun]:
    """Return the runs of a table, or of some of its rows and columns, seed by seed; with `epochs`, shortened."""
    check(seeds >= 1, "number of seeds", "at least 1", seeds)
    check(epochs is None or epochs >= 1, "number of epochs", "at least 1", epochs)
    rows: dict[str, Row] = {}
    for name in chosen("method", methods, table.rows, table.name):
        rows.setdefault(table.rows[name].recorded_as, table.rows[name])  # rows that read the same records run once
    names = chosen("column", columns, table.columns, table.name)
    return [
        PaperRun(table, table.columns[name], row, seed, epochs)
        for seed in range(seeds)
        for name in names
        for row in rows.values()
        if row.seeds is None or seed < row.seeds
    ]


def chosen(what: str, wanted: Sequence[str] | None, known: Mapping[str, object], table: str) -> list[str]:
    """Return the names that were asked for, in the order of the table; without any, all."""
    for name in wanted or ():
        if name not in known:
            raise InvalidValueError(f"The table {table} has no {what} '{name}'. {did_you_mean(name, known)}")
    return [name for name in known if wanted is None or name in wanted]
