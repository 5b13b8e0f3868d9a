"""How many bytes a model takes."""

from torch import Tensor

FLOAT_BYTES = 4
FULL_PRECISION = 32
"""The bit-width of weights that are not quantized."""


def index_bytes(count: int, bits: int) -> int:
    """Return the bytes of so many packed indices."""
    return (count * bits + 7) // 8


def tensor_bytes(count: int, groups: int, bits: int) -> int:
    """Return the bytes of so many weights: at 1 to 8 bits packed, with the centers of each group, at 32 in float32."""
    if bits == FULL_PRECISION:
        return FLOAT_BYTES * count
    return index_bytes(count, bits) + FLOAT_BYTES * groups * (1 << bits)


def affordable_bits(count: int, groups: int, most: int) -> int:
    """Return the most bits, up to `most`, at which packed weights take less space than float32; else 32.

    A layer of 150 weights would need more bytes for 256 centers than for its weights.
    """
    smaller = [bits for bits in range(1, most + 1) if tensor_bytes(count, groups, bits) < FLOAT_BYTES * count]
    return max(smaller, default=FULL_PRECISION)


def index_bits(centers: Tensor) -> int:
    """Return the bits of an index of one of these centers."""
    return max(1, (centers.shape[1] - 1).bit_length())
