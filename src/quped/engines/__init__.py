"""Where a federation runs. The algorithm does not know."""

from quped.engines.inline import InlineEngine
from quped.engines.rounds import Engine, Plan, Player, RoundReport, run

__all__ = ["Engine", "InlineEngine", "Plan", "Player", "RoundReport", "run"]
