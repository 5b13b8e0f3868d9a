"""Matrix products by oneDNN, for compiled steps.

PyTorch leaves products of float32 matrices to MKL, which takes up to twice as long on recent AMD processors.
"""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

LARGE = 2**20
"""Multiplications in a product, from which on oneDNN is faster."""

LIBRARY = cast(Callable[..., Any], torch.library.Library)("quped", "DEF")
LIBRARY.define("product(Tensor a, Tensor b, Tensor? bias) -> Tensor")


def by_onednn(a: Tensor, b: Tensor, bias: Tensor | None) -> Tensor:
    """Return a b + bias."""
    result: Tensor = torch.ops.mkldnn._linear_pointwise(a, b.t(), bias, "none", [], "")
    return result


def described(a: Tensor, b: Tensor, bias: Tensor | None) -> Tensor:
    """Return a tensor of the form of a b + bias."""
    return a.new_empty(a.shape[0], b.shape[1])


LIBRARY.impl("product", by_onednn, "CPU")
LIBRARY.impl("product", described, "Meta")


def pays(a: Tensor, b: Tensor) -> bool:
    """Say whether oneDNN can compute a product, and is faster."""
    known = cast(Callable[[], bool], torch.backends.mkldnn.is_available)() and hasattr(
        torch.ops.mkldnn, "_linear_pointwise"
    )
    alike = a.dtype == b.dtype == torch.float32 and a.device.type == "cpu"
    return known and alike and a.shape[0] * a.shape[1] * b.shape[1] >= LARGE


def mm(a: Tensor, b: Tensor) -> Tensor:
    """Stand for `torch.mm`."""
    return torch.ops.quped.product(a, b, None) if pays(a, b) else NotImplemented


def addmm(bias: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """Stand for `torch.addmm`."""
    plain = beta == alpha == 1 and bias.shape == b.shape[1:]
    return torch.ops.quped.product(a, b, bias) if plain and pays(a, b) else NotImplemented
