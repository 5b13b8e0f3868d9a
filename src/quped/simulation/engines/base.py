"""What every engine can do."""

import ctypes
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

import torch

from quped import _tree
from quped._evaluate import Score
from quped.algorithms import Deployed
from quped.errors import BadUpdateError, QupedError
from quped.simulation.client_round import one_thread
from quped.typing import Clock


class Engine(Protocol):
    """Holds the personal states of all clients, and computes their rounds."""

    @property
    def seconds(self) -> Mapping[int, float]:
        """How long each client of the last round took; empty if clients are computed at once."""
        ...

    def run_round(self, shared: Any, clock: Clock, chosen: Sequence[int]) -> tuple[Any, float]:
        """Run one round of the chosen clients; return the mean of their payloads, in this order, and the mean loss."""
        ...

    def deploy(self, shared: Any, client: int) -> Deployed:
        """Return the model that a client uses now."""
        ...

    def evaluate(self, shared: Any) -> dict[int, Score]:
        """Evaluate the deployed model of each client in `setup.evaluated` on its own test samples."""
        ...

    def states(self) -> Mapping[int, Any]:
        """Return the personal state of every client that took part; it may be read when it is asked for."""
        ...

    def restore(self, states: Mapping[int, Any]) -> None:
        """Continue from such states; other clients keep theirs."""
        ...

    def close(self) -> None:
        """End all processes. States stay: `deploy` still works."""
        ...


def average(updates: Iterable[tuple[Any, float]], clock: Clock) -> tuple[Any, float]:
    """Return the mean payload and the mean loss of a round's updates.

    The mean of a tensor is over the clients that sent it: those of one group send the same ones. Payloads are added one
    by one in their order: the same bits in every engine.
    """
    form: Any = None
    totals, counts, losses = dict[str, torch.Tensor](), Counter[str](), list[float]()
    # More threads than one would not gain time, but take it from workers: after a sum they spin for a while.
    with one_thread():
        for payload, loss in updates:
            form = payload if form is None else _tree.union(form, payload)
            for path, leaf in _tree.items(payload):
                if path in totals:
                    totals[path] += leaf
                else:
                    totals[path] = leaf.clone()
                counts[path] += 1
            losses.append(loss)
        if not losses:
            raise BadUpdateError(f"No client of round {clock.round + 1} gave an update that can be used.")
        mean = {path: total / counts[path] for path, total in totals.items()}
    return _tree.unflatten(form, mean, ""), sum(losses) / len(losses)


def prepare_worker() -> None:
    """Let this process compute with one thread, and keep the memory that a step frees for the next one.

    Without that, glibc gives most of it back to the system, which clears every page before the next step gets it.
    """
    torch.set_num_threads(1)
    with suppress(OSError, AttributeError):  # other C libraries do otherwise
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_THRESHOLD, 2**25)  # older versions refuse more
        libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""From malloc.h."""


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
