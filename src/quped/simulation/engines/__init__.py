"""Where a federation runs. The algorithm does not know."""

from quped.simulation.engines.base import Engine
from quped.simulation.engines.inline import InlineEngine
from quped.simulation.engines.processes import ProcessEngine, usable_cores
from quped.simulation.engines.vmap import VmapEngine

__all__ = ["Engine", "InlineEngine", "ProcessEngine", "VmapEngine", "usable_cores"]
