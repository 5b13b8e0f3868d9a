"""How many images per second `quped train` learns from, and at which share of this machine's sgemm peak.

    python benchmarks/resnet_speed.py [resnet20]

Each method takes its steps in turns with the others; a number is the median of the turns. The work of a step is counted
by PyTorch: one pass forward and back for each evaluation of the loss, two for Algorithm 1.
"""

import statistics
import sys
import time
from collections.abc import Iterator

import torch
from torch.utils.flop_counter import FlopCounterMode

from quped._bench import sgemm_peak
from quped.data import Samples, Subset
from quped.experiments.train import Recipe, one_epoch, prepare

METHODS = ("float", "proxquant", "binaryrelax", "centers")
TURNS, STEPS = 7, 4


def contestant(recipe: Recipe) -> Iterator[float]:
    """Yield the seconds of some steps, again and again."""
    model, optimizer, samples, _ = prepare(recipe)
    few: Samples = Subset(samples, torch.arange(STEPS * recipe.batch_size))
    while True:
        began = time.perf_counter()
        one_epoch(recipe, 0, model, optimizer, few, lambda _: None)
        yield time.perf_counter() - began


def flops_per_image(recipe: Recipe) -> float:
    """Count the operations of a step, as they are done."""
    model, optimizer, samples, _ = prepare(recipe)
    few: Samples = Subset(samples, torch.arange(recipe.batch_size))
    with FlopCounterMode(display=False) as counter:
        one_epoch(recipe, 0, model, optimizer, few, lambda _: None)
    return float(counter.get_total_flops()) / recipe.batch_size


def main(network: str) -> None:
    """Measure and print."""
    threads = torch.get_num_threads()
    recipes = {method: Recipe(network, "cifar10", method, bits=1) for method in METHODS}
    flops = {method: flops_per_image(recipe) for method, recipe in recipes.items()}
    running = {method: contestant(recipe) for method, recipe in recipes.items()}
    seconds: dict[str, list[float]] = {method: [] for method in METHODS}
    peaks = []
    for turn in range(TURNS + 1):
        peaks.append(sgemm_peak(threads))
        for method in METHODS:
            spent = next(running[method])
            if turn:  # in the first, memory is still being laid out
                seconds[method].append(spent)
    peak = statistics.median(peaks)
    batch = recipes["float"].batch_size
    print(f"{network}, batches of {batch}, {threads} threads, sgemm peak {peak / 1e9:.0f} GFLOP/s")
    for method in METHODS:
        rate = STEPS * batch / statistics.median(seconds[method])
        print(f"{method:12s} {rate:7.0f} images/s   {rate * flops[method] / peak:4.0%} of the peak")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "resnet20")
