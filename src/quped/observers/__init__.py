"""Observers for tools in which people already look at their runs: TensorBoard, MLflow, and Weights & Biases."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from quped.errors import InvalidValueError, did_you_mean
from quped.simulation.loop import Observer

LOGS = {"tensorboard": "TensorBoard", "mlflow": "MLflow", "wandb": "WandB"}
"""For each tool the class of its observer, which is in the module of that name."""


def open_log(place: str, run: str) -> Callable[[str], list[Observer]]:
    """Return what makes observers for the methods of a run; `place` is such as `tensorboard:DIR`.

    A tool that is not installed is an error at once, not after the first method.
    """
    tool, _, where = place.partition(":")
    if tool not in LOGS or not where:
        hint = f" {did_you_mean(tool, LOGS)}" if tool not in LOGS else ""
        raise InvalidValueError(f"--log takes TOOL:DIR, such as tensorboard:logs, got '{place}'.{hint}")
    make: Callable[[str, str, str], Observer] = getattr(import_module(f"quped.observers.{tool}"), LOGS[tool])
    return lambda method: [make(where, run, method)]


def folder_for(where: str | Path, run: str, method: str) -> Path:
    """Return the folder of a method of a run."""
    return Path(where) / run / method if method else Path(where) / run
