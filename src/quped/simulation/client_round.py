"""One client's round, and its evaluation, wherever an engine computes them."""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quped import _tree
from quped._evaluate import Score, score
from quped._native import reusing
from quped._rng import LOCK, torch_seeded
from quped.algorithms import AnyAlgorithm, ClientSpec, Deployed, Learner
from quped.algorithms._own_classes import none_seen, restrict, see
from quped.data import Samples
from quped.data.batches import draw
from quped.errors import BadUpdateError, RunError
from quped.quant.histogram import histogram
from quped.simulation._naming import naming
from quped.simulation.compiled import Program
from quped.simulation.setup import Setup, SimClient
from quped.typing import Batch, Clock, Metrics, ModelState, Network

Step = Callable[[ClientSpec, Any, tuple[Batch, ...], Clock], tuple[Any, Metrics]]


def client_round(
    algorithm: AnyAlgorithm,
    spec: ClientSpec,
    shared: Any,
    personal: Any,
    batches: Iterable[tuple[Batch, ...]],
    clock: Clock,
    take_step: Step | None = None,
) -> tuple[Any, Any, Tensor]:
    """One client's round: the only place where an algorithm's methods are called in turn.

    Return the personal state, the payload and the mean loss. `take_step` stands for the algorithm's own.
    """
    take_step = take_step or algorithm.step
    work = algorithm.start(spec, shared, personal, clock)
    losses = []
    for step in batches:
        with reusing():
            work, metrics = take_step(spec, work, step, clock)
        losses.append(metrics["loss"])
    personal, payload = algorithm.finish(spec, work, step[0], clock)
    return personal, payload, torch.stack(losses).mean()


def run_client(setup: Setup, client: SimClient, shared: Any, personal: Any, clock: Clock) -> tuple[Any, Any, float]:
    """Run a client's round on its own batches, and check what came out of it.

    Return its personal state, its payload and its mean loss. They depend on the arguments only.
    """
    personal, payload, loss = compute_client(setup, client, shared, personal, clock)
    personal, payload = check_update(setup, client, clock, personal, payload, loss)
    return personal, bound_update(payload, shared, setup.options.max_update_norm), loss


def compute_client(setup: Setup, client: SimClient, shared: Any, personal: Any, clock: Clock) -> tuple[Any, Any, float]:
    """Run a client's round on its own batches. Errors name the client and the round."""
    batches = batches_of(setup, client, clock)
    with naming(client.name, clock.round), torch_seeded(setup.seed, "steps", client.name, clock.round):
        personal, payload, loss = client_round(
            setup.algorithm, client.spec, shared, personal, batches, clock, setup.step
        )
    return personal, payload, float(loss)


def check_update(
    setup: Setup, client: SimClient, clock: Clock, personal: Any, payload: Any, loss: float
) -> tuple[Any, Any]:
    """Raise unless a client's round gave what it must: a finite loss, and states of the expected form.

    The one place where a client's round ends, for every engine: what passes is kept, and averaged into everybody's.
    Return the personal state and the payload with their tensors in the expected order, on which engines rely.
    """
    who = f"client '{client.name}' in round {clock.round + 1}"
    if not math.isfinite(loss):
        raise BadUpdateError(
            f"The training loss of {who} became {loss}: lower the learning rate lr, or check the scale of its inputs."
        )
    form, own_form = setup.templates.payload[client.spec.group], setup.templates.personal[client.spec.group]
    for what, state, template in (("payload", payload, form), ("personal state", personal, own_form)):
        if flaw := find_flaw(state, template):
            raise BadUpdateError(f"The {what} of {who} cannot be used: {flaw}.")
    return _tree.arranged(personal, own_form), _tree.arranged(payload, form)


def bound_update(payload: Any, shared: Any, most: float | None) -> Any:
    """Return a payload no farther from the shared state than `most`: w + d min(1, most / |d|), with d = w_i - w."""
    if most is None:
        return payload
    leaves, before = dict(_tree.items(payload)), dict(_tree.items(shared))
    moves = {path: leaf - before[path] for path, leaf in leaves.items() if path in before}
    if leaves and not moves:
        raise RunError("max_update_norm bounds what moves the shared state, and this method sends something else.")
    length = _tree.norm(moves)
    if length <= most:
        return payload
    return _tree.unflatten(payload, leaves | {k: before[k] + move * (most / length) for k, move in moves.items()}, "")


def find_flaw(state: Any, template: Any) -> str | None:
    """Return how a state differs from the form of a template, or which of its numbers are beyond use, if any."""
    try:
        leaves, expected = dict(_tree.items(state)), dict(_tree.items(template))
    except TypeError as error:
        return str(error)
    except RecursionError:
        return "its dictionaries are nested too deeply"
    if leaves.keys() != expected.keys():
        return f"it has other tensors than expected: {', '.join(sorted(leaves.keys() ^ expected.keys()))}"
    for path, leaf in leaves.items():
        like = expected[path]
        if leaf.shape != like.shape or leaf.dtype != like.dtype:
            return f"'{path}' is {leaf.dtype} of shape {tuple(leaf.shape)}, not {like.dtype} of {tuple(like.shape)}"
        if leaf.layout is not torch.strided or leaf.is_meta:
            return f"'{path}' is {leaf.layout} on {leaf.device}, not a usual tensor"
    for path, leaf in leaves.items():
        finite = not leaf.is_floating_point() or not leaf.numel() or float(leaf.abs().amax()) < LARGEST  # NaN is not
        if not finite:
            return f"'{path}' holds NaN, infinity or numbers beyond {LARGEST:g}; lower the learning rate lr"
    return None


LARGEST = 1e30
"""Numbers of this size are no result of training; the sum of several would overflow."""


def compile_steps(setup: Setup) -> None:
    """Compile the steps that the run will take, unless the cache has them: workers that are forked then share them."""
    alike = {(client.spec.group, min(client.batch_size, len(client.train))): client for client in setup.clients}
    templates = setup.templates
    with LOCK, one_thread():
        for client in alike.values():
            spec = client.spec
            batches = next(iter(batches_of(setup, client, setup.schedule.clock(0))))
            known: list[Program] = []
            # From the middle of the run on: at its beginning, lambda(t) is 0, and a comparison would not see its terms.
            rounds = sorted(range(setup.schedule.rounds), key=lambda round_: abs(2 * round_ - setup.schedule.rounds))
            for clock in map(setup.schedule.clock, rounds):
                if any(program.decisions.hold(clock) for program in known):
                    continue
                with torch_seeded(setup.seed, "layout"):
                    work = setup.algorithm.start(spec, templates.shared, templates.personal[spec.group], clock)
                known.append(setup.compiled.program(spec, work, batches, clock))


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


def initial_personal(setup: Setup, client: SimClient, shared: Any) -> Any:
    """Return the personal state of a client that has not taken part yet."""
    return setup.algorithm.init_personal(client.spec, shared)


def deployed_model(setup: Setup, client: SimClient, shared: Any, personal: Any) -> Deployed:
    """Return the model that a client uses; if the options say so, it chooses among the client's own classes."""
    model = setup.algorithm.deploy(client.spec, shared, personal)
    if not setup.options.own_classes:
        return model
    return restrict(model, client.spec, see(none_seen(client.spec), client.train.labels))


def evaluate_client(setup: Setup, client: SimClient, test: Samples, shared: Any, personal: Any) -> Score:
    """Evaluate a client's deployed model on its test samples."""
    model = deployed_model(setup, client, shared, personal).state
    score = evaluate_model(setup, client, client.spec.network, model, test)
    learner = getattr(personal, "learner", personal)
    if isinstance(learner, Learner) and client.name in setup.watched:
        return score._replace(weights=histogram(learner.x.params, learner.c))
    return score


def evaluate_model(setup: Setup, client: SimClient, network: Network, model: ModelState, test: Samples) -> Score:
    """Evaluate a model on a client's test samples."""
    with naming(client.name, None), torch_seeded(setup.seed, "score", client.name):
        return score(network, model, test, client.train.labels.bincount().nonzero()[:, 0])


def evaluate_global(setup: Setup, w: ModelState) -> Score | None:
    """Return the mean score of the global model on the test samples of each client that is evaluated, if one is."""
    with LOCK, one_thread():
        scores = [
            evaluate_model(setup, setup.clients[client], setup.global_network, w, test)
            for client, test in setup.evaluated.items()
        ]
    if not scores:
        return None
    accuracy, own_classes = np.mean([(one.accuracy, one.own_classes) for one in scores], axis=0).tolist()
    return Score(accuracy, own_classes)


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread: faster for small networks, and sums are then added in one order everywhere."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
