"""Damaged files."""

import random


def mutated(raw: bytes, rng: random.Random) -> bytes:
    """Flip, cut, insert, repeat or swap something."""
    data, at = bytearray(raw), rng.randrange(len(raw))
    match rng.randrange(6):
        case 0:
            data[at] ^= 1 << rng.randrange(8)
        case 1:
            data[at] = rng.randrange(256)
        case 2:
            del data[at:]
        case 3:
            del data[at : at + rng.randrange(1, 20)]
        case 4:
            data[at:at] = rng.randbytes(rng.randrange(1, 20))
        case _:
            data[at:at] = data[at : at + rng.randrange(1, 200)]
    return bytes(data)
