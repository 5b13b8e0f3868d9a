"""Packages that are installed only with an extra, such as `quped[data]`."""

from collections.abc import Iterator
from contextlib import contextmanager

from quped.errors import QupedError


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Turn a failed import within the block into an error that names the package and the extra to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        raise QupedError(
            f"The package '{package}' is not installed: install it with `pip install 'quped[{name}]'`."
        ) from error
