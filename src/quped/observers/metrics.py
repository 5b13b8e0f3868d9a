"""What every tool is told of a round."""

import numpy as np

from quped.simulation.loop import Round


def metrics(round_: Round) -> dict[str, float]:
    """Return the numbers of a round by their names; those of the clients are there if it was evaluated."""
    found = {"loss": round_.loss, "lr": round_.clock.lr, "epoch": float(round_.clock.epoch)}
    if values := accuracies(round_):
        low, high = np.quantile(values, (0.1, 0.9))
        found |= {"accuracy/mean": float(np.mean(values)), "accuracy/low": float(low), "accuracy/high": float(high)}
        found["accuracy/worst"] = min(values)
    return found


def accuracies(round_: Round) -> list[float]:
    """Return the accuracy of every client, if the round was evaluated."""
    return [] if round_.evaluation is None else list(round_.evaluation.accuracy.values())


def step(round_: Round) -> int:
    """Return the number of a round, from 1, as reports count it."""
    return round_.clock.round + 1
