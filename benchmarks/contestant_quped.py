"""Our process engine."""

from contextlib import closing

from turns import LOAD, PROCESSES, take_turns

from quped._bench import run_round
from quped.algorithms import FedAvg
from quped.simulation.engines import EngineChoice


def main() -> None:
    """Play rounds."""
    next_round = take_turns()
    setup = LOAD.setup(FedAvg(), 32, LOAD.data())
    with closing(EngineChoice("processes", PROCESSES).open(setup)) as ours:
        while next_round():
            run_round(ours, setup)
