"""How weights lie around their centers."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

BINS = 121
"""Of a histogram of weights."""


def histogram(
    weights: Mapping[str, Tensor], centers: Mapping[str, Tensor], reach: float | None = None
) -> dict[str, Any]:
    """Count the weights of the largest tensor that has centers, in BINS bins from -reach to reach; add its centers.

    Without a `reach`, the bins reach beyond all weights and centers. Of centers by channel, those of the first.
    """
    name = max(centers, key=lambda key: weights[key].numel())
    values, levels = weights[name].detach().float(), centers[name][0]
    if reach is None:
        reach = 1.25 * float(max(values.abs().max(), levels.abs().max()))
    counts = torch.histc(values, BINS, -reach, reach).int().tolist()
    return {"name": name, "reach": reach, "counts": counts, "centers": levels.tolist()}
