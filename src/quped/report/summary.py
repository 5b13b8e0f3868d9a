"""A report in one sentence: how good the own models are beside the alternatives, how small, and who is hurt."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from quped.report.terminal import percent, size

Part = dict[str, Any]
"""A piece of the sentence: its `text`, whether it is `strong`, and the number of the `method` that it speaks of."""


def sentence(methods: Sequence[dict[str, Any]]) -> list[Part]:
    """Return the sentence in pieces."""
    first = methods[0]
    if mean_of(first, "accuracy") is None:
        state = {"failed": "ended with an error", "unfinished": "has no evaluation yet", "finished": "tested no client"}
        return [plain(f"The run of {first['label']} {state[first['state']]}.")]
    if len({one["family"] for one in methods}) > 1:
        return side_by_side(methods)
    clients = len(first["clients"])
    opening = (
        ""
        if first["single"]
        else " gives clients models of their own that"
        if clients > 1
        else " gives its client a model that"
    )
    so_far = "" if first["state"] == "finished" else " so far"
    average = " on average" if clients > 1 else ""
    where = " of validation samples" if first["validation"] else ""
    parts = [
        named(first, 0),
        plain(f"{opening} get{'s' if clients == 1 else ''} "),
        strong(percent(mean_of(first, "accuracy"))),
    ]
    parts.append(plain(f"{where} right{average}{so_far}"))
    parts += [piece for number, other in enumerate(methods[1:], 1) for piece in beside(first, other, number)]
    return [*parts, *how_small(first), *who_is_hurt(first), plain(".")]


def side_by_side(methods: Sequence[dict[str, Any]]) -> list[Part]:
    """Say of several runs which is the most accurate, and which has the smallest models."""
    scored = [(mean_of(one, "accuracy"), number) for number, one in enumerate(methods)]
    accuracy, best = max((value, -number) for value, number in scored if value is not None)
    sizes = [(mean_of(one, "bytes"), number) for number, one in enumerate(methods)]
    parts = [plain("Of these runs, "), named(methods[-best], -best), plain(" is the most accurate with ")]
    parts.append(strong(percent(accuracy)))
    if known := [(value, number) for value, number in sizes if value is not None]:
        small, number = min(known)
        who = [] if number == -best else [named(methods[number], number)]
        parts += [plain(", and " if who else " and"), *who, plain(" has the smallest models with ")]
        parts.append(strong(size(small)))
    return [*parts, plain(".")]


def beside(first: dict[str, Any], other: dict[str, Any], number: int) -> list[Part]:
    """Say how the first method compares with another one."""
    mine, theirs = mean_of(first, "accuracy"), mean_of(other, "accuracy")
    if mine is None or theirs is None:
        return []
    gap = 100 * (mine - theirs)
    if abs(gap) < 0.05:
        return [plain(", as "), named(other, number)]
    word = "more" if gap > 0 else "fewer"
    return [plain(", "), strong(f"{abs(gap):.1f} points {word}"), plain(" than "), named(other, number)]


def how_small(method: dict[str, Any]) -> list[Part]:
    """Say how large the models are."""
    held, full = mean_of(method, "bytes"), mean_of(method, "float32")
    if held is None or full is None:
        return []
    each = "" if len(method["clients"]) == 1 else " each"
    instead = f" instead of {size(full)}" if full / held > 1.05 else ""
    return [plain(", in "), strong(size(held)), plain(f"{instead}{each}")]


def who_is_hurt(method: dict[str, Any]) -> list[Part]:
    """Say how many clients are clearly worse than alone, and which one the most."""
    known = [client for client in method["clients"] if client.get("hurt") is not None]
    if not known:
        return []
    hurt = [client for client in known if client["hurt"]]
    if not hurt:
        return [plain("; "), strong("no client"), plain(" is clearly worse than alone")]
    worst = min(hurt, key=lambda client: float(client["gain"]))
    verb = "is" if len(hurt) == 1 else "are"
    told = f" {verb} clearly worse than alone, {worst['name']} the most, by {-100 * worst['gain']:.1f} points"
    return [plain("; "), strong(f"{len(hurt):,} of {len(known):,} clients"), plain(told)]


def mean_of(method: dict[str, Any], field: str) -> float | None:
    """Return the mean over clients of a number, if they have it."""
    values = [client[field] for client in method["clients"] if client.get(field) is not None]
    return float(np.mean(values)) if values else None


def plain(text: str) -> Part:
    """Return a piece of text."""
    return {"text": text}


def strong(text: str) -> Part:
    """Return a piece of text that stands out."""
    return {"text": text, "strong": True}


def named(method: dict[str, Any], number: int) -> Part:
    """Return the name of a method, in its colour."""
    return {"text": method["label"], "strong": True, "method": number}
