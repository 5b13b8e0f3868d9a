"""What every engine can do."""

import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import torch

from quped import _tree
from quped._evaluate import Score
from quped.algorithms import Deployed
from quped.errors import QupedError, RunError
from quped.typing import Clock


class Engine(Protocol):
    """Holds the personal states of all clients, and computes their rounds."""

    def run_round(self, shared: Any, clock: Clock, chosen: Sequence[int]) -> tuple[Any, float]:
        """Run one round of the chosen clients; return the mean of their payloads, in this order, and the mean loss."""
        ...

    def deploy(self, shared: Any, client: int) -> Deployed:
        """Return the model that a client uses now."""
        ...

    def evaluate(self, shared: Any) -> dict[int, Score]:
        """Evaluate each client's deployed model on its own test samples, if it has some."""
        ...

    def states(self) -> dict[int, Any]:
        """Return the personal state of every client that took part."""
        ...

    def restore(self, states: Mapping[int, Any]) -> None:
        """Continue from such states."""
        ...

    def close(self) -> None:
        """Release processes and files."""
        ...


def average(updates: Iterable[tuple[Any, float]], clock: Clock) -> tuple[Any, float]:
    """Return the mean payload and the mean loss of a round's updates.

    Payloads are added one by one in their order: the same bits in every engine.
    """
    total, losses = None, list[float]()
    for payload, loss in updates:
        total = payload if total is None else _tree.map_leaves(torch.add, total, payload)
        losses.append(loss)
    if not losses:
        raise RunError(f"No client of round {clock.round + 1} gave an update that can be used.")
    return _tree.map_leaves(lambda leaf: leaf / len(losses), total), sum(losses) / len(losses)


def reported(do: Callable[[], Any]) -> Any:
    """Do something in a worker; return its result, or an error that survives the way to the engine, which raises it."""
    try:
        return do()
    except QupedError as error:  # with the place that a pickle leaves out
        if error.__cause__ is not None:
            error.add_note("".join(traceback.format_exception(error.__cause__)))
        return error
    except Exception:  # of ours: its pickle may not be readable
        return RuntimeError(traceback.format_exc())
