"""How contestants, programs of their own, take turns: a line out when one is ready, a line in to let it go on."""

import os
import sys
from collections.abc import Callable

from quped._bench import Load

PROCESSES = 2
"""Of each contestant, one thread each."""

NETWORK = "QUPED_BENCH_NETWORK"
"""The environment variable that tells a contestant its network."""

COMPILE = "QUPED_BENCH_COMPILE"
"""The environment variable that lets ours take compiled steps."""

LOAD = Load(network=os.environ.get(NETWORK, "cnn1"), samples=250, compile=COMPILE in os.environ)
"""A round of the paper's CIFAR-10 experiment. A client has samples for 10 batches: peers count in passes over them."""

LR = 0.1
WEIGHT_DECAY = 1e-4


def take_turns() -> Callable[[], bool]:
    """Return what a contestant calls before each round: it waits there for its turn, and is told whether there is one.

    The first call says that all is prepared, every other one that a round is done.
    """
    said = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever else is printed, by whichever library, is no word to the referee

    def wait() -> bool:
        print("ready", file=said)
        return sys.stdin.readline() != ""

    return wait
