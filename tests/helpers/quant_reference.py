"""The paper's formulas in NumPy, written to be read rather than to be fast, and the inputs that the tests share."""

import numpy as np
import torch
from hypothesis import settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

repeatable = settings(derandomize=True, deadline=None, max_examples=60)
"""Property tests see the same examples on every machine."""


def tensor(values: Array) -> Tensor:
    """Return the array as a float64 tensor."""
    return torch.from_numpy(np.ascontiguousarray(values))


def array(values: Tensor) -> Array:
    """Return the tensor as an array."""
    out: Array = values.detach().numpy()
    return out


def grouped(x: Array, centers: Array) -> Array:
    """Return the weights as one row per row of centers."""
    return x.reshape(len(centers), -1)


def nearest(x: Array, centers: Array) -> Indices:
    """Compare every weight with every center; argmin takes the first of equals, which is the lower center."""
    out: Indices = np.abs(grouped(x, centers)[:, :, None] - centers[:, None, :]).argmin(-1)
    return out


def hard(x: Array, centers: Array) -> Array:
    """Return Q_c(x)."""
    return np.take_along_axis(centers, nearest(x, centers), 1).reshape(x.shape)


def distance(x: Array, centers: Array) -> float:
    """Return R(x, c), half of the l1 distance to the nearest centers."""
    return float(np.abs(grouped(x, centers)[:, :, None] - centers[:, None, :]).min(-1).sum() / 2)


def sigmoid(u: Array) -> Array:
    """Return 1 / (1 + exp(-u)), without overflow."""
    out: Array = np.exp(-np.logaddexp(0, -u))
    return out


def soft(x: Array, centers: Array, sharpness: float) -> Array:
    """Return Q~_c(x) as the paper writes it: a loop over the centers j = 2 .. m."""
    rows = grouped(x, centers)
    total = np.repeat(centers[:, :1], rows.shape[1], axis=1)
    for j in range(1, centers.shape[1]):
        low, high = centers[:, j - 1 : j], centers[:, j : j + 1]
        total = total + (high - low) * sigmoid(sharpness * (rows - (high + low) / 2))
    return total.reshape(x.shape)


def layouts(seed: int, m: int) -> list[tuple[Array, Array]]:
    """Draw the weights of a convolution, with centers for the layer and with centers for each output channel."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(4, 3, 5, 5))
    return [(x, np.sort(rng.normal(size=(rows, m)), axis=1)) for rows in (1, 4)]


@st.composite
def exact_problems(draw: st.DrawFn) -> tuple[Array, Array]:
    """Draw `[groups, n]` weights and sorted, distinct `[groups, m]` centers on a coarse binary grid.

    Sums, differences and midpoints of such numbers are exact, and ties and weights on centers are common.
    """
    groups, n, m = draw(st.integers(1, 3)), draw(st.integers(1, 12)), draw(st.integers(2, 6))
    grid = st.integers(-24, 24)
    centers = [sorted(draw(st.lists(grid, min_size=m, max_size=m, unique=True))) for _ in range(groups)]
    x = [draw(st.lists(st.integers(-64, 64), min_size=n, max_size=n)) for _ in range(groups)]
    return np.array(x) / 16, np.array(centers) / 8
