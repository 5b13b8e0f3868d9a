"""What a person reads at the end of a run: made of what `result.json` says."""

from typing import Any

import numpy as np
from rich.table import Table

from quped.algorithms import ALGORITHMS
from quped.records import flatten
from quped.report.hurt import share_below

Result = dict[str, Any]
"""The content of a `result.json`."""

MOST_ROWS = 20
"""Clients listed one by one."""

NARROW = 80
"""Columns of a terminal, below which a table is shortened."""

LEFT_OUT = {
    120: (),
    NARROW: ("global model", "seconds"),
    0: ("worst tenth", "below local", "below FedAvg", "global model", "seconds"),
}
"""What the comparison leaves out in a terminal of at least some width."""


def title(result: Result) -> str:
    """Return an algorithm's proper name."""
    known = ALGORITHMS.get(result["algorithm"])
    return str(result["algorithm"]) if known is None else known.__name__


def titles(results: list[Result]) -> list[str]:
    """Return the names of methods: of those that are there twice with the options in which they differ."""
    names = [title(result) for result in results]
    options = [flatten(result.get("hyperparameters", {})) | flatten(result.get("training", {})) for result in results]
    shown = []
    for name, mine in zip(names, options, strict=True):
        alike = [other for other_name, other in zip(names, options, strict=True) if other_name == name]
        differ = [f"{key} {value}" for key, value in mine.items() if any(other.get(key) != value for other in alike)]
        shown.append(f"{name}, {', '.join(differ)}" if differ else name)
    return shown


def accuracy(result: Result) -> float | None:
    """Return the accuracy, mean over clients; None if none has test samples."""
    mean = result["accuracy"]["mean"]
    return None if mean is None else float(mean)


def where(result: Result) -> str:
    """Say if accuracies are not those on test samples."""
    return ", on validation samples" if result["config"]["data"]["evaluate_on"] == "validation" else ""


def mean(result: Result, field: str) -> float:
    """Return the mean over clients of a number."""
    return float(np.mean([client[field] for client in result["clients"]]))


def size(count: float) -> str:
    """Return a number of bytes as a person writes it."""
    return f"{count / 1e6:.2f} MB" if count >= 1e6 else f"{count / 1e3:.1f} kB" if count >= 1e3 else f"{count:.0f} B"


def bits_label(client: Result) -> str:
    """Return the bits per weight of a client's quantized parameters: "2", "1-8", or "float"."""
    widths = sorted(set(client["bits"].values()))
    return "float" if not widths else str(widths[0]) if len(widths) == 1 else f"{widths[0]}-{widths[-1]}"


def percent(share: float | None) -> str:
    """Return an accuracy as a person reads it; nothing if there is none."""
    return "" if share is None else f"{share:.1%}"


def whole_percent(share: float | None) -> str:
    """Return a share of clients as a person reads it; nothing if there is none."""
    return "" if share is None else f"{share:.0%}"


def client_table(result: Result, width: int) -> Table:
    """One line per client, or per kind of client if there are many: what it runs, how well, and how large that is.

    In a narrow terminal, the most important columns.
    """
    clients = result["clients"]
    many = len(clients) > MOST_ROWS
    table = Table(title=f"{title(result)}: what every client got{where(result)}", title_justify="left")
    left_out = set() if width >= NARROW else {"network", "as float32"}
    columns = ["client", *(["clients"] if many else []), "network", "bits", "samples", "accuracy", "size", "as float32"]
    kept = [name for name in columns if name not in left_out]
    for name in kept:
        table.add_column(name, no_wrap=True, justify="left" if name in ("client", "network") else "right")

    def add(**cells: str) -> None:
        table.add_row(*(cells.get(name.replace(" ", "_"), "") for name in kept))

    groups = kinds(clients) if many else [[client] for client in clients]
    for group in groups[:MOST_ROWS]:
        first = group[0]
        add(
            client=kind(first) if many else first["name"],
            clients=str(len(group)),
            network=first["network"],
            bits=bits_label(first),
            **averages(group),
        )
    if len(groups) > MOST_ROWS:
        add(client=f"{len(groups) - MOST_ROWS:,} more")
    table.add_section()
    add(client="mean", clients=str(len(clients)), **averages(clients))
    if result["global_accuracy"] is not None:
        add(client="global model", accuracy=percent(result["global_accuracy"]))
    if "accuracy" in (newcomers := result.get("newcomers") or {}):
        count = str(len(newcomers["test_samples"]))
        add(client="newcomers", clients=count, accuracy=percent(newcomers["accuracy"]["mean"]))
    return table


def averages(clients: list[Result]) -> dict[str, str]:
    """Return the columns that are means over clients."""
    accuracies = [client["accuracy"] for client in clients if client["accuracy"] is not None]
    return {
        "samples": f"{np.mean([client['samples'] for client in clients]):,.0f}",
        "accuracy": percent(float(np.mean(accuracies)) if accuracies else None),
        "size": size(float(np.mean([client["bytes_file"] for client in clients]))),
        "as_float32": size(float(np.mean([client["bytes_float32"] for client in clients]))),
    }


def kind(client: Result) -> str:
    """Return the kind of a client: its name without the number at its end."""
    return str(client["name"]).rstrip("0123456789").rstrip("-") or str(client["name"])


def kinds(clients: list[Result]) -> list[list[Result]]:
    """Return the clients by kind, network and bits."""
    groups: dict[tuple[str, str, str], list[Result]] = {}
    for client in clients:
        groups.setdefault((kind(client), client["network"], bits_label(client)), []).append(client)
    return list(groups.values())


def comparison_table(results: list[Result], width: int) -> Table:
    """One line per algorithm; in a narrow terminal, the most important columns."""
    table = Table(title=f"The same clients, other methods{where(results[0])}", title_justify="left")
    lines = [
        {
            "method": name,
            "accuracy": percent(accuracy(result)),
            "worst tenth": percent(result["accuracy"].get("worst_tenth")),
            "below local": whole_percent(share_below(result, results, "local")),
            "below FedAvg": whole_percent(share_below(result, results, "fedavg")),
            "global model": percent(result["global_accuracy"]),
            "size per client": size(mean(result, "bytes_file")),
            "seconds": f"{result['seconds']:.0f}",
        }
        for name, result in zip(titles(results), results, strict=True)
    ]
    left_out = next(names for least, names in LEFT_OUT.items() if width >= least)
    kept = [name for name in lines[0] if name not in left_out and any(line[name] for line in lines)]
    for name in kept:
        table.add_column(name, justify="left" if name == "method" else "right")
    for line in lines:
        table.add_row(*(line[name] for name in kept))
    return table


def verdict(results: list[Result]) -> str:
    """Say in a sentence per method how the first one compares with it."""
    first, names = results[0], titles(results)
    return "\n".join(
        f"{names[0]} {compared(first, other)} {name}{space(first, other)}."
        for other, name in zip(results[1:], names[1:], strict=True)
    )


def compared(first: Result, other: Result) -> str:
    """Return how the accuracy of one result compares with that of another, in words."""
    mine, theirs = accuracy(first), accuracy(other)
    if mine is None or theirs is None:
        return "was not compared with"
    gap = 100 * (mine - theirs)
    if abs(gap) < 0.05:
        return "is as accurate as"
    return f"is {abs(gap):.1f} points {'above' if gap > 0 else 'below'}"


def space(first: Result, other: Result) -> str:
    """Say how much smaller the models of one result are, if they are."""
    ratio = mean(other, "bytes_file") / mean(first, "bytes_file")
    return f", in 1/{ratio:.1f} of the space" if ratio > 1.05 else ""
