"""QuPeD+: one step of every stage against NumPy, its stages, and what it equals in the limit."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from helpers.linear_model import INPUTS, LR, ONE_HOT, Array, batch, clock, model_with_bias, network_with_bias
from helpers.small_federation import assert_same, clients, fit
from torch import nn

from quped import Client, FedAvg, Federation, QuPeDPlus
from quped.algorithms import SGD, ClientSpec
from quped.algorithms._own_classes import ABSENT
from quped.algorithms.qupedplus import GLOBAL
from quped.errors import InvalidValueError
from quped.quant import Codebook
from quped.simulation.engines.base import average
from quped.testing import check_algorithm
from quped.typing import Clock, ModelState, Phase

V, B = np.array([0.9, -0.4]), np.array([0.3, -0.1])
TEACHER_V, TEACHER_B = np.array([0.5, 0.1]), np.array([-0.2, 0.4])
CENTERS = np.array([-0.5, 0.8])


def spec(bits: int = 32, logit_bias: str | None = "b") -> ClientSpec:
    """Return a spec of the network with parameters v, which is quantized, and b."""
    w = model_with_bias(V, B)
    widths = {"v": bits} if bits < 32 else {}
    return ClientSpec(
        network_with_bias,
        w,
        network_with_bias,
        w,
        widths,
        has_global_network=True,
        head=("b",),
        logit_bias=logit_bias,
        sgd=SGD(0.0),
    )


def at(progress: float, phase: Phase = Phase.TRAIN) -> Clock:
    """Return a clock at a share of the run."""
    return clock(3.0, phase)._replace(progress=progress, initial_lr=4 * LR)


def softmax(z: Array) -> Array:
    """Return probabilities, one row per sample."""
    e = np.exp(z - z.max(1, keepdims=True))
    return np.asarray(e / e.sum(1, keepdims=True))


def logits(v: Array, b: Array) -> Array:
    """Return the logits of all samples."""
    return np.outer(INPUTS, v) + b


def gradients(v: Array, b: Array, lambda_p: float) -> tuple[Array, Array]:
    """Return the gradients of (1 - lambda_p) CE + lambda_p KL(teacher || student) by v and b."""
    p, q = softmax(logits(TEACHER_V, TEACHER_B)), softmax(logits(v, b))
    by_logits = (1 - lambda_p) * (q - ONE_HOT) + lambda_p * (q - p)
    return (by_logits * INPUTS[:, None]).mean(0), by_logits.mean(0)


def started(algorithm: QuPeDPlus, at_spec: ClientSpec, now: Clock, centers: Array | None = None) -> Any:
    """Return the work of a client of which x = (V, B), with these centers, and whose teacher is another model."""
    shared = algorithm.init_shared(at_spec)._replace(w=model_with_bias(TEACHER_V, TEACHER_B))
    work = algorithm.start(at_spec, shared, algorithm.init_personal(at_spec, shared), now)
    if centers is not None:
        work = work._replace(learner=work.learner._replace(c={"v": torch.tensor(centers[None])}))
    return work


def test_together_is_a_step_on_labels() -> None:
    algorithm, one = QuPeDPlus(), spec()
    shared = algorithm.init_shared(one)
    work = algorithm.start(one, shared, algorithm.init_personal(one, shared), at(0.0))
    work, _ = algorithm.step(one, work, (batch(),), at(0.0))
    by_logits = softmax(logits(V, B)) - ONE_HOT
    np.testing.assert_allclose(work.w.params["v"], V - LR * (by_logits * INPUTS[:, None]).mean(0), rtol=1e-12)
    np.testing.assert_allclose(work.w.params["b"], B - LR * by_logits.mean(0), rtol=1e-12)
    _, payload = algorithm.finish(one, work, batch(), at(0.0))
    after = algorithm.server_update(shared, payload)
    moved = 1.9 * (work.w.params["v"].numpy() - V)  # with the momentum of a server that was at rest
    np.testing.assert_allclose(after.w.params["v"], V + moved, rtol=1e-12)
    assert after.x[GLOBAL] is after.w


@pytest.mark.parametrize("progress", [0.75, 0.95])
def test_a_quantized_step_goes_straight_through(progress: float) -> None:
    kappa, lambda_p = 0.3, 0.6
    algorithm, one, now = QuPeDPlus(lambda_p=lambda_p, center_lr_ratio=kappa), spec(bits=1), at(progress)
    work, _ = algorithm.step(one, started(algorithm, one, now, CENTERS), (batch(),), now)
    lr = 2 * LR * (1 - progress) / (1 - algorithm.together)  # sqrt(4) = 2
    q = np.array([0.8, -0.5])  # by sign
    by_v, by_b = gradients(q, B, lambda_p if progress > algorithm.common else 0.0)
    np.testing.assert_allclose(work.learner.x.params["v"], V - lr * by_v, rtol=1e-12)
    np.testing.assert_allclose(work.learner.x.params["b"], B - lr * by_b, rtol=1e-12)
    by_c = by_v[::-1]  # one weight at each center
    np.testing.assert_allclose(work.learner.c["v"][0], CENTERS - lr * kappa / np.sqrt(2) * by_c, rtol=1e-12)
    assert torch.equal(work.w.params["v"], torch.tensor(TEACHER_V))


def test_a_step_in_full_precision() -> None:
    algorithm, one, now = QuPeDPlus(lambda_p=0.6), spec(), at(0.95)
    work, _ = algorithm.step(one, started(algorithm, one, now), (batch(),), now)
    lr = 2 * LR * 0.05 / (1 - algorithm.together)
    by_v, by_b = gradients(V, B, 0.6)
    np.testing.assert_allclose(work.learner.x.params["v"], V - lr * by_v, rtol=1e-12)
    np.testing.assert_allclose(work.learner.x.params["b"], B - lr * by_b, rtol=1e-12)


def test_fine_tuning_moves_weights_with_their_centers() -> None:
    algorithm, one, now = QuPeDPlus(), spec(bits=1), at(0.9, Phase.FINETUNE)
    work = started(algorithm, one, now, CENTERS)
    hard = work.learner._replace(x=ModelState({"v": torch.tensor([0.8, -0.5]), "b": torch.tensor(B)}, {}))
    work, _ = algorithm.step(one, work._replace(learner=hard), (batch(),), now)
    by_v, _ = gradients(np.array([0.8, -0.5]), B, algorithm.lambda_p)
    lr = 2 * LR * 0.1 / (1 - algorithm.together)
    expected = CENTERS - lr * algorithm.center_lr_ratio / np.sqrt(2) * by_v[::-1]
    np.testing.assert_allclose(work.learner.c["v"][0], expected, rtol=1e-6)
    np.testing.assert_allclose(work.learner.x.params["v"], expected[::-1], rtol=1e-6)


def test_absent_classes_take_no_part() -> None:
    """With one class seen, both softmaxes are 1 there: nothing is left to learn, and only that class is chosen."""
    algorithm, one, now = QuPeDPlus(), spec(), at(0.8)
    only = batch(INPUTS, np.zeros(len(INPUTS), dtype=np.int64))
    work, metrics = algorithm.step(one, started(algorithm, one, now), (only,), now)
    assert float(metrics["loss"]) == 0
    assert torch.equal(work.learner.x.params["v"], torch.tensor(V))
    kept, _ = algorithm.finish(one, work, only, at(0.95))
    deployed = algorithm.deploy(one, algorithm.init_shared(one), kept).state
    assert deployed.params["b"].tolist() == [B[0], ABSENT]


def test_centers_stay_with_the_client_and_weights_are_common() -> None:
    algorithm, one, now = QuPeDPlus(), spec(bits=1), at(0.8)
    work, _ = algorithm.step(one, started(algorithm, one, now, CENTERS), (batch(),), now)
    kept, payload = algorithm.finish(one, work, batch(), now)
    assert torch.equal(payload.models[GLOBAL].params["v"], work.learner.x.params["v"])
    assert torch.equal(kept.learner.c["v"], work.learner.c["v"])
    other = model_with_bias(np.array([0.7, -0.7]), B)
    deployed = algorithm.deploy(one, algorithm.init_shared(one)._replace(x={GLOBAL: other}), kept)
    assert isinstance(deployed.codebooks["v"], Codebook)
    np.testing.assert_allclose(deployed.state.params["v"], work.learner.c["v"][0].flip(0))


def sent(algorithm: QuPeDPlus, one: ClientSpec, now: Clock) -> tuple[Any, Any]:
    """Return a client's work after a step, and its payload."""
    work, _ = algorithm.step(one, started(algorithm, one, now), (batch(),), now)
    return work, algorithm.finish(one, work, batch(), now)[1]


def test_a_mean_is_over_the_clients_that_learned() -> None:
    """A client whose network the server does not know sends zeros in the second stage, which do not count."""
    algorithm, one, now = QuPeDPlus(), spec(), at(0.8)
    (work, first), (_, second) = sent(algorithm, one, now), sent(algorithm, replace(one, has_global_network=False), now)
    mean, _ = average([(first, 0.0), (second, 0.0)], now)
    shared = algorithm.server_update(algorithm.init_shared(one), mean)
    moved = 1.9 * (work.learner.x.params["v"].numpy() - V)  # with the momentum of a server that was at rest
    np.testing.assert_allclose(shared.x[GLOBAL].params["v"], V + moved, rtol=1e-12)
    assert torch.equal(shared.w.params["v"], torch.tensor(V))


@pytest.mark.parametrize("progress", [0.1, 0.8, 0.95])
def test_every_network_has_a_common_model(progress: float) -> None:
    """Two clients with the global network and one with another: w is the mean of three, each x of its own clients."""
    algorithm, now = QuPeDPlus(server_momentum=0.0), at(progress)
    one = replace(spec(), networks={"0": model_with_bias(V, B)})
    other = replace(one, has_global_network=False, network_key="0")
    works, payloads = zip(*(sent(algorithm, its, now) for its in (one, one, other)), strict=True)
    shared = algorithm.init_shared(one)
    mean, _ = average([(payload, 0.0) for payload in payloads], now)
    after = algorithm.server_update(shared, mean)
    assert after.x.keys() == {GLOBAL, "0"}
    if progress > 0.9:
        assert all(torch.equal(after.x[k].params["v"], torch.tensor(V)) for k in after.x)
        return
    np.testing.assert_allclose(after.x["0"].params["v"], works[2].learner.x.params["v"], rtol=1e-12)
    if progress > 0.5:
        np.testing.assert_allclose(
            after.x[GLOBAL].params["v"], works[0].learner.x.params["v"], rtol=1e-6
        )  # 2 of 3, as float32
        assert torch.equal(after.w.params["v"], torch.tensor(V))
    else:
        expected = sum(work.w.params["v"] for work in works) / 3
        np.testing.assert_allclose(after.w.params["v"], expected, rtol=1e-12)


def test_every_network_has_a_velocity_of_its_own() -> None:
    """It goes on from stage 1 to stage 2, and stays as it is while no client trains its network."""
    algorithm = QuPeDPlus(server_momentum=0.5)
    one = replace(spec(), networks={"0": model_with_bias(V, B)})
    other = replace(one, has_global_network=False, network_key="0")
    shared = algorithm.init_shared(one)
    before = shared
    for progress, specs in ((0.1, (one, other)), (0.8, (one,))):
        mean, _ = average([(sent(algorithm, its, at(progress))[1], 0.0) for its in specs], at(progress))
        before, shared = shared, algorithm.server_update(shared, mean)
        for key in (GLOBAL, "0"):
            if not float(mean.learned.get(key, torch.tensor(0.0))):
                assert shared.server[key] is before.server[key]
                continue
            x, velocity = before.x[key].params["v"].numpy(), before.server[key]["v"].numpy()
            moved = (mean.models[key].params["v"] / mean.learned[key]).numpy() - x
            np.testing.assert_allclose(shared.x[key].params["v"], x + moved + 0.5 * (moved + 0.5 * velocity), rtol=1e-6)
    assert before.server["0"]["v"].any()


def test_another_network_learns_from_labels_and_from_w_together() -> None:
    algorithm, now = QuPeDPlus(lambda_p=0.6), at(0.1)
    other = replace(spec(), has_global_network=False, network_key="0", networks={"0": model_with_bias(V, B)})
    work, _ = sent(algorithm, other, now)
    by_v, by_b = gradients(V, B, 0.6)
    np.testing.assert_allclose(work.learner.x.params["v"], V - LR * by_v, rtol=1e-12)
    np.testing.assert_allclose(work.learner.x.params["b"], B - LR * by_b, rtol=1e-12)


def test_clients_with_one_network_begin_alone_with_the_same_weights() -> None:
    """Clients of each of two networks have one model until they are alone; engines agree on it."""
    torch.manual_seed(0)
    small, large = (
        nn.Sequential(nn.Linear(4, n), nn.ReLU(), nn.Linear(n, n), nn.ReLU(), nn.Linear(n, 3)) for n in (6, 9)
    )
    data = [(torch.randn(30, 4), torch.arange(30) % 3) for _ in range(4)]
    federation = Federation(
        [Client(f"c{i}", data[i], data[i], small if i < 2 else large, bits=2, end_bits=8) for i in range(4)],
        QuPeDPlus(common=1.0),
        global_model=small,
    )
    results = [
        federation.fit(epochs=6, finetune_epochs=0, batch_size=10, local_steps=3, workers=workers, progress=False)
        for workers in (0, 2)
    ]
    for result in results:
        weights = [result.models[f"c{i}"].state.params["0.bias"] for i in range(4)]
        assert torch.equal(weights[0], weights[1])
        assert torch.equal(weights[2], weights[3])
    assert_same(*results)


def test_together_to_the_end_is_fedavg() -> None:
    """The weights are FedAvg's, bit for bit."""
    plain = fit(FedAvg(server_momentum=0.9), clients(FedAvg()), finetune_epochs=0)
    plus = fit(
        QuPeDPlus(together=1, common=1, own_classes=False),
        clients(FedAvg()),
        finetune_epochs=0,
    )
    assert_same(plain, plus)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [QuPeDPlus(together=0.0), QuPeDPlus(together=0.0, common=0.0)])
def test_every_stage_keeps_the_contracts(algorithm: QuPeDPlus) -> None:
    check_algorithm(algorithm)


def test_a_network_without_a_bias_is_refused_with_the_remedy() -> None:
    network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3, bias=False))
    data = torch.randn(12, 4), torch.arange(12) % 3
    with pytest.raises(InvalidValueError, match="own_classes=False"):
        Federation([Client("phone", data, data, network)], QuPeDPlus()).fit(epochs=1, workers=0, progress=False)
    Federation([Client("phone", data, data, network)], QuPeDPlus(own_classes=False)).fit(
        epochs=1, workers=0, progress=False
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"server_momentum": 1.0},
        {"together": 1.5},
        {"common": 0.1},
        {"lambda_p": -1},
        {"center_lr_ratio": -1},
        {"own_classes": 1},
    ],
)
def test_hyperparameters_are_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidValueError, match=next(iter(wrong))):
        QuPeDPlus(**wrong)
