"""One step of FedAvgFT, FedRep and Ditto against the same step in NumPy, on models with two or four parameters."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from helpers.linear_model import (
    LR,
    Array,
    batch,
    ce_gradient,
    ce_gradients_with_bias,
    clock,
    model,
    model_with_bias,
    network_with_bias,
    spec,
)
from helpers.small_federation import clients, fit, values
from torch import nn

from quped import Client, Federation
from quped.algorithms import SGD, ClientSpec, Ditto, FedAvgFT, FedRep, Quantization
from quped.algorithms.base import Global
from quped.errors import InvalidValueError
from quped.quant import LinearSchedule
from quped.typing import Params, Phase

V, B, W = np.array([0.9, -0.4]), np.array([0.3, -0.1]), np.array([0.3, 0.2])
DECAY, MOMENTUM = 0.1, 0.5
ALONE = clock(3.0)
"""The clock of a round alone where `warmup_epochs` is at most 3."""


class Rolling:
    """Parameters under SGD with weight decay and momentum."""

    def __init__(self, at: Array) -> None:
        self.at, self.speed = at, np.zeros(2)

    def step(self, gradient: Array) -> None:
        self.speed = MOMENTUM * self.speed + gradient + DECAY * self.at
        self.at = self.at - LR * self.speed


def biased_spec(bits: int = 32, sgd: SGD | None = None) -> ClientSpec:
    """Return a spec of the network with parameters v and b, of which b is the head."""
    widths = {"v": bits} if bits < 32 else {}
    w, decay = model_with_bias(V, B), sgd or SGD(0.0)
    return ClientSpec(network_with_bias, w, network_with_bias, w, widths, head=("b",), sgd=decay)


def numbers(params: Params, name: str = "v") -> Array:
    """Return a parameter as an array."""
    return np.asarray(params[name].numpy())


def test_ditto_steps() -> None:
    """x_i is pulled to the w that came, not to w_i; its velocity lasts, that of w_i is of one round."""
    algorithm, t = Ditto(lam=0.4), replace(spec(V, W), sgd=SGD(DECAY, MOMENTUM))
    shared = Global(model(W))
    personal = algorithm.init_personal(t, shared)
    np.testing.assert_array_equal(numbers(personal.x.params), W)
    x, received = Rolling(W), W
    for _ in range(2):
        work, w = algorithm.start(t, shared, personal, clock()), Rolling(received)
        for _ in range(2):
            work, _ = algorithm.step(t, work, (batch(),), clock())
            x.step(ce_gradient(x.at) + 0.4 * (x.at - received))
            w.step(ce_gradient(w.at))
        personal, payload = algorithm.finish(t, work, batch(), clock())
        shared, received = algorithm.server_update(shared, payload), w.at
        np.testing.assert_allclose(numbers(personal.x.params), x.at, rtol=1e-12)
        np.testing.assert_allclose(numbers(shared.w.params), w.at, rtol=1e-12)
    deployed = algorithm.deploy(t, shared, personal).state.params
    np.testing.assert_array_equal(numbers(deployed), numbers(personal.x.params))


@pytest.mark.parametrize("jointly", [False, True])
def test_fedrep_steps(jointly: bool) -> None:
    """In each round one step on the head, then two on the body; FedPer steps both in all three."""
    algorithm, t = FedRep(head_steps=1, jointly=jointly), biased_spec(sgd=SGD(DECAY, MOMENTUM))
    shared = algorithm.init_shared(t)
    assert shared.body.params.keys() == {"v"}
    personal = algorithm.init_personal(t, shared)
    v, b = Rolling(V), Rolling(B)
    for _ in range(2):
        work = algorithm.start(t, shared, personal, clock())
        v = Rolling(v.at)  # the body is averaged, and begins every round without momentum
        for i in range(3):
            work, _ = algorithm.step(t, work, (batch(),), clock())
            by_v, by_b = ce_gradients_with_bias(v.at, b.at)
            if jointly or i == 0:
                b.step(by_b)
            if jointly or i > 0:
                v.step(by_v)
        personal, payload = algorithm.finish(t, work, batch(), clock())
        shared = algorithm.server_update(shared, payload)
        assert payload.body.params.keys() == {"v"}
        np.testing.assert_allclose(numbers(shared.body.params), v.at, rtol=1e-12)
        np.testing.assert_allclose(numbers(personal.head, "b"), b.at, rtol=1e-12)
    deployed = algorithm.deploy(t, shared, personal).state.params
    np.testing.assert_array_equal(numbers(deployed), numbers(shared.body.params))
    np.testing.assert_array_equal(numbers(deployed, "b"), numbers(personal.head, "b"))


@pytest.mark.parametrize("frozen_head", [False, True])
def test_fedavgft_common_steps(frozen_head: bool) -> None:
    """FedAvg's; with a frozen head only the body moves, and not even weight decay changes the head."""
    algorithm, t = FedAvgFT(warmup_epochs=3.5, frozen_head=frozen_head), biased_spec(sgd=SGD(DECAY, MOMENTUM))
    shared = algorithm.init_shared(t)
    work = algorithm.start(t, shared, algorithm.init_personal(t, shared), clock(3.0))
    v, b = Rolling(V), Rolling(B)
    for _ in range(2):
        work, _ = algorithm.step(t, work, (batch(),), clock(3.0))
        by_v, by_b = ce_gradients_with_bias(v.at, b.at)
        v.step(by_v)
        if not frozen_head:
            b.step(by_b)
    personal, payload = algorithm.finish(t, work, batch(), clock(3.0))
    updated = algorithm.server_update(shared, payload)
    np.testing.assert_allclose(numbers(updated.w.params), v.at, rtol=1e-12)
    np.testing.assert_allclose(numbers(updated.w.params, "b"), b.at, rtol=1e-12)
    deployed = algorithm.deploy(t, updated, personal).state.params
    np.testing.assert_array_equal(numbers(deployed), numbers(updated.w.params))


@pytest.mark.parametrize("now", [ALONE, clock(2.0, Phase.FINETUNE)])
def test_fedavgft_alone_in_full_precision(now: Any) -> None:
    """SGD from w, round after round with one velocity; what is sent changes nothing."""
    algorithm, t = FedAvgFT(warmup_epochs=3.0), replace(spec(V, V), sgd=SGD(DECAY, MOMENTUM))
    shared = Global(model(W))
    personal = algorithm.init_personal(t, Global(model(V)))  # of an earlier w, which is not used
    x = Rolling(W)
    for _ in range(2):
        work = algorithm.start(t, shared, personal, now)
        work, _ = algorithm.step(t, work, (batch(),), now)
        x.step(ce_gradient(x.at))
        personal, payload = algorithm.finish(t, work, batch(), now)
        assert algorithm.server_update(shared, payload) is shared
        np.testing.assert_allclose(numbers(algorithm.deploy(t, shared, personal).state.params), x.at, rtol=1e-12)


@pytest.mark.parametrize("straight_through", [False, True])
def test_fedavgft_alone_at_one_bit_is_algorithm_1(straight_through: bool) -> None:
    """From x = w and its centers: lines 2 to 5, with the gradient by x at Q_c(x) or without."""
    eta2, lam = 0.05, 0.02 * 3.0
    quantization = Quantization(
        eta2=eta2, lam={1: LinearSchedule(0.02)}, straight_through=straight_through, assignment="nearest"
    )
    algorithm, t = FedAvgFT(warmup_epochs=3.0, quantization=quantization), spec(W, W, bits=1)
    shared = Global(model(V))
    work = algorithm.start(t, shared, algorithm.init_personal(t, Global(model(W))), ALONE)
    work, _ = algorithm.step(t, work, (batch(),), ALONE)
    c = np.sort(V)  # the means of each sign: each weight is its center
    y = V - LR * ce_gradient(V)
    if straight_through:
        y = V - LR / 2 * ce_gradient(V) - LR / 2 * ce_gradient(V)
    x = V + np.sign(y - V) * np.maximum(np.abs(y - V) - lam * LR / 2, 0)
    h = ce_gradient(V)[::-1]  # the first weight has the upper center
    c = c - eta2 * h + lam * eta2 / 2 * np.sign(x - V)[::-1]
    np.testing.assert_allclose(numbers(work.learner.x.params), x, rtol=1e-12)
    np.testing.assert_allclose(work.learner.c["v"][0].numpy(), c, rtol=1e-12)
    personal, _ = algorithm.finish(t, work, batch(), ALONE)
    np.testing.assert_array_equal(numbers(algorithm.deploy(t, shared, personal).state.params), c[::-1])


@pytest.mark.parametrize("bits", [1, 32])
def test_fedavgft_head_first(bits: int) -> None:
    """The head steps by the gradient at Q_c(x), with weight decay and momentum; x's other weights and c stay."""
    algorithm, t = FedAvgFT(warmup_epochs=3.0, head_first_epochs=0.5), biased_spec(bits, SGD(DECAY, MOMENTUM))
    v = np.array([0.9, 0.5])
    shared = Global(model_with_bias(v, B))
    personal = algorithm.init_personal(t, shared)
    centers = torch.tensor([[0.6, 1.0]], dtype=torch.float64)
    if bits == 1:
        personal = personal._replace(learner=personal.learner._replace(c={"v": centers}), is_own=torch.tensor(True))
    work = algorithm.start(t, shared, personal, ALONE)
    b = Rolling(B)
    q = np.array([1.0, 0.6]) if bits == 1 else v
    for _ in range(2):
        work, _ = algorithm.step(t, work, (batch(),), ALONE)
        b.step(ce_gradients_with_bias(q, b.at)[1])
    np.testing.assert_allclose(numbers(work.learner.x.params, "b"), b.at, rtol=1e-12)
    np.testing.assert_array_equal(numbers(work.learner.x.params), v)
    if bits == 1:
        assert torch.equal(work.learner.c["v"], centers)
    later = clock(3.5)
    moved, _ = algorithm.step(t, work, (batch(),), later)
    assert not np.array_equal(numbers(moved.learner.x.params), v)


@pytest.mark.parametrize(("bits", "centers"), [(1, [-4, 2.9375]), (2, [-4, 0.5, 2, 8])])
def test_fedavgft_deploys_the_quantized_w_until_a_client_is_alone(bits: int, centers: list[float]) -> None:
    """Of the w that is, with centers at the means of its weights; of two, those of each sign."""
    algorithm, t = FedAvgFT(warmup_epochs=4.0), spec(V, W, bits=bits)
    w = np.array([-4, 0.25, 0.5, 0.75, 1.75, 2, 2.25, 8, 8])
    personal = algorithm.init_personal(t, Global(model(np.linspace(-1, 1, 9))))
    deployed = algorithm.deploy(t, Global(model(w)), personal)
    assert deployed.codebooks["v"].centers[0].tolist() == pytest.approx(centers)
    assert set(numbers(deployed.state.params)) <= set(deployed.codebooks["v"].centers[0].tolist())
    late = algorithm.start(t, Global(model(w)), personal, clock(4.0))
    np.testing.assert_array_equal(numbers(late.learner.x.params), w)
    assert late.learner.c["v"][0].tolist() == pytest.approx(centers)


def test_clients_who_are_not_sampled_deploy_the_quantized_w() -> None:
    """In a federation where one of three clients takes part in each of two rounds, the second of them alone."""
    result = fit(FedAvgFT(warmup_epochs=1.0), clients_per_round=1, epochs=2, finetune_epochs=1, local_steps=3)
    w = result.global_model
    assert w is not None
    assert result.rounds == 2
    common = [
        name
        for name, model in result.models.items()
        if torch.equal(model.state.params["last.weight"], w.params["last.weight"])
    ]
    assert len(common) == 2
    levels = {name: len(values(model.state.params["middle.weight"])) for name, model in result.models.items()}
    assert (levels["c0"], levels["c1"]) == (4, 2)


@pytest.mark.parametrize(
    ("algorithm", "words"),
    [
        (FedRep(head=("lst.weight",)), "no trained parameter 'lst.weight'.* Did you mean 'last.weight'"),
        (FedAvgFT(head=("lst.weight",), frozen_head=True), "no trained parameter 'lst.weight'"),
        (
            FedRep(
                head=("first.weight", *(f"{k}.{p}" for k in ("norm", "middle", "last") for p in ("weight", "bias")))
            ),
            "whole",
        ),
    ],
)
def test_a_head_that_the_network_does_not_have_is_refused(algorithm: FedRep | FedAvgFT, words: str) -> None:
    with pytest.raises(InvalidValueError, match=words):
        fit(algorithm, [replace(member, bits=32) for member in clients(algorithm)])


def test_a_network_whose_last_layer_is_frozen_needs_a_named_head() -> None:
    network = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3))
    network[2].requires_grad_(False)
    data = (torch.randn(12, 6), torch.arange(12) % 3)
    federation = Federation([Client("a", data, data, network)], FedRep())
    with pytest.raises(InvalidValueError, match=r"frozen.*name the head"):
        federation.fit(epochs=1, workers=0, progress=False)


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (FedRep, {"head": "last"}),
        (FedRep, {"head_steps": -1}),
        (FedRep, {"jointly": "yes"}),
        (FedAvgFT, {"head": []}),
        (FedAvgFT, {"warmup_epochs": -1}),
        (FedAvgFT, {"head_first_epochs": "1"}),
        (FedAvgFT, {"frozen_head": 1}),
        (FedAvgFT, {"quantization": 2}),
        (Ditto, {"lam": -1}),
    ],
)
def test_hyperparameters_out_of_range_are_refused(kind: Any, wrong: dict[str, object]) -> None:
    ((name, _),) = wrong.items()
    with pytest.raises(InvalidValueError, match=rf"{name}.* must be .*, got"):
        kind(**wrong)
