"""Whether clients are being computed at once, stacked, under torch.func.vmap.

What runs there must consist of operations that torch.func can transform: no kernels of our own, and gradients by
torch.func.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_active = ContextVar("under_vmap", default=False)


def under_vmap() -> bool:
    """Say whether clients are being computed at once."""
    return _active.get()


@contextmanager
def entering_vmap() -> Iterator[None]:
    """Compute clients at once within the block."""
    token = _active.set(True)
    try:
        yield
    finally:
        _active.reset(token)
