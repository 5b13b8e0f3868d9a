"""Experiments as files: what they may say, those that come along, and how one is run."""

from quped.experiments.presets import find, presets
from quped.experiments.run import Result, run_experiment
from quped.experiments.schema import Experiment, load, validate

__all__ = ["Experiment", "Result", "find", "load", "presets", "run_experiment", "validate"]
