"""Whether an exported file computes what the network computes."""

import torch
from torch import Tensor

from quped._rng import torch_seeded
from quped.errors import ModelFileError

FEWEST = 64
"""Inputs on which a file is compared with its network."""
TOLERANCE = 1e-4
"""Of a score, relative to the largest one of its input, or to 1 if that is smaller."""
TIE = 1e-6
"""Of two classes whose scores differ by no more than rounding, relative as above, either is right."""


def enough(samples: Tensor) -> Tensor:
    """Return samples, followed by noisy copies of them if they are fewer than `FEWEST`, and no numbers of words."""
    count = len(samples)
    if count >= FEWEST or not samples.is_floating_point():
        return samples
    copies = samples[torch.arange(FEWEST - count) % count]
    with torch_seeded(0, "noise"):
        noise = torch.randn_like(copies)
    return torch.cat([samples, copies + noise * samples.std(correction=0)])


def check_scores(what: str, got: Tensor, expected: Tensor) -> None:
    """Raise unless scores name the same classes, and are the same up to rounding."""
    if got.shape != expected.shape:
        raise ModelFileError(f"{what} gives scores of shape {tuple(got.shape)} instead of {tuple(expected.shape)}.")
    size = expected.abs().amax(-1, keepdim=True).clamp(min=1)
    worst = float(((got - expected).abs() / size).nan_to_num(torch.inf).max())
    best = expected.gather(-1, got.argmax(-1, keepdim=True))
    wrong = int((best < expected.amax(-1, keepdim=True) - TIE * size).sum())
    if worst > TOLERANCE or wrong:
        raise ModelFileError(
            f"{what} does not compute what the network does: scores differ by {worst:.1g}, and {wrong} of "
            f"{len(expected)} inputs get another class. Nothing was written. Please report this network."
        )
