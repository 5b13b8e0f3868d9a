"""A federation on one machine: options, schedule, the loop, and the engines that compute it."""

from quped.simulation.loop import Observer, Round, Start
from quped.simulation.options import TrainingOptions
from quped.simulation.setup import Setup, SimClient

__all__ = ["Observer", "Round", "Setup", "SimClient", "Start", "TrainingOptions"]
