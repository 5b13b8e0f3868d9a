"""Who takes part: nodes of Flower, and the names of the clients that they are bound to."""

import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from flwr.serverapp import Grid
from torch import Tensor

from quped.flower.wire import DTYPES, Reply
from quped.typing import Batch

log = logging.getLogger("quped")

FACTS = {"client": str, "samples": int, "network": str, "bits": str, "parameters": int, "inputs": str, "machine": str}
"""What a node says of itself."""

MOST_INPUTS = 2**28
"""Numbers in two samples: more are no samples, but an attack on the server's memory."""


@dataclass(frozen=True)
class Member:
    """A client that has introduced itself."""

    name: str
    samples: int
    network: str
    bits: Mapping[str, int]
    parameters: int
    inputs: Sequence[Sequence[Any]]
    """Type and shape of each input of a batch of two samples."""
    machine: Mapping[str, str]
    """Versions and CPU."""

    @classmethod
    def of(cls, reply: Reply) -> "Member":
        """Return what a node says of itself. Raise a ValueError if that cannot be."""
        values: dict[str, Any] = {key: reply.values.get(key) for key in FACTS}
        for key, kind in FACTS.items():
            if type(values[key]) is not kind:
                raise ValueError(f"its '{key}' is {values[key]!r:.80}")
        name, samples, network, bits, parameters, inputs, machine = values.values()
        widths, shapes, facts = (json.loads(str(words)) for words in (bits, inputs, machine))
        if samples < 1 or not isinstance(widths, dict) or not isinstance(facts, dict) or not shapes:
            raise ValueError("it has no samples, bits, inputs or versions")
        member = cls(name, samples, network, widths, parameters, shapes, {str(k): str(v) for k, v in facts.items()})
        StandIn(member.inputs)
        return member


class StandIn:
    """Two samples of zeros, in the form of a client's: the server has no others."""

    def __init__(self, inputs: Sequence[Sequence[Any]]) -> None:
        """Take the type and the shape of each input of a batch."""
        zeros = []
        for kind, *shape in inputs:
            if kind not in DTYPES or not all(type(size) is int and 0 <= size <= MOST_INPUTS for size in shape):
                raise ValueError(f"its inputs are {inputs!r:.80}")
            if math.prod(shape) > MOST_INPUTS:
                raise ValueError(f"its inputs have the shape {shape!r:.80}")
            zeros.append(torch.zeros(shape, dtype=DTYPES[kind]))
        self._inputs = tuple(zeros)

    @property
    def labels(self) -> Tensor:
        """Labels of both samples."""
        return torch.zeros(2, dtype=torch.int64)

    def __len__(self) -> int:
        """Return the number of samples."""
        return 2

    def batch(self, indices: Tensor, rng: object = None) -> Batch:
        """Return both samples, whichever are asked for."""
        return Batch(self._inputs, self.labels)


class Members:
    """Binds the names of clients to nodes.

    A node that authenticates itself has the name that its key was registered with. Others, where the SuperLink lets
    them in, have the name that they say, as long as no node with this name is there.
    """

    def __init__(self, grid: Grid, names: Sequence[str], *, newcomers: bool = False) -> None:
        """Expect clients with these names; with newcomers, also those whose keys are registered with other names."""
        self._grid, self._names, self._newcomers = grid, sorted(names), newcomers
        self._nodes: dict[str, int] = {}
        self._refused: set[int] = set()
        self.known: dict[str, Member] = {}

    def expect(self, names: Sequence[str]) -> None:
        """Expect clients with these names, too."""
        self._names = sorted({*self._names, *names})

    def node(self, name: str) -> int | None:
        """Return the node of a client that has introduced itself, while it is there."""
        return self._nodes.get(name) if name in self.known else None

    def registered(self, name: str) -> int | None:
        """Return the node whose key is registered with a name, while it is there."""
        return self._nodes.get(name)

    def refresh(self) -> list[int]:
        """Look who is there; return the nodes that have not introduced themselves."""
        there = {node.node_id: node.name for node in self._grid.get_nodes()}
        self._nodes = {name: node for name, node in self._nodes.items() if node in there}
        for node, name in there.items():
            if name and self._nodes.get(name, node) != node:
                self._refuse(node, f"another node is registered as '{name}'")
            elif name and (self._newcomers or name in self._names):
                self._nodes[name] = node
            elif name:
                self._refuse(
                    node,
                    f"its key is registered as '{name}', which is none of {', '.join(self._names)}: add it to "
                    "tool.quped.nodes, or set the option `newcomers`",
                )
        bound = {node: name for name, node in self._nodes.items()}
        return [n for n in there if n not in self._refused and (n not in bound or bound[n] not in self.known)]

    def admit(self, node: int, reply: Reply, fits: Callable[[Member], None]) -> Member | None:
        """Bind a node to the client that it says to be, unless that is somebody else's name, or does not fit."""
        try:
            member = Member.of(reply)
            fits(member)
        except Exception as error:  # whatever the app's network does with inputs of this form
            self._refuse(node, str(error))
            return None
        bound = {number: name for name, number in self._nodes.items()}
        if bound.get(node, member.name) != member.name:
            self._refuse(node, f"it says to be '{member.name}', but its key is registered as '{bound[node]}'")
        elif node not in bound and member.name not in self._names:
            self._refuse(node, f"it says to be '{member.name}', which is none of {', '.join(self._names)}")
        elif self._nodes.get(member.name, node) != node:
            self._refuse(node, f"it says to be '{member.name}', which is another node")
        else:
            self._nodes[member.name] = node
            self.known[member.name] = member
            return member
        return None

    def _refuse(self, node: int, reason: str) -> None:
        if node not in self._refused:
            self._refused.add(node)
            log.warning("Node %d is refused: %s.", node, reason.rstrip("."))


def warn_of_differences(members: Mapping[str, Member]) -> None:
    """Warn of versions and CPUs that differ: results may then differ in the last bits from a simulation."""
    for what in sorted({key for member in members.values() for key in member.machine}):
        kinds: dict[str, list[str]] = {}
        for name, member in sorted(members.items()):
            kinds.setdefault(member.machine.get(what, "unknown"), []).append(name)
        if len(kinds) > 1:
            told = "; ".join(f"{kind} at {', '.join(names)}" for kind, names in kinds.items())
            log.warning(
                "The nodes differ in %s: %s. Results may differ from a simulation in the last bits.", what, told
            )
