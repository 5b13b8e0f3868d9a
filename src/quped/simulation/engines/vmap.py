"""The engine for GPUs: clients that are alike are stacked, and their rounds computed at once under torch.func.vmap.

A small network leaves most of a GPU idle; fifty of them in one operation do not. The result is that of the inline
engine up to rounding, since a stack is added up in another order; dropout draws other numbers.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch
from torch.func import vmap

from quped import _tree
from quped._evaluate import Score
from quped._rng import torch_seeded
from quped._transform import entering
from quped.algorithms import Deployed
from quped.errors import BadUpdateError, InvalidValueError, RunError
from quped.simulation._naming import naming
from quped.simulation.client_round import (
    batches_of,
    bound_update,
    check_update,
    client_round,
    compute_client,
    one_thread,
)
from quped.simulation.engines.base import average
from quped.simulation.engines.inline import InlineEngine
from quped.simulation.setup import Setup
from quped.typing import Batch, Clock

Steps = tuple[tuple[Batch, ...], ...]
"""The batches of a client's round."""

Outcome = tuple[Any, Any, float]
"""A client's personal state, payload and loss after its round."""


def check_device(device: torch.device | str) -> None:
    """Raise if PyTorch cannot compute on a device here."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        cause = str(error).strip().splitlines()[0].split(". ")[0].rstrip(".")
        raise InvalidValueError(
            f"The device '{device}' cannot be used here: {cause}. Leave it out to use the CPU."
        ) from error


class VmapEngine:
    """Computes on a device; between rounds the clients' states lie in main memory.

    Clients are alike that have the same spec and batches of the same shape. One that is like no other is computed as
    the inline engine does it, on the CPU.
    """

    def __init__(self, setup: Setup, device: torch.device | str) -> None:
        check_device(device)
        self._setup = setup
        self._device = device
        self._inline = InlineEngine(setup)
        """Holds the states, and evaluates."""
        self.seconds: dict[int, float] = {}
        """Always empty: clients that are computed at once take one time."""

    def run_round(self, shared: Any, clock: Clock, chosen: Sequence[int]) -> tuple[Any, float]:
        """Run one round of the chosen clients; return the mean of their payloads, in this order, and the mean loss."""
        steps: dict[int, Steps] = {}
        groups: dict[Hashable, list[int]] = {}
        for number in chosen:
            client = self._setup.clients[number]
            with naming(client.name, clock.round), torch_seeded(self._setup.seed, "steps", client.name, clock.round):
                steps[number] = tuple(batches_of(self._setup, client, clock))
            groups.setdefault((client.spec.group, shapes(steps[number])), []).append(number)
        done: dict[int, Outcome] = {}
        with one_thread():
            for group in groups.values():
                for number, outcome in zip(group, self._run_group(shared, clock, group, steps), strict=True):
                    try:
                        personal, payload = check_update(self._setup, self._setup.clients[number], clock, *outcome)
                    except BadUpdateError as error:
                        self._setup.handle_bad_update(error)
                    else:
                        most = self._setup.options.max_update_norm
                        done[number] = personal, bound_update(payload, shared, most), outcome[2]
        self._inline.restore({number: personal for number, (personal, _, _) in done.items()})
        return average((done[number][1:] for number in chosen if number in done), clock)

    def deploy(self, shared: Any, client: int) -> Deployed:
        """Return the model that a client uses now."""
        return self._inline.deploy(shared, client)

    def evaluate(self, shared: Any) -> dict[int, Score]:
        """Evaluate the deployed model of each client that is evaluated on its own test samples."""
        return self._inline.evaluate(shared)

    def states(self) -> Mapping[int, Any]:
        """Return the personal state of every client that took part."""
        return self._inline.states()

    def restore(self, states: Mapping[int, Any]) -> None:
        """Continue from such states; other clients keep theirs."""
        self._inline.restore(states)

    def close(self) -> None:
        """Do nothing: there is nothing to release."""

    def _run_group(self, shared: Any, clock: Clock, group: Sequence[int], steps: Mapping[int, Steps]) -> list[Outcome]:
        """Compute the rounds of clients that can be stacked."""
        if len(group) > 1:
            return self._run_stacked(shared, clock, group, [steps[number] for number in group])
        personal = self._inline.personal(shared, group[0])
        return [compute_client(self._setup, self._setup.clients[group[0]], shared, personal, clock)]

    def _run_stacked(self, shared: Any, clock: Clock, group: Sequence[int], steps: Sequence[Steps]) -> list[Outcome]:
        """Compute the rounds of clients with one specification at once."""
        clients = [self._setup.clients[client] for client in group]
        spec, count = clients[0].spec, len(group)

        def one_client(shared: Any, personal: Any, steps: Steps) -> tuple[Any, Any, torch.Tensor]:
            return client_round(self._setup.algorithm, spec, shared, personal, steps, clock)

        def stack(*leaves: torch.Tensor) -> torch.Tensor:
            return torch.stack(leaves).to(self._device)

        # The shared state is stacked, too: BatchNorm changes copies of it in place, each client its own.
        everyones = _tree.map_leaves(lambda leaf: leaf.to(self._device).expand(count, *leaf.shape), shared)
        personals = _tree.map_leaves(stack, *(self._inline.personal(shared, client) for client in group))
        try:
            with entering("vmap"), torch_seeded(self._setup.seed, "steps", clients[0].name, clock.round):
                all_clients = vmap(one_client, randomness="different")
                results = all_clients(everyones, personals, _tree.map_leaves(stack, *steps))
        except (RuntimeError, ValueError, TypeError, IndexError, AttributeError) as error:
            names = ", ".join(f"'{client.name}'" for client in clients)
            raise RunError(
                f"Round {clock.round + 1} of the clients {names} cannot be computed at once: {error} "
                "Without device=..., they are computed one by one."
            ) from error
        # A client's part is copied: it would keep the memory of the whole stack.
        outcomes = [_tree.map_leaves(lambda leaf, i=i: leaf[i].to("cpu", copy=True), results) for i in range(count)]
        return [(personal, payload, float(loss)) for personal, payload, loss in outcomes]


def shapes(steps: Steps) -> Hashable:
    """Return what must be equal for batches to be stacked."""
    return tuple((leaf.shape, leaf.dtype) for _, leaf in _tree.items(steps))
