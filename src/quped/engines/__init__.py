"""Where a federation runs. The algorithm does not know."""

from quped.engines.inline import InlineEngine
from quped.engines.processes import ProcessEngine, usable_cores
from quped.engines.rounds import Engine, Plan, Player, RoundReport, run
from quped.engines.vmapped import VmappedEngine
from quped.engines.worker import score_global

__all__ = [
    "Engine",
    "InlineEngine",
    "Plan",
    "Player",
    "ProcessEngine",
    "RoundReport",
    "VmappedEngine",
    "run",
    "score_global",
    "usable_cores",
]
