"""Where a network is cut into a head and the body below it."""

from collections.abc import Sequence
from typing import NamedTuple

from quped.algorithms.base import ClientSpec
from quped.errors import InvalidValueError, check, did_you_mean


class Parts(NamedTuple):
    """The names of the trained parameters of both parts."""

    head: tuple[str, ...]
    body: tuple[str, ...]


def check_head(named: object, method: str) -> None:
    """Raise unless a hyperparameter `head` is None or names of parameters."""
    names = isinstance(named, list | tuple) and all(isinstance(name, str) for name in named)
    check(named is None or names, f"head of {method}", "None or a list of names of parameters", named)


def parts(spec: ClientSpec, named: Sequence[str] | None) -> Parts:
    """Return the parts of a client's network. The head is what the user named, by default the last layer."""
    params = spec.initial.params
    head = spec.head if named is None else tuple(dict.fromkeys(named))
    if unknown := [name for name in head if name not in params]:
        raise InvalidValueError(
            f"The network has no trained parameter '{unknown[0]}', which head names. {did_you_mean(unknown[0], params)}"
        )
    if named is None and not head:
        raise InvalidValueError("The last layer of the network is frozen, or unknown: name the head with head=[...].")
    body = tuple(name for name in params if name not in head)
    if not body:
        raise InvalidValueError("The head is the whole network: name a part of it with head=[...].")
    return Parts(head, body)
