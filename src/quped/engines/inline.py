"""The engine for debugging and small federations: everything in this process, one client after the other."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from quped import tree
from quped.algorithms import AnyAlgorithm
from quped.data.batches import draw
from quped.engines.rounds import Plan, Player, client_round
from quped.errors import QupedError, RunError
from quped.evaluate import Score, score
from quped.rng import torch_seeded
from quped.typing import Clock, Model


class InlineEngine:
    """Holds every client's personal state in memory."""

    def __init__(self, algorithm: AnyAlgorithm, players: Sequence[Player], plan: Plan, seed: int) -> None:
        """Prepare a run; a client's state begins with its first round."""
        self._algorithm = algorithm
        self._players = players
        self._plan = plan
        self._seed = seed
        self._personal: dict[int, Any] = {}

    def play(self, shared: Any, clock: Clock, chosen: Sequence[int]) -> tuple[Any, float]:
        """Run one round of the chosen clients; return the mean of their payloads and the mean loss."""
        total, losses = None, []
        with one_thread():
            for client in chosen:
                payload, loss = self._client(shared, clock, client)
                total = payload if total is None else tree.map_leaves(torch.add, total, payload)
                losses.append(loss)
        return tree.map_leaves(lambda leaf: leaf / len(chosen), total), sum(losses) / len(losses)

    def _client(self, shared: Any, clock: Clock, client: int) -> tuple[Any, float]:
        player = self._players[client]
        batches = draw(
            player.train,
            seed=self._seed,
            client=player.name,
            round_=clock.round,
            steps=self._plan.local_steps,
            batch_size=player.batch_size,
            draws=self._algorithm.draws,
        )
        try:
            with torch_seeded(self._seed, "steps", player.name, clock.round):
                personal, payload, loss = client_round(
                    self._algorithm, player.task, shared, self.personal(shared, client), batches, clock
                )
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            if isinstance(error, QupedError):
                raise
            raise RunError(f"Client '{player.name}' failed in round {clock.round}: {error}") from error
        if not math.isfinite(loss):
            raise RunError(
                f"The training loss of client '{player.name}' became {loss} in round {clock.round}: "
                "lower the learning rate lr, or check the scale of its inputs."
            )
        self._personal[client] = personal
        return payload, loss

    def personal(self, shared: Any, client: int) -> Any:
        """Return a client's own state; of one that never took part, the one that it would start with."""
        if client in self._personal:
            return self._personal[client]
        return self._algorithm.init_personal(self._players[client].task, shared)

    def deployed(self, shared: Any, client: int) -> Model:
        """Return the model that a client uses now."""
        return self._algorithm.deploy(self._players[client].task, shared, self.personal(shared, client))

    def scores(self, shared: Any) -> list[Score]:
        """Evaluate every client's deployed model on its own test samples."""
        with one_thread():
            return [
                score(player.task.network, self.deployed(shared, i), player.test)
                for i, player in enumerate(self._players)
            ]


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread: faster for small networks, and sums are then added in one order everywhere."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
