"""How many bytes a model takes."""

from collections.abc import Mapping

from torch import Tensor

from quped.quant.quantizer import Codebook
from quped.typing import ModelState

FLOAT_BYTES = 4


def float_bytes(model: ModelState) -> int:
    """Return the bytes of a model with every number as a float32."""
    return FLOAT_BYTES * sum(v.numel() for v in (*model.params.values(), *model.buffers.values()))


def packed_bytes(model: ModelState, codebooks: Mapping[str, Codebook]) -> int:
    """Return the bytes of a model whose quantized tensors are stored as indices with their centers.

    All other numbers, centers included, are float32.
    The indices of each tensor begin at a whole byte.
    """
    return float_bytes(model) + sum(_saved(book) for book in codebooks.values())


def _saved(book: Codebook) -> int:
    bits = index_bits(book.centers)
    return index_bytes(book.indices.numel(), bits) + FLOAT_BYTES * (book.centers.numel() - book.indices.numel())


def index_bytes(count: int, bits: int) -> int:
    """Return the bytes of so many packed indices."""
    return (count * bits + 7) // 8


def index_bits(centers: Tensor) -> int:
    """Return the bits of an index of one of these centers."""
    return max(1, (centers.shape[1] - 1).bit_length())
