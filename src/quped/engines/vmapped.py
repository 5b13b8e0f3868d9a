"""The engine for GPUs: clients that are alike are stacked, and their rounds computed at once under torch.func.vmap.

A small network leaves most of a GPU idle; fifty of them in one operation do not. The result is that of the inline
engine up to rounding, since a stack is added up in another order; dropout draws other numbers.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch
from torch.func import vmap

from quped import tree
from quped.algorithms import AnyAlgorithm
from quped.engines.inline import InlineEngine
from quped.engines.rounds import Plan, Player, client_round, mean
from quped.engines.worker import batches_of, check_loss, naming, one_thread, play_client
from quped.errors import InvalidValueError, RunError
from quped.rng import torch_seeded
from quped.stacking import stacking
from quped.typing import Batch, Clock, Model

Steps = tuple[tuple[Batch, ...], ...]
"""The batches of a client's round."""

Played = tuple[Any, Any, float]
"""A client's personal state, payload and loss after its round."""


class VmappedEngine:
    """Computes on a device; between rounds the clients' states lie in main memory.

    Clients are alike that have the same task and batches of the same shape. One that is like no other is computed as
    the inline engine does it, on the CPU.
    """

    def __init__(
        self, algorithm: AnyAlgorithm, players: Sequence[Player], plan: Plan, seed: int, device: torch.device | str
    ) -> None:
        """Prepare a run; a client's state begins with its first round."""
        try:
            torch.empty(0, device=device)
        except (RuntimeError, AssertionError) as error:
            raise InvalidValueError(f"The device '{device}' cannot be used: {error}") from error
        self._algorithm = algorithm
        self._players = players
        self._plan = plan
        self._seed = seed
        self._device = device
        self._inline = InlineEngine(algorithm, players, plan, seed)
        """Holds the states, and evaluates."""

    def play(self, shared: Any, clock: Clock, chosen: Sequence[int]) -> tuple[Any, float]:
        """Run one round of the chosen clients; return the mean of their payloads, in this order, and the mean loss."""
        steps: dict[int, Steps] = {}
        groups: dict[Hashable, list[int]] = {}
        for client in chosen:
            player = self._players[client]
            with naming(player, clock.round), torch_seeded(self._seed, "steps", player.name, clock.round):
                steps[client] = tuple(batches_of(self._algorithm, player, self._plan, self._seed, clock))
            groups.setdefault((id(player.task), shapes(steps[client])), []).append(client)
        played: dict[int, Played] = {}
        with one_thread():
            for group in groups.values():
                if len(group) == 1:
                    played[group[0]] = self._alone(shared, clock, group[0])
                else:
                    results = self._together(shared, clock, group, [steps[client] for client in group])
                    played |= zip(group, results, strict=True)
        self._inline.restore(self._inline.states() | {client: personal for client, (personal, _, _) in played.items()})
        losses = [played[client][2] for client in chosen]
        return mean(played[client][1] for client in chosen), sum(losses) / len(losses)

    def deployed(self, shared: Any, client: int) -> Model:
        """Return the model that a client uses now."""
        return self._inline.deployed(shared, client)

    def scores(self, shared: Any) -> list[float]:
        """Evaluate every client's deployed model on its own test samples."""
        return self._inline.scores(shared)

    def states(self) -> dict[int, Any]:
        """Return the personal state of every client that took part."""
        return self._inline.states()

    def restore(self, states: Mapping[int, Any]) -> None:
        """Go on from such states."""
        self._inline.restore(states)

    def close(self) -> None:
        """There is nothing to end."""

    def _alone(self, shared: Any, clock: Clock, client: int) -> Played:
        player, personal = self._players[client], self._inline.personal(shared, client)
        return play_client(self._algorithm, player, self._plan, self._seed, shared, personal, clock)

    def _together(self, shared: Any, clock: Clock, group: Sequence[int], steps: Sequence[Steps]) -> list[Played]:
        """Compute the rounds of clients that are alike."""
        players = [self._players[client] for client in group]
        task, count = players[0].task, len(group)

        def one_client(shared: Any, personal: Any, steps: Steps) -> tuple[Any, Any, torch.Tensor]:
            return client_round(self._algorithm, task, shared, personal, steps, clock)

        def stack(*leaves: torch.Tensor) -> torch.Tensor:
            return torch.stack(leaves).to(self._device)

        # The shared state is stacked, too: BatchNorm changes copies of it in place, each client its own.
        everyones = tree.map_leaves(lambda leaf: leaf.to(self._device).expand(count, *leaf.shape), shared)
        personals = tree.map_leaves(stack, *(self._inline.personal(shared, client) for client in group))
        try:
            with stacking(), torch_seeded(self._seed, "steps", players[0].name, clock.round):
                together = vmap(one_client, randomness="different")
                results = together(everyones, personals, tree.map_leaves(stack, *steps))
        except (RuntimeError, ValueError, TypeError, IndexError, AttributeError) as error:
            names = ", ".join(f"'{player.name}'" for player in players)
            raise RunError(
                f"Round {clock.round + 1} of the clients {names} cannot be computed at once: {error} "
                "Without device=..., they are computed one by one."
            ) from error
        # A client's part is copied: it would keep the memory of the whole stack.
        played = [tree.map_leaves(lambda leaf, i=i: leaf[i].to("cpu", copy=True), results) for i in range(count)]
        for player, (_, _, loss) in zip(players, played, strict=True):
            check_loss(player, clock, float(loss))
        return [(personal, payload, float(loss)) for personal, payload, loss in played]


def shapes(steps: Steps) -> Hashable:
    """Return what must be equal for batches to be stacked."""
    return tuple((leaf.shape, leaf.dtype) for _, leaf in tree.items(steps))
