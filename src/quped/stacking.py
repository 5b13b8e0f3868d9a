"""Whether clients are being computed at once, stacked, under torch.func.vmap.

What runs there must consist of operations that torch.func can transform: no kernels of our own, and gradients by
torch.func.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_stacked = ContextVar("stacked", default=False)


def stacked() -> bool:
    """Say whether clients are being computed at once."""
    return _stacked.get()


@contextmanager
def stacking() -> Iterator[None]:
    """Compute clients at once within the block."""
    token = _stacked.set(True)
    try:
        yield
    finally:
        _stacked.reset(token)
