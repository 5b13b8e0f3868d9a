"""The contracts that every algorithm keeps, as a check for your own: `check_algorithm(MyAlgorithm())`.

Engines rely on them: a round may be computed in any process, again after a failure, and beside other clients.
"""

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from quped import _tree
from quped._rng import torch_seeded
from quped.algorithms import SGD, AnyAlgorithm, ClientSpec
from quped.algorithms.base import broadcast
from quped.client import Client
from quped.data import TensorSamples
from quped.data.batches import draw
from quped.federation import Federation
from quped.models import FunctionalNetwork
from quped.quant import place
from quped.result import FitResult
from quped.simulation import Round, Setup, SimClient, TrainingOptions
from quped.simulation.engines import InlineEngine, usable_cores
from quped.simulation.loop import sample_clients
from quped.typing import Batch, Clock, Phase

FEATURES, CLASSES = 6, 3


def check_algorithm(algorithm: AnyAlgorithm) -> None:
    """Raise an AssertionError that names the contract which an algorithm breaks, if there is one.

    Takes a few seconds: it trains small federations with BatchNorm, with different networks and bits where the
    algorithm allows them, in one process and in several, with and without an interruption.
    """
    for contract in CONTRACTS.values():
        contract(algorithm)


class SmallNet(nn.Module):
    """Three layers, so that the middle one is quantized, and BatchNorm, so that there are buffers."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        # Without a bias, which BatchNorm would cancel: every parameter here has a gradient.
        self.first = nn.Linear(FEATURES, width, bias=False)
        self.norm = nn.BatchNorm1d(width)
        self.middle = nn.Linear(width, width)
        self.last = nn.Linear(width, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits."""
        hidden = torch.relu(self.norm(self.first(inputs)))
        logits: Tensor = self.last(torch.relu(self.middle(hidden)))
        return logits


def wide_net() -> nn.Module:
    """Return a network that another client may have."""
    return SmallNet(width=12)


def small_samples(key: int, count: int) -> tuple[Tensor, Tensor]:
    """Return separable samples of all classes."""
    rng = torch.Generator().manual_seed(key)
    labels = torch.arange(count) % CLASSES
    inputs = torch.randn(count, FEATURES, generator=rng) + 2 * nn.functional.one_hot(labels, FEATURES)
    return inputs, labels


def small_clients(algorithm: AnyAlgorithm, count: int = 3) -> list[Client]:
    """Return clients as different as the algorithm allows."""
    mixed = algorithm.global_network != "same"
    return [
        Client(
            name=f"c{i}",
            train=small_samples(i, 20 + i),
            test=small_samples(100 + i, 12),
            model=wide_net if mixed and i % 2 else SmallNet,
            bits=(2, 1, 32)[i % 3] if algorithm.quantizes else 32,
        )
        for i in range(count)
    ]


SMALL_RUN = TrainingOptions(epochs=6, finetune_epochs=2, local_steps=2, batch_size=8)
"""A few rounds that reach the fine-tuning phase."""


def small_fit(algorithm: AnyAlgorithm, clients: list[Client] | None = None, **options: Any) -> FitResult:
    """Train a small federation in this process."""
    members = small_clients(algorithm) if clients is None else clients
    return Federation(members, algorithm, SmallNet, seed=3).fit(
        SMALL_RUN, **{"workers": 0, "progress": False, **options}
    )


@dataclass(frozen=True)
class HandRound:
    """One round of one client, computed by calling the algorithm's methods in turn."""

    spec: ClientSpec
    shared: Any
    personal: Any
    kept: Any
    payload: Any
    updated: Any
    """The server's state after the round; like `shared`, as clients receive it."""


def small_spec(algorithm: AnyAlgorithm, momentum: float = 0.9) -> ClientSpec:
    """Return a client's specification with BatchNorm and momentum, quantized where the algorithm can."""
    with torch_seeded(0, "init"):
        network, shared = FunctionalNetwork(SmallNet()), FunctionalNetwork(SmallNet())
    bits = {"middle.weight": 2} if algorithm.quantizes else {}
    sgd = SGD(weight_decay=0.01, momentum=momentum)
    return ClientSpec(
        network, network.initial, shared, shared.initial, bits, head=network.head, logit_bias="last.bias", sgd=sgd
    )


def small_batches(algorithm: AnyAlgorithm, steps: int = 3) -> list[tuple[Batch, ...]]:
    """Return the batches of one round."""
    drawn = draw(
        TensorSamples(*small_samples(0, 30)),
        seed=0,
        client="c",
        round_=0,
        first=0,
        steps=steps,
        batch_size=8,
        batches_per_step=algorithm.batches_per_step,
    )
    return list(drawn)


def round_by_hand(algorithm: AnyAlgorithm, phase: Phase) -> HandRound:
    """Run one round of one client."""
    spec, clock, steps = small_spec(algorithm), Clock(4, 2, phase, 2.0, 0.1, 0.1, 0.0), small_batches(algorithm)
    shared = algorithm.init_shared(spec)
    received = broadcast(shared)
    personal = algorithm.init_personal(spec, received)
    work = algorithm.start(spec, received, personal, clock)
    for step in steps:
        work, _ = algorithm.step(spec, work, step, clock)
    kept, payload = algorithm.finish(spec, work, steps[-1][0], clock)
    updated = broadcast(algorithm.server_update(shared, payload))
    return HandRound(spec, received, personal, kept, payload, updated)


def round_changes_no_input(algorithm: AnyAlgorithm) -> None:
    """A round changes none of its inputs: states, batches and initial weights stay as they were."""
    for phase in Phase:
        spec, clock, steps = small_spec(algorithm), Clock(4, 2, phase, 2.0, 0.1, 0.1, 0.0), small_batches(algorithm)
        shared = algorithm.init_shared(spec)
        received = broadcast(shared)
        personal = algorithm.init_personal(spec, received)
        inputs = (shared, received, personal, spec.initial, spec.global_initial, tuple(steps))
        before = snapshot(inputs)
        work = algorithm.start(spec, received, personal, clock)
        works, copies = [work], [snapshot(work)]
        for step in steps:
            work, _ = algorithm.step(spec, work, step, clock)
            works.append(work)
            copies.append(snapshot(work))
        kept, payload = algorithm.finish(spec, work, steps[-1][0], clock)
        algorithm.server_update(shared, payload)
        algorithm.deploy(spec, received, kept)
        rule = "a round changes none of its inputs"
        require_equal(algorithm, rule, snapshot(inputs), before)
        for one, copy in zip(works, copies, strict=True):
            require_equal(algorithm, rule, snapshot(one), copy)


def round_is_deterministic(algorithm: AnyAlgorithm) -> None:
    """The same inputs give the same bits."""
    for phase in Phase:
        first, second = round_by_hand(algorithm, phase), round_by_hand(algorithm, phase)
        for state in ("kept", "payload", "updated"):
            before, after = snapshot(getattr(first, state)), snapshot(getattr(second, state))
            require_equal(algorithm, "the same inputs give the same bits", before, after)


def round_learns(algorithm: AnyAlgorithm) -> None:
    """After a round, the client deploys another model than before it."""
    for phase in Phase:
        done = round_by_hand(algorithm, phase)
        learned = algorithm.deploy(done.spec, done.updated, done.kept).state.params
        start = algorithm.deploy(done.spec, done.shared, done.personal).state.params
        changed = any(not torch.equal(learned[k], start[k]) for k in ("first.weight", "last.weight"))
        require(algorithm, "a round changes the deployed model", changed, f"in the phase '{phase}' it stayed the same")


def nothing_personal_is_sent(algorithm: AnyAlgorithm) -> None:
    """No tensor of the personal state, old or new, is in the payload: neither its memory nor its values."""
    for phase in Phase:
        done = round_by_hand(algorithm, phase)
        personal = [leaf for state in (done.personal, done.kept) for _, leaf in _tree.items(state)]
        initial = [leaf for _, leaf in _tree.items((done.spec.initial, done.spec.global_initial))]
        for path, sent in _tree.items(done.payload):
            require(algorithm, "a payload holds float tensors only", sent.is_floating_point(), path)
            for mine in personal:
                if not mine.any() or any(torch.equal(mine, leaf) for leaf in initial if leaf.shape == mine.shape):
                    continue  # zeros tell nothing, and everyone starts from the same initial weights
                # A flag or a counter may have the value of another one by chance; weights have not, in any type.
                alike = mine.shape == sent.shape and (mine.dim() > 0 or mine.dtype == sent.dtype)
                own = mine.data_ptr() != sent.data_ptr() and not (alike and torch.equal(mine, sent))
                require(algorithm, "nothing personal is sent", own, path)


def evaluation_changes_nothing(algorithm: AnyAlgorithm) -> None:
    """Evaluating more often gives the same models."""
    often, seldom = small_fit(algorithm, evaluate_every=1), small_fit(algorithm, evaluate_every=100)
    require_same(algorithm, "evaluating more often changes nothing", often, seldom)


def order_of_clients_changes_nothing(algorithm: AnyAlgorithm) -> None:
    """The order in which clients are listed has no influence, with and without sampling."""
    clients = small_clients(algorithm)
    for sampled in (None, 2):
        forward = small_fit(algorithm, clients, clients_per_round=sampled)
        backward = small_fit(algorithm, clients[::-1], clients_per_round=sampled)
        require_same(algorithm, "the order of the clients changes nothing", forward, backward)


def deployed_models_match_their_codebooks(algorithm: AnyAlgorithm) -> None:
    """A quantized tensor holds the centers of its codebook, at most 2^bits for each group."""
    rule = "a deployed model holds the values of its codebooks"
    result = small_fit(algorithm)
    for client in result.clients:
        model = result.models[client.name]
        require(algorithm, rule, model.codebooks.keys() == client.bits.keys(), f"of client '{client.name}'")
        for name, book in model.codebooks.items():
            weights = model.state.params[name]
            few = book.centers.shape[1] <= 2 ** client.bits[name]
            require(
                algorithm, rule, few and torch.equal(place(book.centers, book.indices, weights.shape), weights), name
            )


def only_sampled_clients_change(algorithm: AnyAlgorithm) -> None:
    """A client's personal state changes only in rounds that it is sampled for; in fine-tuning it does so in each."""
    spec, data = small_spec(algorithm), TensorSamples(*small_samples(0, 30))
    network = FunctionalNetwork(SmallNet())
    clients = [SimClient(f"c{i}", spec, network, data, data) for i in range(3)]
    options = TrainingOptions(epochs=4, finetune_epochs=1, local_steps=4, batch_size=8, clients_per_round=1)
    setup = Setup.of(algorithm, clients, network, options, seed=0)
    engine, shared = InlineEngine(setup), broadcast(algorithm.init_shared(spec))
    for number in range(setup.schedule.rounds):
        (chosen,) = sample_clients(setup.schedule, 3, 0, number)
        before = [snapshot(engine.personal(shared, i)) for i in range(3)]
        clock = setup.schedule.clock(number)
        engine.run_round(shared, clock, [chosen])
        for i in range(3):
            after = snapshot(engine.personal(shared, i))
            changed = any(not torch.equal(before[i][path], leaf) for path, leaf in after.items())
            must = i == chosen and len(after) > 0 and clock.phase is Phase.FINETUNE
            ok = i == chosen if changed else not must
            require(algorithm, "only sampled clients change", ok, f"client {i} in round {number + 1}")


def single_client_is_a_federation(algorithm: AnyAlgorithm) -> None:
    """One client works, with a batch size above the number of its samples."""
    one = Client("only", train=small_samples(0, 5), test=small_samples(1, 5), model=SmallNet)
    accuracy = small_fit(algorithm, [one]).accuracy["only"]
    require(algorithm, "a single client is a federation", 0 <= accuracy <= 1, f"its accuracy is {accuracy}")


def engines_agree(algorithm: AnyAlgorithm) -> None:
    """Worker processes give the bits of a single process."""
    if usable_cores():  # where processes can be forked
        several, one = small_fit(algorithm, workers=2), small_fit(algorithm)
        require_same(algorithm, "worker processes give the same bits", several, one)


def resumed_run_is_the_same(algorithm: AnyAlgorithm) -> None:
    """A run that was interrupted and resumed gives the bits of one that was not."""
    with tempfile.TemporaryDirectory() as folder:
        stopped = False
        try:
            small_fit(algorithm, checkpoints=folder, checkpoint_every=1, callbacks=[_Interruption(3)])
        except _InterruptedError:
            stopped = True
        require(algorithm, "a run can be interrupted", stopped, "it ended before")
        resumed = small_fit(algorithm, checkpoints=folder)
    require_same(algorithm, "a resumed run gives the same bits", resumed, small_fit(algorithm))


class _InterruptedError(Exception):
    pass


class _Interruption:
    def __init__(self, round_: int) -> None:
        self._round = round_

    def after_round(self, round_: Round) -> None:
        if round_.clock.round == self._round:
            raise _InterruptedError


CONTRACTS: Mapping[str, Callable[[AnyAlgorithm], None]] = {
    contract.__name__: contract
    for contract in (
        round_changes_no_input,
        round_is_deterministic,
        round_learns,
        nothing_personal_is_sent,
        evaluation_changes_nothing,
        order_of_clients_changes_nothing,
        deployed_models_match_their_codebooks,
        only_sampled_clients_change,
        single_client_is_a_federation,
        engines_agree,
        resumed_run_is_the_same,
    )
}
"""Every contract by its name; each raises an AssertionError for an algorithm that breaks it."""


def snapshot(state: object) -> dict[str, Tensor]:
    """Return copies of all tensors of a state, by their paths."""
    return {path: leaf.clone() for path, leaf in _tree.items(state)}


def require(algorithm: AnyAlgorithm, rule: str, ok: bool, where: str) -> None:
    """Raise an AssertionError that names the algorithm, the rule and the place, unless `ok`."""
    if not ok:
        raise AssertionError(f"{type(algorithm).__name__} breaks the contract '{rule}': {where}.")


def require_equal(algorithm: AnyAlgorithm, rule: str, a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> None:
    """Raise an AssertionError unless two snapshots agree bit for bit."""
    require(algorithm, rule, a.keys() == b.keys(), "the states have other tensors")
    for path, leaf in a.items():
        require(algorithm, rule, torch.equal(leaf, b[path]), f"{path} differs")


def require_same(algorithm: AnyAlgorithm, rule: str, a: FitResult, b: FitResult) -> None:
    """Raise an AssertionError unless two runs end with the same models, bit for bit, and the same accuracies."""
    for name, model in a.models.items():
        require_equal(algorithm, rule, snapshot(model), snapshot(b.models[name]))
    require(algorithm, rule, a.accuracy == b.accuracy, "the accuracies differ")
