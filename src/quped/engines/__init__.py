"""Where a federation runs. The algorithm does not know."""

from quped.engines.inline import InlineEngine
from quped.engines.processes import ProcessEngine, usable_cores
from quped.engines.rounds import Engine, Plan, Player, RoundReport, run

__all__ = ["Engine", "InlineEngine", "Plan", "Player", "ProcessEngine", "RoundReport", "run", "usable_cores"]
