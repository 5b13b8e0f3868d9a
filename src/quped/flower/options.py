"""The options of a federation on Flower: `[tool.flwr.app.config]` of its app, and `flwr run --run-config`."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from quped.errors import InvalidValueError, check, check_number, check_whole, did_you_mean
from quped.simulation.options import RULES, TrainingOptions, training_options
from quped.simulation.schedule import DEFAULT_BATCH_SIZE, Schedule


def _option(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True, kw_only=True)
class FlowerOptions:
    """How a server deals with its nodes."""

    module: str = _option("federation", "The module of the app with algorithm(), global_model() and client(node).")
    record: str = _option("runs/flower", "Folder of the run's record, on the server. A run continues from it.")
    seed: int = _option(0, "Every random choice follows from it.")
    quorum: int = _option(0, "Clients whose updates a round needs at least; 0: all that are chosen for it.")
    join_seconds: float = _option(
        300.0, "How long the server waits for all nodes when a run begins. Then a quorum is enough."
    )
    round_seconds: float = _option(1800.0, "How long a round may take.")
    retries: int = _option(5, "How often a node is asked again in a round after it failed.")
    retry_seconds: float = _option(5.0, "Seconds before a node is asked again.")
    newcomers: bool = _option(False, "Let nodes join whose keys are registered with names that the app does not list.")
    max_ratio: float = _option(50.0, "Refuse updates so many times longer than the median of a round; 0: no bound.")

    def __post_init__(self) -> None:
        for name in ("module", "record"):
            value = getattr(self, name)
            check(isinstance(value, str) and value != "", f"option '{name}'", "a non-empty text", value)
        check(isinstance(self.newcomers, bool), "option 'newcomers'", "true or false", self.newcomers)
        for name in ("seed", "quorum", "retries"):
            check_whole(f"option '{name}'", getattr(self, name), 0)
        for name in ("join_seconds", "round_seconds", "retry_seconds", "max_ratio"):
            check_number(f"option '{name}'", getattr(self, name), 0)


OPTIONS = [option.name for option in fields(FlowerOptions)]


def parse(config: Mapping[str, Any]) -> tuple[FlowerOptions, TrainingOptions]:
    """Return the options of a run configuration, checked."""
    if unknown := [name for name in config if name not in OPTIONS and name not in RULES]:
        known = did_you_mean(unknown[0], [*OPTIONS, *RULES])
        raise InvalidValueError(f"There is no option '{unknown[0]}' of a federation. {known}")
    if "evaluate_clients" in config:
        raise InvalidValueError(
            "The option 'evaluate_clients' has no meaning here: every node evaluates its own model."
        )
    options = FlowerOptions(**{name: config[name] for name in OPTIONS if name in config})
    training = training_options(None, {name: config[name] for name in RULES if name in config})
    return options, training


def resolve(options: TrainingOptions, sizes: Sequence[int], clients: int, *, quantizes: bool) -> TrainingOptions:
    """Return options from which every node gets the same schedule as a simulation, whatever it knows of the others.

    `sizes` are the numbers of training samples of the clients that are known, `clients` is the number of all.
    """
    sampled = clients if options.clients_per_round is None else options.clients_per_round
    if sampled > clients:
        raise InvalidValueError(
            f"The clients_per_round must be at most {clients}, the number of clients, got {sampled}."
        )
    schedule = Schedule.of(replace(options, clients_per_round=None), sizes, quantizes=quantizes)
    own_batches = options.batch_size is None and options.steps_per_epoch is not None
    return replace(
        options,
        batch_size=None if own_batches else options.batch_size or DEFAULT_BATCH_SIZE,
        steps_per_epoch=schedule.steps_per_epoch,
        finetune_epochs=schedule.finetune_epochs,
        clients_per_round=sampled,
    )


def to_json(options: TrainingOptions) -> dict[str, Any]:
    """Return options as JSON can hold them."""
    return {name: value for name, value in asdict(options).items() if value is not None}


def seconds_left(seconds: float) -> str:
    """Return a duration as a person reads it."""
    if not math.isfinite(seconds):
        return "an unknown time"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"
