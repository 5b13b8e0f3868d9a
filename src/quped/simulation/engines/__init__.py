"""Where a federation runs. The algorithm does not know."""

from quped.simulation.engines.base import Engine
from quped.simulation.engines.choice import ENGINES, EngineChoice
from quped.simulation.engines.inline import InlineEngine
from quped.simulation.engines.processes import ProcessEngine, usable_cores
from quped.simulation.engines.vmap import VmapEngine

__all__ = ["ENGINES", "Engine", "EngineChoice", "InlineEngine", "ProcessEngine", "VmapEngine", "usable_cores"]
