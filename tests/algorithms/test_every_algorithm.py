"""What every algorithm must keep, whatever it computes."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.small_federation import Net, algorithms, clients, fit, samples, values

from quped import Client, _tree
from quped import algorithms as package
from quped._rng import torch_seeded
from quped.algorithms import ALGORITHMS, SGD, AnyAlgorithm, ClientSpec, Local, Quantization, QuPeD, QuPeL
from quped.data import as_samples
from quped.data.batches import draw
from quped.models import FunctionalNetwork
from quped.quant import hard
from quped.simulation.engines import InlineEngine, Plan, Player
from quped.simulation.loop import choose
from quped.typing import Batch, Clock, Params, Phase

EVERY = sorted(algorithms())
every_algorithm = pytest.mark.parametrize("name", EVERY)
every_phase = pytest.mark.parametrize("phase", list(Phase))


def make(name: str) -> AnyAlgorithm:
    """Return an algorithm with its default hyperparameters."""
    return algorithms()[name]()


def spec(algorithm: AnyAlgorithm, momentum: float = 0.9) -> ClientSpec:
    """Return a spec with BatchNorm and momentum, quantized where the algorithm can."""
    with torch_seeded(0, "init"):
        network, shared = FunctionalNetwork(Net()), FunctionalNetwork(Net())
    bits = 2 if algorithm.quantizes else 32
    quantized = network.quantized if algorithm.quantizes else ()
    return ClientSpec(
        network,
        network.initial,
        shared,
        shared.initial,
        bits,
        quantized,
        sgd=SGD(weight_decay=0.01, momentum=momentum),
    )


def clock(phase: Phase) -> Clock:
    """Return a clock in the given phase."""
    return Clock(4, 2, phase, 2.0, 0.1)


def batches(algorithm: AnyAlgorithm) -> list[tuple[Batch, ...]]:
    """Return the batches of one round."""
    data = as_samples(samples(0, 30), "data")
    return list(
        draw(
            data,
            seed=0,
            client="c",
            round_=0,
            first=0,
            steps=3,
            batch_size=8,
            batches_per_step=algorithm.batches_per_step,
        )
    )


def play(algorithm: AnyAlgorithm, phase: Phase) -> dict[str, Any]:
    """Run one round of one client by hand and return everything that took part."""
    t, now, steps = spec(algorithm), clock(phase), batches(algorithm)
    shared = algorithm.init_shared(t)
    personal = algorithm.init_personal(t, shared)
    works = [algorithm.start(t, shared, personal, now)]
    for step in steps:
        works.append(algorithm.step(t, works[-1], step, now)[0])
    kept, payload = algorithm.finish(t, works[-1], steps[-1][0], now)
    return {
        "spec": t,
        "shared": shared,
        "personal": personal,
        "works": tuple(works),
        "kept": kept,
        "payload": payload,
        "combined": algorithm.server_update(shared, payload),
        "deployed": algorithm.deploy(t, shared, kept),
    }


def snapshot(state: object) -> dict[str, torch.Tensor]:
    """Copy all tensors of a state."""
    return {path: leaf.clone() for path, leaf in _tree.items(state)}


def assert_equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    """Assert that two snapshots agree bit for bit."""
    assert a.keys() == b.keys()
    for path, leaf in a.items():
        assert torch.equal(leaf, b[path]), path


def test_the_suite_sees_every_algorithm() -> None:
    """Every file of the folder that is no shared piece holds an algorithm."""
    folder = Path(package.__file__).parent
    files = {path.stem for path in folder.glob("*.py")} - {"__init__", "base", "alternating", "quantization"}
    assert ALGORITHMS.keys() == files


@every_algorithm
@every_phase
def test_a_round_changes_none_of_its_inputs(name: str, phase: Phase) -> None:
    """Shared and personal state, the work of earlier steps, the batches and the initial weights stay as they were."""
    algorithm = make(name)
    t, now, steps = spec(algorithm), clock(phase), batches(algorithm)
    shared = algorithm.init_shared(t)
    personal = algorithm.init_personal(t, shared)
    work = algorithm.start(t, shared, personal, now)
    inputs = (shared, personal, work, t.initial, t.global_initial, *(b for s in steps for b in s))
    before = snapshot(inputs)
    after = work
    for step in steps:
        after, _ = algorithm.step(t, after, step, now)
    kept, payload = algorithm.finish(t, after, steps[-1][0], now)
    algorithm.server_update(shared, payload)
    algorithm.deploy(t, shared, kept)
    assert_equal(snapshot(inputs), before)


@every_algorithm
@every_phase
def test_a_step_learns_and_is_deterministic(name: str, phase: Phase) -> None:
    """The same inputs give the same bits, and the deployed model is not the one before."""
    first, second = play(make(name), phase), play(make(name), phase)
    for key in ("kept", "payload", "combined", "deployed"):
        assert_equal(snapshot(first[key]), snapshot(second[key]))
    algorithm = make(name)
    learned = algorithm.deploy(first["spec"], first["combined"], first["kept"])
    start = algorithm.deploy(first["spec"], first["shared"], first["personal"])
    assert any(not torch.equal(learned.params[k], start.params[k]) for k in ("first.weight", "last.weight"))


@every_algorithm
@every_phase
def test_no_personal_tensor_is_sent(name: str, phase: Phase) -> None:
    """No tensor of the personal state, old or new, appears in the payload: neither its memory nor its values."""
    played = play(make(name), phase)
    personal = [leaf for state in (played["personal"], played["kept"]) for _, leaf in _tree.items(state)]
    initial = [leaf for _, leaf in _tree.items((played["spec"].initial, played["spec"].global_initial))]
    for path, sent in _tree.items(played["payload"]):
        assert sent.is_floating_point(), path
        for mine in personal:
            if any(torch.equal(mine, leaf) for leaf in initial if leaf.shape == mine.shape):
                continue  # everyone starts from the same initial weights; they are no secret
            assert mine.data_ptr() != sent.data_ptr(), path
            assert mine.shape != sent.shape or not torch.equal(mine, sent), path


@every_algorithm
def test_evaluating_more_often_changes_nothing(name: str) -> None:
    """Evaluation is a look: the deployed models are the same, bit for bit."""
    often, seldom = fit(make(name), evaluate_every=1), fit(make(name), evaluate_every=100)
    assert len(often.curve) > len(seldom.curve) == 1
    assert often.accuracy == seldom.accuracy
    assert_equal(snapshot(dict(often.models)), snapshot(dict(seldom.models)))


@every_algorithm
@pytest.mark.parametrize("clients_per_round", [None, 2])
def test_permuting_clients_changes_nothing(name: str, clients_per_round: int | None) -> None:
    """The order in which clients are listed has no influence, bit for bit."""
    algorithm = make(name)
    members = clients(algorithm)
    forward = fit(algorithm, members, clients_per_round=clients_per_round)
    backward = fit(algorithm, members[::-1], clients_per_round=clients_per_round)
    assert list(backward.accuracy) == list(forward.accuracy)[::-1]
    for client in forward.models:
        assert_equal(snapshot(forward.models[client]), snapshot(backward.models[client]))


@every_algorithm
def test_deployed_models_have_few_values_and_run_as_modules(name: str) -> None:
    """A quantized tensor holds at most 2^bits values; the module computes what the tensors say."""
    result = fit(make(name))
    for report in result.clients:
        model = result.models[report.name]
        if report.bits < 32:
            assert len(values(model.params["middle.weight"])) <= 2**report.bits
            assert len(values(model.params["first.weight"])) > 2**report.bits
        module = result.module(report.name)
        assert not module.training
        inputs, labels = samples(100 + int(report.name[1:]), 12)
        accuracy = float((module(inputs).argmax(1) == labels).float().mean())
        assert accuracy == pytest.approx(result.accuracy[report.name])


@every_algorithm
def test_batchnorm_statistics_are_learned(name: str) -> None:
    """Buffers are state: they move, and stay finite."""
    result = fit(make(name))
    for model in result.models.values():
        assert bool((model.buffers["norm.running_mean"] != 0).any())
        assert all(bool(b.isfinite().all()) for b in model.buffers.values())


def after_one_batch(params: Params, batch: Batch) -> torch.Tensor:
    """BatchNorm's running mean after one pass with its momentum of 0.1, from 0: a tenth of the layer's mean output."""
    return 0.1 * (batch.inputs[0] @ params["first.weight"].T).mean(0)


@pytest.mark.parametrize("kind", [Local, QuPeL, QuPeD])
@pytest.mark.parametrize("update_centers", [True, False])
@every_phase
def test_deployed_statistics_belong_to_the_quantized_network(
    kind: type[Local] | type[QuPeL] | type[QuPeD], update_centers: bool, phase: Phase
) -> None:
    """x and Q_c(x) have statistics of their own; here the first layer is quantized, so that they differ."""
    algorithm: AnyAlgorithm = kind(quantization=Quantization(update_centers=update_centers))
    t = replace(spec(algorithm, momentum=0.0), quantized=("first.weight",))
    now, (batch,) = clock(phase), batches(algorithm)[0]
    shared = algorithm.init_shared(t)
    start = algorithm.init_personal(t, shared)
    start = start._replace(q_buffers=start.q_buffers | {"norm.running_mean": torch.ones(8)})
    work, _ = algorithm.step(t, algorithm.start(t, shared, start, now), (batch,), now)
    personal, payload = algorithm.finish(t, work, batch, now)
    # In training the pass at Q_c(x) comes after the step of x, and before that of c.
    x = personal.x.params if phase is Phase.TRAIN else t.initial.params
    quantized = {"first.weight": hard(x["first.weight"], start.c["first.weight"])}
    expected = 0.9 + after_one_batch(quantized, batch)
    deployed = algorithm.deploy(t, shared, personal)
    torch.testing.assert_close(deployed.buffers["norm.running_mean"], expected, rtol=1e-4, atol=1e-6)
    if phase is Phase.TRAIN:
        exact = after_one_batch(t.initial.params, batch)
        torch.testing.assert_close(personal.x.buffers["norm.running_mean"], exact, rtol=1e-4, atol=1e-6)
        assert not torch.allclose(exact, expected, atol=1e-3)
    if isinstance(algorithm, QuPeD):
        w = after_one_batch(t.global_initial.params, batch)
        torch.testing.assert_close(payload.w.buffers["norm.running_mean"], w, rtol=1e-4, atol=1e-6)


@every_algorithm
def test_a_client_that_is_not_sampled_does_not_change(name: str) -> None:
    """With K = 1 of 3, a client's personal state changes in the rounds that it is sampled for, and only then."""
    algorithm = make(name)
    t, data = spec(algorithm), as_samples(samples(0, 30), "data")
    plan = Plan(3, 0, 2, 2, lr=0.1, lr_decay=1.0, clients_per_round=1, evaluate_every=1)
    players = [Player(f"c{i}", t, data, data, batch_size=8) for i in range(3)]
    engine = InlineEngine(algorithm, players, plan, seed=0)
    shared = algorithm.init_shared(t)
    for round_ in range(3):
        chosen = choose(plan, 3, 0, round_)
        assert len(chosen) == 1
        before = [snapshot(engine.personal(shared, i)) for i in range(3)]
        engine.play(shared, plan.clock(round_), chosen)
        for i in range(3):
            after = snapshot(engine.personal(shared, i))
            changed = any(not torch.equal(before[i][path], leaf) for path, leaf in after.items())
            assert changed == (i in chosen and len(after) > 0)


@every_algorithm
def test_a_single_client_is_a_federation(name: str) -> None:
    """n = 1 works, with a batch size above the number of samples."""
    one = Client("only", train=samples(0, 5), test=samples(1, 5), model=Net)
    assert 0 <= fit(make(name), [one]).accuracy["only"] <= 1
