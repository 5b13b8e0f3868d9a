"""What a person reads at the end of a run: made of what `result.json` says."""

import numpy as np
from rich.table import Table

from quped.algorithms import ALGORITHMS, FULL_PRECISION
from quped.experiments import Result
from quped.runs import entries

MOST_ROWS = 30
"""Clients listed one by one."""


def title(result: Result) -> str:
    """Return an algorithm's proper name."""
    return ALGORITHMS[result["algorithm"]].__name__


def titles(results: list[Result]) -> list[str]:
    """Return the names of methods: of those that are there twice with the options in which they differ."""
    names = [title(result) for result in results]
    told = [entries(result.get("hyperparameters", {})) | entries(result.get("training", {})) for result in results]
    found = []
    for name, mine in zip(names, told, strict=True):
        alike = [other for other_name, other in zip(names, told, strict=True) if other_name == name]
        differ = [f"{key} {value}" for key, value in mine.items() if any(other.get(key) != value for other in alike)]
        found.append(f"{name}, {', '.join(differ)}" if differ else name)
    return found


def accuracy(result: Result) -> float:
    """Return the accuracy, mean over clients."""
    return float(result["accuracy"]["mean"])


def where(result: Result) -> str:
    """Say if accuracies are not those on test samples."""
    return ", on validation samples" if result["config"]["data"]["evaluate_on"] == "validation" else ""


def mean(result: Result, field: str) -> float:
    """Return the mean over clients of a number."""
    return float(np.mean([client[field] for client in result["clients"]]))


def size(count: float) -> str:
    """Return a number of bytes as a person writes it."""
    return f"{count / 1e6:.2f} MB" if count >= 1e6 else f"{count / 1e3:.1f} kB" if count >= 1e3 else f"{count:.0f} B"


def client_table(result: Result) -> Table:
    """One line per client: what it runs, how well, and how large that is."""
    table = Table(title=f"{title(result)}: what every client got{where(result)}", title_justify="left")
    for name in ("client", "network"):
        table.add_column(name, no_wrap=True)
    for name in ("bits", "samples", "accuracy", "size", "as float32"):
        table.add_column(name, justify="right", no_wrap=name in ("accuracy", "size"))
    clients = result["clients"]
    for c in clients[:MOST_ROWS]:
        sizes = size(c["bytes_packed"]), size(c["bytes_float32"])
        bits = "float" if c["bits"] == FULL_PRECISION else str(c["bits"])
        table.add_row(c["name"], c["model"], bits, f"{c['samples']:,}", f"{c['accuracy']:.1%}", *sizes)
    if len(clients) > MOST_ROWS:
        table.add_row("...", f"{len(clients) - MOST_ROWS:,} more in result.json")
    table.add_section()
    sizes = size(mean(result, "bytes_packed")), size(mean(result, "bytes_float32"))
    table.add_row("mean", "", "", f"{mean(result, 'samples'):,.0f}", f"{accuracy(result):.1%}", *sizes)
    if (shared := result.get("global_accuracy")) is not None:  # which records from before do not have
        table.add_row("global model", "", "", "", f"{shared:.1%}")
    return table


def comparison_table(results: list[Result]) -> Table:
    """One line per algorithm."""
    table = Table(title=f"The same clients, other methods{where(results[0])}", title_justify="left")
    table.add_column("method")
    for name in ("accuracy", "worst client", "size per client", "seconds"):
        table.add_column(name, justify="right")
    for name, result in zip(titles(results), results, strict=True):
        worst = min(result["accuracy"]["per_client"].values())
        packed = size(mean(result, "bytes_packed"))
        table.add_row(name, f"{accuracy(result):.1%}", f"{worst:.1%}", packed, f"{result['seconds']:.0f}")
    return table


def verdict(results: list[Result]) -> str:
    """Say in a sentence per method how the first one compares with it."""
    first, names = results[0], titles(results)
    lines = []
    for other, name in zip(results[1:], names[1:], strict=True):
        gap = 100 * (accuracy(first) - accuracy(other))
        words = f"{abs(gap):.1f} points {'above' if gap > 0 else 'below'}" if abs(gap) >= 0.05 else "as accurate as"
        ratio = mean(other, "bytes_packed") / mean(first, "bytes_packed")
        space = f", in 1/{ratio:.1f} of the space" if ratio > 1.05 else ""
        lines.append(f"{names[0]} is {words} {name}{space}.")
    return "\n".join(lines)
