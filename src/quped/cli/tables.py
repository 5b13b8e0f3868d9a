"""What a person reads at the end of a run."""

import numpy as np
from rich.table import Table

from quped.algorithms import ALGORITHMS, FULL_PRECISION
from quped.fit import Fit

MOST_ROWS = 30
"""Clients listed one by one."""


def title(fit: Fit) -> str:
    """Return an algorithm's proper name."""
    return ALGORITHMS[fit.algorithm].__name__


def size(count: float) -> str:
    """Return a number of bytes as a person writes it."""
    return f"{count / 1e6:.2f} MB" if count >= 1e6 else f"{count / 1e3:.1f} kB" if count >= 1e3 else f"{count:.0f} B"


def client_table(fit: Fit) -> Table:
    """One line per client: what it runs, how well, and how large that is."""
    table = Table(title=f"{title(fit)}: what every client got", title_justify="left")
    for name in ("client", "network"):
        table.add_column(name)
    for name in ("bits", "samples", "accuracy", "size", "as float32"):
        table.add_column(name, justify="right")
    for c in fit.clients[:MOST_ROWS]:
        bits = "float" if c.bits == FULL_PRECISION else str(c.bits)
        table.add_row(
            c.name, c.model, bits, f"{c.samples:,}", f"{c.accuracy:.1%}", size(c.bytes_packed), size(c.bytes_float32)
        )
    if len(fit.clients) > MOST_ROWS:
        table.add_row("...", f"{len(fit.clients) - MOST_ROWS:,} more in result.json")
    table.add_section()
    packed, full = (float(np.mean([getattr(c, f) for c in fit.clients])) for f in ("bytes_packed", "bytes_float32"))
    samples = sum(c.samples for c in fit.clients)
    table.add_row("mean", "", "", f"{samples / len(fit.clients):,.0f}", f"{mean(fit):.1%}", size(packed), size(full))
    return table


def comparison_table(fits: list[Fit]) -> Table:
    """One line per algorithm."""
    table = Table(title="The same clients, other methods", title_justify="left")
    table.add_column("method")
    for name in ("accuracy", "worst client", "size per client", "seconds"):
        table.add_column(name, justify="right")
    for fit in fits:
        packed = float(np.mean([c.bytes_packed for c in fit.clients]))
        worst = min(fit.accuracy.values())
        table.add_row(title(fit), f"{mean(fit):.1%}", f"{worst:.1%}", size(packed), f"{fit.seconds:.0f}")
    return table


def verdict(fits: list[Fit]) -> str:
    """Say in a sentence per method how the first one compares with it."""
    first = fits[0]
    mine = float(np.mean([c.bytes_packed for c in first.clients]))
    lines = []
    for other in fits[1:]:
        gap = 100 * (mean(first) - mean(other))
        theirs = float(np.mean([c.bytes_packed for c in other.clients]))
        word = "above" if gap > 0 else "below"
        accuracy = f"{abs(gap):.1f} points {word}" if abs(gap) >= 0.05 else "as accurate as"
        ratio = theirs / mine
        space = f", in 1/{ratio:.1f} of the space" if ratio > 1.05 else ""
        lines.append(f"{title(first)} is {accuracy} {title(other)}{space}.")
    return "\n".join(lines)


def mean(fit: Fit) -> float:
    """Return the accuracy, mean over clients."""
    return fit.curve[-1].mean
