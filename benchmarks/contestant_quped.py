"""Our process engine."""

from contextlib import closing

from turns import LOAD, PROCESSES, take_turns

from quped._bench import engine, play
from quped.algorithms import FedAvg


def main() -> None:
    """Play rounds."""
    next_round = take_turns()
    with closing(engine(FedAvg(), 32, LOAD, LOAD.data(), PROCESSES)) as ours:
        while next_round():
            play(ours, FedAvg(), LOAD)
