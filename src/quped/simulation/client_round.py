"""One client's round, and its evaluation, wherever an engine computes them."""

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from quped._evaluate import accuracy
from quped._native import reusing
from quped._rng import torch_seeded
from quped.algorithms import AnyAlgorithm, ClientSpec
from quped.data import Samples
from quped.data.batches import draw
from quped.errors import QupedError, RunError
from quped.simulation.setup import Setup, SimClient
from quped.typing import Batch, Clock, ModelState, Network


def client_round(
    algorithm: AnyAlgorithm,
    spec: ClientSpec,
    shared: Any,
    personal: Any,
    batches: Iterable[tuple[Batch, ...]],
    clock: Clock,
) -> tuple[Any, Any, Tensor]:
    """One client's round: the only place where an algorithm's methods are called in turn.

    Return the personal state, the payload and the mean loss.
    """
    work = algorithm.start(spec, shared, personal, clock)
    losses = []
    for step in batches:
        with reusing():
            work, metrics = algorithm.step(spec, work, step, clock)
        losses.append(metrics["loss"])
    personal, payload = algorithm.finish(spec, work, step[0], clock)
    return personal, payload, torch.stack(losses).mean()


def run_client(setup: Setup, client: SimClient, shared: Any, personal: Any, clock: Clock) -> tuple[Any, Any, float]:
    """Run a client's round on its own batches; return its personal state, its payload and its mean loss.

    The result depends on the arguments only. Errors name the client and the round.
    """
    batches = batches_of(setup, client, clock)
    with naming(client, clock.round), torch_seeded(setup.seed, "steps", client.name, clock.round):
        personal, payload, loss = client_round(setup.algorithm, client.spec, shared, personal, batches, clock)
    check_loss(client, clock, float(loss))
    return personal, payload, float(loss)


def batches_of(setup: Setup, client: SimClient, clock: Clock) -> Iterator[tuple[Batch, ...]]:
    """Yield the batches of a client's round."""
    return draw(
        client.train,
        seed=setup.seed,
        client=client.name,
        round_=clock.round,
        first=clock.round * setup.schedule.local_steps,
        steps=setup.schedule.steps(clock.round),
        batch_size=client.batch_size,
        batches_per_step=setup.algorithm.batches_per_step,
    )


def check_loss(client: SimClient, clock: Clock, loss: float) -> None:
    """Raise if training has diverged."""
    if not math.isfinite(loss):
        raise RunError(
            f"The training loss of client '{client.name}' became {loss} in round {clock.round + 1}: "
            "lower the learning rate lr, or check the scale of its inputs."
        )


def initial_personal(setup: Setup, client: SimClient, shared: Any) -> Any:
    """Return the personal state of a client that has not taken part yet."""
    return setup.algorithm.init_personal(client.spec, shared)


def evaluate_client(setup: Setup, client: SimClient, test: Samples, shared: Any, personal: Any) -> float:
    """Return the accuracy of a client's deployed model on its test samples."""
    model = setup.algorithm.deploy(client.spec, shared, personal).state
    return evaluate_model(setup, client, client.spec.network, model, test)


def evaluate_model(setup: Setup, client: SimClient, network: Network, model: ModelState, test: Samples) -> float:
    """Return the accuracy of a model on a client's test samples."""
    with naming(client, None), torch_seeded(setup.seed, "score", client.name):
        return accuracy(network, model, test)


def evaluate_global(setup: Setup, w: ModelState) -> list[float]:
    """Return the accuracy of the global model on the test samples of each client that has some."""
    with one_thread():
        return [
            evaluate_model(setup, client, setup.global_network, w, client.test)
            for client in setup.clients
            if client.test is not None
        ]


@contextmanager
def naming(client: SimClient, round_: int | None) -> Iterator[None]:
    """Let errors within the block name the client and the round, or that it was being evaluated."""
    try:
        yield
    except QupedError:
        raise
    except Exception as error:
        when = "while it was evaluated" if round_ is None else f"in round {round_ + 1}"
        hint = ""
        if "Expected more than 1 value per channel" in str(error):
            hint = " (BatchNorm cannot learn from a single sample: raise batch_size, or leave the client out.)"
        raise RunError(f"Client '{client.name}' failed {when}: {type(error).__name__}: {error}{hint}") from error


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread: faster for small networks, and sums are then added in one order everywhere."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
