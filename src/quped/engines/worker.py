"""What an engine does with one client, wherever it does it."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from quped.algorithms import AnyAlgorithm
from quped.data.batches import draw
from quped.engines.rounds import Plan, Player, client_round
from quped.errors import QupedError, RunError
from quped.evaluate import accuracy
from quped.rng import torch_seeded
from quped.typing import Batch, Clock, Model, Network


def play_client(
    algorithm: AnyAlgorithm, player: Player, plan: Plan, seed: int, shared: Any, personal: Any, clock: Clock
) -> tuple[Any, Any, float]:
    """Run a client's round on its own batches; return its personal state, its payload and its mean loss.

    The result depends on the arguments only. Errors name the client and the round.
    """
    batches = batches_of(algorithm, player, plan, seed, clock)
    with naming(player, clock.round), torch_seeded(seed, "steps", player.name, clock.round):
        personal, payload, loss = client_round(algorithm, player.task, shared, personal, batches, clock)
    check_loss(player, clock, float(loss))
    return personal, payload, float(loss)


def batches_of(
    algorithm: AnyAlgorithm, player: Player, plan: Plan, seed: int, clock: Clock
) -> Iterator[tuple[Batch, ...]]:
    """Yield the batches of a client's round."""
    return draw(
        player.train,
        seed=seed,
        client=player.name,
        round_=clock.round,
        first=clock.round * plan.local_steps,
        steps=plan.steps(clock.round),
        batch_size=player.batch_size,
        draws=algorithm.draws,
    )


def check_loss(player: Player, clock: Clock, loss: float) -> None:
    """Raise if training has diverged."""
    if not math.isfinite(loss):
        raise RunError(
            f"The training loss of client '{player.name}' became {loss} in round {clock.round + 1}: "
            "lower the learning rate lr, or check the scale of its inputs."
        )


def score_client(algorithm: AnyAlgorithm, player: Player, seed: int, shared: Any, personal: Any) -> float:
    """Evaluate a client's deployed model on its own test samples."""
    with naming(player, None), torch_seeded(seed, "score", player.name):
        return accuracy(player.task.network, algorithm.deploy(player.task, shared, personal), player.test)


def score_global(network: Network, w: Model, players: Sequence[Player], seed: int) -> list[float]:
    """Evaluate the global model on the test samples of each client."""
    found = []
    for player in players:
        with one_thread(), naming(player, None), torch_seeded(seed, "score", player.name):
            found.append(accuracy(network, w, player.test))
    return found


@contextmanager
def naming(player: Player, round_: int | None) -> Iterator[None]:
    """Let errors within the block name the client and the round, or that it was being evaluated."""
    try:
        yield
    except QupedError:
        raise
    except Exception as error:
        when = "while it was evaluated" if round_ is None else f"in round {round_ + 1}"
        single = "Expected more than 1 value per channel" in str(error)
        hint = " (BatchNorm cannot learn from a single sample: raise batch_size, or leave the client out.)" * single
        raise RunError(f"Client '{player.name}' failed {when}: {type(error).__name__}: {error}{hint}") from error


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread: faster for small networks, and sums are then added in one order everywhere."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
