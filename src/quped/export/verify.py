"""Whether an exported file computes what the network computes."""

import torch
from torch import Tensor

from quped.errors import ModelFileError

TOLERANCE = 1e-4
"""Of a score, relative to the largest one of its sample, or to 1 if that is smaller."""


def check_scores(what: str, got: Tensor, expected: Tensor) -> None:
    """Raise unless scores name the same classes, and are the same up to rounding."""
    if got.shape != expected.shape:
        raise ModelFileError(f"{what} gives scores of shape {tuple(got.shape)} instead of {tuple(expected.shape)}.")
    size = expected.abs().amax(-1, keepdim=True).clamp(min=1)
    worst = float(((got - expected).abs() / size).nan_to_num(torch.inf).max())
    # Of two classes with the same score either is right.
    best = expected.gather(-1, got.argmax(-1, keepdim=True))
    wrong = int((best < expected.amax(-1, keepdim=True)).sum())
    if worst > TOLERANCE or wrong:
        raise ModelFileError(
            f"{what} does not compute what the network does: scores differ by {worst:.1g}, and {wrong} of "
            f"{len(expected)} samples get another class. Nothing was written. Please report this network."
        )
