"""The idx format of MNIST: 0, 0, a type, the number of dimensions; the dimensions; the values, all big-endian."""

import math
import struct

import numpy as np
from numpy.typing import NDArray

from quped.errors import DataError

TYPES = {8: "u1", 12: ">i4"}


def parse(content: bytes, name: str, shape: tuple[int | None, ...]) -> NDArray[np.integer]:
    """Read idx content as an array that must have the `shape`; None stands for any length."""
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in TYPES:
        raise DataError(f"{name} is not an idx file")
    kind: np.dtype[np.integer] = np.dtype(TYPES[content[2]])
    dimensions = content[3]
    start = 4 + 4 * dimensions
    if len(content) < start:
        raise DataError(f"{name} is truncated")
    got = struct.unpack(f">{dimensions}I", content[4:start])
    if len(got) != len(shape) or any(want not in (None, have) for want, have in zip(shape, got, strict=True)):
        raise DataError(f"{name} holds an array of {got}, not of {shape}")
    if len(content) != start + math.prod(got) * kind.itemsize:
        raise DataError(f"{name} has {len(content)} bytes, which does not fit its header: truncated or damaged")
    return np.frombuffer(content, kind, offset=start).reshape(got)
