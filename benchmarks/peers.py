"""Our process engine beside Flower and pfl-research: one round of FedAvg each, in turns, in one run.

Every contestant is a program of its own that keeps its processes and data from round to round: starting up is not
counted, nor is the first round. One that is not installed or does not run is named with the reason, and left out.
"""

import argparse
import json
import os
import re
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

from turns import COMPILE, LOAD, NETWORK, PROCESSES

from quped._bench_networks import NETWORKS

OURS = "quped"
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={PROCESSES}")
CONTESTANTS: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
    OURS: (("-c", "import contestant_quped as c; c.main()"), {}),
    "quped, compiled steps": (("-c", "import contestant_quped as c; c.main()"), {COMPILE: "1"}),
    "quped, PyTorch's kernels": (("-c", "import contestant_quped as c; c.main()"), {"QUPED_NATIVE": "0"}),
    "pfl-research": ((*TORCHRUN, "contestant_pfl.py"), {}),
    # Not a script: then Ray's actors would get its functions, and all that these keep, anew for each client.
    "Flower": (("-c", "import contestant_flower as c; c.main()"), {}),
}
"""How each is started: arguments of Python, and variables of the environment."""

HERE = Path(__file__).parent
FOR_ALL = {
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": str(HERE),
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # Ray lets its actors wait for everyone else's processes
}
PATIENCE = 300.0
"""Seconds to start, or to play a round."""


class OutError(Exception):
    """A contestant does not run."""


class Contestant:
    """A program that plays rounds when told."""

    def __init__(self, name: str, network: str, said: IO[str]) -> None:
        """Start it and wait until it is ready; what it says goes to a file."""
        arguments, variables = CONTESTANTS[name]
        environment = os.environ | FOR_ALL | variables | {NETWORK: network}
        self._said = said
        self._process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=HERE,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            bufsize=0,  # so that nothing is left to be written to one that is dead, nor read ahead
        )
        try:
            self._wait()
        except OutError:
            self.close()
            raise

    def play(self) -> float:
        """Play a round and return the seconds that it took."""
        assert self._process.stdin is not None
        began = time.perf_counter()
        try:
            self._process.stdin.write(b"go\n")
        except OSError as error:
            raise OutError(self._last_words()) from error
        self._wait()
        return time.perf_counter() - began

    def close(self) -> None:
        """End it: without another turn it ends by itself."""
        with self._process:
            assert self._process.stdin is not None
            self._process.stdin.close()
            try:
                self._process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                self._process.kill()

    def _wait(self) -> None:
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], PATIENCE)[0]:
            raise OutError(f"no word in {PATIENCE:.0f} seconds; {self._last_words()}")
        if self._process.stdout.readline() != b"ready\n":
            raise OutError(self._last_words())

    def _last_words(self) -> str:
        """Return the error that it ended with, as far as it is known."""
        self._said.seek(0)
        said = self._said.read()
        error = re.search(r"\w+Error: .+", said)  # the first is the cause of the others
        return error[0] if error else said.strip().rpartition("\n")[2] or "it ended without a word"


def measure(names: Sequence[str], network: str, turns: int) -> dict[str, Any]:
    """Return rates in client-iterations per second, medians over turns, and how many times each peer's ours is."""
    times: dict[str, list[float]] = {name: [] for name in names}
    out: dict[str, str] = {}
    with ExitStack() as stack:
        playing: dict[str, Contestant] = {}
        for name in names:
            try:
                playing[name] = Contestant(name, network, stack.enter_context(tempfile.TemporaryFile("w+")))
                stack.callback(playing[name].close)
            except OutError as error:
                out[name] = str(error)
        for turn in range(turns + 1):  # the first one is to warm up
            for name in [name for name in playing if name not in out]:
                try:
                    seconds = playing[name].play()
                except OutError as error:
                    out[name] = str(error)
                    continue
                if turn:
                    times[name].append(seconds)
        load = os.getloadavg()[0]
    rates = {name: LOAD.iterations / statistics.median(taken) for name, taken in times.items() if name not in out}
    return {
        "network": network,
        "rates": {name: round(rate, 1) for name, rate in rates.items()},
        "times_peer": {name: round(rates[OURS] / rate, 3) for name, rate in rates.items() if OURS in rates},
        "left_out": out,
        "processes": PROCESSES,
        "turns": turns,
        "cores": os.cpu_count(),
        "load_average": round(load, 1),
    }


def main() -> None:
    """Read the options, measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", choices=NETWORKS, help="one of them; by default all, one after the other")
    parser.add_argument("--turns", type=int, default=7, help="turns of each contestant; the median counts")
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON, a line for each network")
    options = parser.parse_args()
    for network in NETWORKS if options.network is None else [options.network]:
        numbers = measure(list(CONTESTANTS), network, options.turns)
        if options.json:
            print(json.dumps(numbers), flush=True)
        else:
            show(numbers)


def show(numbers: dict[str, Any]) -> None:
    """Print what was measured."""
    print(
        f"FedAvg, {numbers['network']}, {LOAD.clients} clients, {LOAD.steps} steps, batches of {LOAD.batch_size}; "
        f"{PROCESSES} processes"
    )
    print(f"{'':28}{'client-iterations/s':>20}{'quped is':>12}")
    for name, rate in numbers["rates"].items():
        print(f"{name:28}{rate:>20,.0f}{numbers['times_peer'].get(name, float('nan')):>11.2f}x")
    for name, reason in numbers["left_out"].items():
        print(f"{name} was left out: {reason}")


if __name__ == "__main__":
    main()
