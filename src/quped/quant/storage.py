"""How much memory a model takes."""

from collections.abc import Sequence

from quped.typing import Model

FLOAT_BYTES = 4


def float_bytes(model: Model) -> int:
    """Return the bytes of a model with every number as a float32."""
    return FLOAT_BYTES * sum(v.numel() for v in (*model.params.values(), *model.buffers.values()))


def packed_bytes(model: Model, quantized: Sequence[str], bits: int, *, per_channel: bool = False) -> int:
    """Return the bytes of a model whose `quantized` tensors are stored as `bits`-wide indices with their centers.

    All other numbers, centers included, are float32. The indices of each tensor begin at a whole byte.
    """
    total = float_bytes(model)
    for weights in (model.params[k] for k in quantized):
        groups = weights.shape[0] if per_channel else 1
        indices = (weights.numel() * bits + 7) // 8
        total += indices + FLOAT_BYTES * (groups * 2**bits - weights.numel())
    return total
