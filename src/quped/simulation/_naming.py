"""Errors that name the client and the round."""

from collections.abc import Iterator
from contextlib import contextmanager

from quped.errors import QupedError, RunError


@contextmanager
def naming(client: str, round_: int | None) -> Iterator[None]:
    """Let errors within the block name the client and the round, or that it was being evaluated."""
    try:
        yield
    except QupedError:
        raise
    except Exception as error:
        when = "while it was evaluated" if round_ is None else f"in round {round_ + 1}"
        hint = ""
        if "Expected more than 1 value per channel" in str(error):
            hint = " (BatchNorm cannot learn from a single sample: raise batch_size, or leave the client out.)"
        raise RunError(f"Client '{client}' failed {when}: {type(error).__name__}: {error}{hint}") from error
