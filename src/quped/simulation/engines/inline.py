"""The engine for debugging and small federations: everything in this process, one client after the other."""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from quped._evaluate import Score
from quped.algorithms import Deployed
from quped.errors import BadUpdateError
from quped.simulation.client_round import deployed_model, evaluate_client, initial_personal, one_thread, run_client
from quped.simulation.engines.base import average
from quped.simulation.setup import Setup
from quped.typing import Clock


class InlineEngine:
    """Holds every client's personal state in memory."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._personal: dict[int, Any] = {}
        self.seconds: dict[int, float] = {}
        """How long each client of the last round took."""

    def run_round(self, shared: Any, clock: Clock, chosen: Sequence[int]) -> tuple[Any, float]:
        """Run one round of the chosen clients; return the mean of their payloads and the mean loss."""
        self.seconds = {}

        def updates() -> Iterator[tuple[Any, float]]:
            for number in chosen:
                began = time.perf_counter()
                client, personal = self._setup.clients[number], self.personal(shared, number)
                try:
                    self._personal[number], payload, loss = run_client(self._setup, client, shared, personal, clock)
                except BadUpdateError as error:
                    self._setup.handle_bad_update(error)
                else:
                    self.seconds[number] = time.perf_counter() - began
                    yield payload, loss

        return average(updates(), clock)

    def personal(self, shared: Any, client: int) -> Any:
        """Return a client's own state; before its first round, its initial state."""
        if client in self._personal:
            return self._personal[client]
        return initial_personal(self._setup, self._setup.clients[client], shared)

    def deploy(self, shared: Any, client: int) -> Deployed:
        """Return the model that a client uses now."""
        return deployed_model(self._setup, self._setup.clients[client], shared, self.personal(shared, client))

    def evaluate(self, shared: Any) -> dict[int, Score]:
        """Evaluate the deployed model of each client that is evaluated on its own test samples."""
        with one_thread():
            return {
                i: evaluate_client(self._setup, self._setup.clients[i], test, shared, self.personal(shared, i))
                for i, test in self._setup.evaluated.items()
            }

    def states(self) -> dict[int, Any]:
        """Return the personal state of every client that took part."""
        return dict(self._personal)

    def restore(self, states: Mapping[int, Any]) -> None:
        """Continue from such states; other clients keep theirs."""
        self._personal |= states

    def close(self) -> None:
        """Do nothing: there is nothing to release."""
