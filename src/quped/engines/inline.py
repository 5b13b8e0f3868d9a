"""The engine for debugging and small federations: everything in this process, one client after the other."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from quped.algorithms import AnyAlgorithm
from quped.engines.rounds import Plan, Player, mean
from quped.engines.worker import one_thread, play_client, score_client
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
        losses: list[float] = []

        def payloads() -> Iterator[Any]:
            for client in chosen:
                player = self._players[client]
                self._personal[client], payload, loss = play_client(
                    self._algorithm, player, self._plan, self._seed, shared, self.personal(shared, client), clock
                )
                losses.append(loss)
                yield payload

        with one_thread():
            return mean(payloads()), sum(losses) / len(losses)

    def personal(self, shared: Any, client: int) -> Any:
        """Return a client's own state; of one that never took part, the one that it would start with."""
        if client in self._personal:
            return self._personal[client]
        return self._algorithm.init_personal(self._players[client].task, shared)

    def deployed(self, shared: Any, client: int) -> Model:
        """Return the model that a client uses now."""
        return self._algorithm.deploy(self._players[client].task, shared, self.personal(shared, client))

    def scores(self, shared: Any) -> list[float]:
        """Evaluate every client's deployed model on its own test samples."""
        with one_thread():
            return [
                score_client(self._algorithm, player, self._seed, shared, self.personal(shared, i))
                for i, player in enumerate(self._players)
            ]

    def states(self) -> dict[int, Any]:
        """Return the personal state of every client that took part."""
        return dict(self._personal)

    def restore(self, states: Mapping[int, Any]) -> None:
        """Go on from such states."""
        self._personal = dict(states)

    def close(self) -> None:
        """There is nothing to end."""
