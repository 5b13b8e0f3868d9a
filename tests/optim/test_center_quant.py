"""Algorithm 1 as an optimizer: one step against NumPy, many against the federated one, and its statistics."""

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from helpers.optim_nets import (
    BIAS,
    INPUTS,
    LABELS,
    WEIGHT,
    Array,
    batches,
    bn_net,
    classifier,
    closest,
    distinct,
    gradients,
    loss_of,
    shrink,
    train,
)
from torch import Tensor, nn

from quped import LinearSchedule, models
from quped.algorithms import SGD, ClientSpec, Local, Quantization
from quped.algorithms._algorithm1 import Learner
from quped.errors import DataError, NetworkError
from quped.models import FunctionalNetwork
from quped.optim import CenterQuant, GroupSpec, ProxQuant, quantizable, recalibrate
from quped.quant import Assignment, CenterInit, hard
from quped.simulation.client_round import one_thread
from quped.typing import Batch, Clock, Phase

LR, RATE, T, ETA2 = 0.3, 0.05, 4.0, 0.2
LAM = RATE * T
CENTER_GRAD_CLIP = 0.02
"""Which cuts gradients by centers."""


def optimizer(model: nn.Linear, bits: int, **options: Any) -> CenterQuant:
    """Return one with SGD at epoch T."""
    opt = CenterQuant(
        torch.optim.SGD(model.parameters(), lr=LR),
        quantizable(model, ["weight"]),
        bits=bits,
        lam=LinearSchedule(RATE),
        eta2=ETA2,
        **options,
    )
    opt.epoch = T
    return opt


def start(x: Array, m: int) -> Array:
    """The paper's centers: means of the two signs, or evenly spaced."""
    return np.array([x[x < 0].mean(), x[x > 0].mean()]) if m == 2 else np.linspace(x.min(), x.max(), m)


def pulled(mu: Array, x: Array, c: Array) -> Array:
    """The prox of the centers: toward the medians of their weights."""
    a = closest(x, c)
    return np.sort(mu + LAM * ETA2 / 2 * np.array([np.sign(x[a == j] - c[j]).sum() for j in range(len(c))]))


@pytest.mark.parametrize("bits", [1, 2])
def test_one_step_is_lines_2_to_5(bits: int) -> None:
    """P = infinity: gradient at x, prox, gradient by the centers at Q(x), prox; the bias steps by f(x) alone."""
    model = classifier()
    loss = optimizer(model, bits).step(loss_of(model))
    c = start(WEIGHT, 2**bits)
    by_w, by_b = gradients(WEIGHT, BIAS)
    y, b = WEIGHT - LR * by_w, BIAS - LR * by_b
    target = c[closest(y, c)]
    x = target + shrink(y - target, LAM * LR / 2)
    np.testing.assert_allclose(model.weight.detach().numpy(), x, rtol=1e-12)
    np.testing.assert_allclose(model.bias.detach().numpy(), b, rtol=1e-12)
    logits = INPUTS @ WEIGHT.T + BIAS
    expected = (np.log(np.exp(logits).sum(1)) - logits[np.arange(6), LABELS]).mean()
    assert float(loss) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("bits", [1, 2])
@pytest.mark.parametrize("center_grad_clip", [10.0, CENTER_GRAD_CLIP])
def test_the_centers_step_at_the_new_weights(bits: int, center_grad_clip: float) -> None:
    """h sums the gradients at Q(x) of the weights of each center, and is cut; then the pull to the medians."""
    model = classifier()
    opt = optimizer(model, bits, center_grad_clip=center_grad_clip)
    opt.step(loss_of(model))
    c, x, b = start(WEIGHT, 2**bits), model.weight.detach().numpy(), model.bias.detach().numpy()
    a = closest(x, c)
    by_q = gradients(c[a], b)[0]
    h = np.array([by_q[a == j].sum() for j in range(len(c))])
    assert (np.abs(h) > CENTER_GRAD_CLIP).any()
    h = np.clip(h, -center_grad_clip, center_grad_clip)
    np.testing.assert_allclose(opt.centers["weight"][0].numpy(), pulled(c - ETA2 * h, x, c), rtol=1e-12)


@pytest.mark.parametrize("center_grad_clip", [10.0, CENTER_GRAD_CLIP])
def test_a_step_of_fine_tuning(center_grad_clip: float) -> None:
    """Centers along their cut gradient, each weight at its center, the bias along its own."""
    model = classifier()
    opt = optimizer(model, 1, center_grad_clip=center_grad_clip)
    opt.harden(model)
    opt.step(loss_of(model))
    c = start(WEIGHT, 2)
    a = closest(WEIGHT, c)
    by_w, by_b = gradients(c[a], BIAS)
    h = np.array([by_w[a == j].sum() for j in range(2)])
    assert (np.abs(h) > CENTER_GRAD_CLIP).any()
    c = c - ETA2 * np.clip(h, -center_grad_clip, center_grad_clip)
    assert c[0] < c[1]
    np.testing.assert_allclose(opt.centers["weight"][0].numpy(), c, rtol=1e-12)
    np.testing.assert_allclose(model.weight.detach().numpy(), c[a], rtol=1e-12)
    np.testing.assert_allclose(model.bias.detach().numpy(), BIAS - LR * by_b, rtol=1e-12)


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("hard", [False, True])
def test_center_steps_scaled_by_the_size_of_the_layer(per_channel: bool, hard: bool) -> None:
    """eta_2 = kappa eta_1 / sqrt(n), with the 12 weights of the layer or the 4 of a channel; h is not cut."""
    model, kappa = classifier(), 0.7
    options = {"center_lr_ratio": kappa, "center_grad_clip": CENTER_GRAD_CLIP, "per_channel": per_channel}
    opt = optimizer(model, 1, average_gradients=True, **options)
    opt.lam = LinearSchedule(0.0)
    if hard:
        opt.harden(model)
    opt.step(loss_of(model))
    rows = WEIGHT if per_channel else WEIGHT.reshape(1, -1)
    c = np.stack([start(row, 2) for row in rows])
    a = np.stack([closest(row, own) for row, own in zip(rows, c, strict=True)])
    q = np.take_along_axis(c, a, 1).reshape(WEIGHT.shape)
    by_q = gradients(q, BIAS)[0].reshape(rows.shape)
    h = np.stack([(by_q * (a == j)).sum(1) for j in range(2)], 1)
    assert (np.abs(h) > CENTER_GRAD_CLIP).any()
    expected = c - kappa * LR / np.sqrt(rows.shape[1]) * h
    np.testing.assert_allclose(opt.centers["weight"].numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize("bits", [1, 2])
def test_a_step_with_averaged_gradients(bits: int) -> None:
    """The mean of the gradients at x and at Q(x), for all parameters; h is of the old x, the pull of the new."""
    model = classifier()
    opt = optimizer(model, bits, average_gradients=True)
    opt.step(loss_of(model))
    c = start(WEIGHT, 2**bits)
    a = closest(WEIGHT, c)
    at_x, at_q = gradients(WEIGHT, BIAS), gradients(c[a], BIAS)
    y, b = (before - LR * (g + q) / 2 for before, g, q in zip((WEIGHT, BIAS), at_x, at_q, strict=True))
    target = c[closest(y, c)]
    x = target + shrink(y - target, LAM * LR / 2)
    np.testing.assert_allclose(model.weight.detach().numpy(), x, rtol=1e-12)
    np.testing.assert_allclose(model.bias.detach().numpy(), b, rtol=1e-12)
    h = np.array([at_q[0][a == j].sum() for j in range(len(c))])
    np.testing.assert_allclose(opt.centers["weight"][0].numpy(), pulled(c - ETA2 * h, x, c), rtol=1e-12)


def test_a_step_with_a_finite_p() -> None:
    """All parameters get the gradient through Q~, too, and centers that of the sigmoid."""
    p, model = 4.0, classifier()
    opt = optimizer(model, 1, sharpness=p)
    opt.step(loss_of(model))
    c = start(WEIGHT, 2)
    gap = c[1] - c[0]

    def sigmoid(x: Array) -> Array:
        return np.asarray(1 / (1 + np.exp(-p * (x - c.mean()))))

    s, at_x = sigmoid(WEIGHT), gradients(WEIGHT, BIAS)
    at_q = gradients(c[0] + gap * s, BIAS)
    y = WEIGHT - LR * (at_x[0] + p * gap * s * (1 - s) * at_q[0])
    b = BIAS - LR * (at_x[1] + at_q[1])
    target = c[closest(y, c)]
    x = target + shrink(y - target, LAM * LR / 2)
    s = sigmoid(x)
    by_q, slope = gradients(c[0] + gap * s, b)[0], gap * p / 2 * s * (1 - s)
    h = np.array([(by_q * (1 - s - slope)).sum(), (by_q * (s - slope)).sum()])
    np.testing.assert_allclose(model.weight.detach().numpy(), x, rtol=1e-12)
    np.testing.assert_allclose(model.bias.detach().numpy(), b, rtol=1e-12)
    np.testing.assert_allclose(opt.centers["weight"][0].numpy(), pulled(c - ETA2 * h, x, c), rtol=1e-12)


def test_channels_have_centers_of_their_own() -> None:
    """Each row of the weight matrix is stepped with its own centers."""
    model = classifier()
    opt = optimizer(model, 1, per_channel=True)
    opt.step(loss_of(model))
    y = WEIGHT - LR * gradients(WEIGHT, BIAS)[0]
    for row in range(3):
        c = start(WEIGHT[row], 2)
        target = c[closest(y[row], c)]
        expected = target + shrink(y[row] - target, LAM * LR / 2)
        np.testing.assert_allclose(model.weight[row].detach().numpy(), expected, rtol=1e-12)
    assert opt.centers["weight"].shape == (3, 2)


VARIANTS: dict[str, tuple[int, dict[str, Any], dict[str, Any]]] = {
    "1 bit": (1, {"assignment": "nearest"}, {}),
    "1 bit by sign": (1, {"assignment": "sign"}, {}),
    "2 bits": (2, {"assignment": "nearest"}, {}),
    "2 bits, scaled by size": (2, {"assignment": "nearest", "center_lr_ratio": 0.3}, {}),
    "2 bits with momentum": (2, {"assignment": "nearest"}, {"momentum": 0.9}),
    "soft": (2, {"assignment": "nearest", "sharpness": 3.0}, {"momentum": 0.9}),
    "soft by sign": (1, {"assignment": "sign", "sharpness": 3.0}, {}),
}
"""Bits, options that `CenterQuant` and `Quantization` have both, and options of SGD."""


def federated(
    model: nn.Module, bits: int, init_centers: CenterInit, sgd: SGD, **quantization: Any
) -> tuple[ClientSpec, Local, Learner]:
    """Return a client with this network, local training, and the client's state before it."""
    network = FunctionalNetwork(model)
    spec = ClientSpec(
        network,
        network.initial,
        network,
        network.initial,
        dict.fromkeys(models.quantizable(model), bits),
        init_centers,
        sgd=sgd,
    )
    local = Local(Quantization(lam={bits: LinearSchedule(0.05)}, **quantization))
    return spec, local, local.init_personal(spec, local.init_shared(spec))


@pytest.mark.parametrize(("bits", "options", "sgd"), VARIANTS.values(), ids=VARIANTS)
@one_thread()
def test_equals_the_federated_algorithm(bits: int, options: dict[str, Any], sgd: dict[str, Any]) -> None:
    """With SGD this is what `local` does at a client, in training and in fine-tuning: weights, centers, statistics."""
    model = bn_net().double()
    start: CenterInit = "range" if bits == 1 else "kmeans"
    spec, local, work = federated(model, bits, start, SGD(1e-3, sgd.get("momentum", 0.0)), eta2=0.01, **options)
    opt = CenterQuant(
        torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=1e-3, **sgd),
        quantizable(model),
        bits=bits,
        lam=LinearSchedule(0.05),
        eta2=0.01,
        init_centers=start,
        **options,
    )
    opt.epoch = 3
    for i, (inputs, labels) in enumerate((x.double(), y) for x, y in batches(12)):
        clock = Clock(0, 3, Phase.TRAIN if i < 6 else Phase.FINETUNE, 3.0, 0.1, 0.1, 0.0)
        work = local.start(spec, local.init_shared(spec), work, clock)
        work, _ = local.step(spec, work, (Batch((inputs,), labels),), clock)
        if i == 6:
            opt.harden(model)
        train(opt, model, [(inputs, labels)])
        assert_close(dict(model.named_parameters()), work.x.params)
        assert_close(opt.centers, work.c)
        assert_close(dict(model.named_buffers()), work.q_buffers if opt.hard else work.x.buffers)
        assert_close(opt.q_buffers, {} if opt.hard else work.q_buffers)


def assert_close(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Compare tensors by name."""
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        torch.testing.assert_close(tensor.detach(), expected[name], rtol=1e-10, atol=1e-12)


@one_thread()
def test_averaged_gradients_and_half_steps_agree_to_first_order() -> None:
    """A client that trains straight through takes two half steps: half the rate, a quarter of the difference."""
    (inputs, labels), gaps = batches(1)[0], list[float]()
    for lr in (2e-5, 1e-5):  # so small that no weight changes its center
        model = bn_net().double()
        spec, local, work = federated(
            model, 2, "range", SGD(0.0), assignment="nearest", eta2=0.0, straight_through=True
        )
        opt = CenterQuant(
            torch.optim.SGD(model.parameters(), lr=lr),
            quantizable(model),
            bits=2,
            lam=LinearSchedule(0.0),
            eta2=0.0,
            average_gradients=True,
        )
        train(opt, model, [(inputs.double(), labels)])
        work, _ = local.step(
            spec, work, (Batch((inputs.double(),), labels),), Clock(0, 0, Phase.TRAIN, 0.0, lr, lr, 0.0)
        )
        gaps.append(max(float((p.detach() - work.x.params[k]).abs().max()) for k, p in model.named_parameters()))
    assert gaps[1] > 0
    assert gaps[0] / gaps[1] == pytest.approx(4, rel=0.1)


@one_thread()
def test_with_fixed_unit_centers_by_sign_it_is_proxquant() -> None:
    """But for the factor of lambda and the clamping to [-1, 1], which these weights never reach."""
    nets = bn_net(), bn_net()
    first, second = (torch.optim.Adam(net.parameters(), lr=0.01) for net in nets)
    lam = LinearSchedule(0.1)
    ours = CenterQuant(
        first,
        quantizable(nets[0]),
        bits=1,
        lam=lambda t: 2 * lam(t),
        eta2=0.0,
        assignment="sign",
        init_centers="unit",
    )
    theirs = ProxQuant(second, quantizable(nets[1]), lam=lam)
    for epoch in range(1, 11):
        ours.epoch = theirs.epoch = epoch
        for opt, net in ((ours, nets[0]), (theirs, nets[1])):
            train(opt, net, batches(3, seed=epoch))
    assert max(float(x.detach().abs().max()) for x in theirs.x.values()) < 1
    for opt, net in ((ours, nets[0]), (theirs, nets[1])):
        opt.harden(net)
        assert all(set(x.detach().flatten().tolist()) == {-1.0, 1.0} for x in opt.x.values())
    assert all(torch.equal(a, b) for a, b in zip(nets[0].parameters(), nets[1].parameters(), strict=True))


@pytest.mark.parametrize(("assignment", "expected"), [("nearest", [0, 0, 1]), ("sign", [0, 1, 1])])
def test_weights_are_assigned_as_asked(assignment: Assignment, expected: list[int]) -> None:
    """A small positive weight is nearer to the negative center."""
    model = nn.Linear(3, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[-0.1, 0.3, 2.5]]))  # the centers are -0.1 and 1.4, their middle is 0.65
    opt = CenterQuant(
        torch.optim.SGD(model.parameters(), lr=0.1),
        quantizable(model, ["weight"]),
        bits=1,
        lam=LinearSchedule(0.1),
        assignment=assignment,
    )
    assert opt.codebooks()["weight"].indices.tolist() == [expected]
    with opt.quantized():
        shown = model.weight.detach().clone()
    opt.harden(model)
    assert opt.assigned["weight"].tolist() == [expected]
    assert torch.equal(model.weight, shown)


def test_the_closure_can_ask_which_weights_the_network_holds() -> None:
    """First x, then the new x on its centers; x afterwards."""
    model, seen = classifier(), list[tuple[bool, int]]()
    opt = optimizer(model, 1)

    def closure() -> Tensor:
        seen.append((opt.is_quantized, distinct(model.weight)))
        return loss_of(model)()

    opt.step(closure)
    assert seen == [(False, 12), (True, 2)]
    closure()
    with opt.quantized():
        closure()
    opt.harden(model)
    opt.step(closure)
    assert [q for q, _ in seen[2:]] == [False, True, True]
    assert [count > 2 for _, count in seen[2:]] == [True, False, False]


def test_a_scheduler_of_the_base_optimizer_scales_the_prox() -> None:
    """Without gradients a weight moves by lambda eta_1 / 2, with eta_1 as the scheduler has it; so do t and lambda."""
    model = classifier()
    opt = optimizer(model, 1)
    scheduler = torch.optim.lr_scheduler.StepLR(opt.base, step_size=1, gamma=0.5)
    for lam, lr in ((LAM, LR), (LAM, LR / 2), (2 * LAM, LR / 4)):
        before = model.weight.detach().clone()
        opt.epoch = lam / RATE
        opt.groups[0]["eta2"] = 0.0
        opt.step(lambda: 0 * model.weight.sum())
        assert float((model.weight.detach() - before).abs().max()) == pytest.approx(lam * lr / 2, rel=1e-9)
        scheduler.step()
    assert opt.param_groups is opt.base.param_groups


def test_who_never_sets_the_epoch_trains_with_lambda_of_1() -> None:
    """A linear lambda is not 0 for them."""
    model = classifier()
    opt = CenterQuant(
        torch.optim.SGD(model.parameters(), 1.0), quantizable(model, ["weight"]), bits=1, lam=LinearSchedule(0.02)
    )
    before = model.weight.detach().clone()
    opt.step(lambda: 0 * model.weight.sum())
    assert float((model.weight.detach() - before).abs().max()) == pytest.approx(0.01, rel=1e-9)


def test_groups_have_bits_and_center_rates_of_their_own() -> None:
    """Two layers, 1 and 3 bits; the centers of the first do not move."""
    model = bn_net()
    groups: list[GroupSpec] = [
        {"params": quantizable(model, ["3.weight"]), "bits": 1, "eta2": 0.0},
        {"params": quantizable(model, ["6.weight"])},
    ]
    opt = CenterQuant(torch.optim.Adam(model.parameters()), groups, bits=3, lam=LinearSchedule(0.1), eta2=0.1)
    before = dict(opt.centers)
    train(opt, model, batches(3))
    opt.harden(model)
    assert torch.equal(opt.centers["3.weight"], before["3.weight"])
    assert not torch.equal(opt.centers["6.weight"], before["6.weight"])
    assert [group["levels"] for group in opt.groups] == [2, 8]
    assert distinct(opt.x["3.weight"]) == 2
    assert 2 < distinct(opt.x["6.weight"]) <= 8


def test_statistics_of_both_passes_are_kept_apart() -> None:
    """The network has those of x; Q_c(x) has its own, which `quantized` and `harden` bring in."""
    model = bn_net()
    opt = CenterQuant(
        torch.optim.SGD(model.parameters(), lr=0.1), quantizable(model), bits=1, lam=LinearSchedule(0.0), eta2=0.0
    )
    at_x, at_q = copy.deepcopy(model), copy.deepcopy(model)
    (x, y), *_ = batches(1)
    train(opt, model, [(x, y)])
    at_x(x)
    with torch.no_grad():
        for name, p in model.named_parameters():
            own = at_q.get_parameter(name)
            own.copy_(hard(p, opt.centers[name]) if name in opt.centers else p)
    at_q(x)
    names = [name for name, _ in model.named_buffers()]
    assert len(names) == 9
    for name in names:
        torch.testing.assert_close(model.get_buffer(name), at_x.get_buffer(name))
        torch.testing.assert_close(opt.q_buffers[name], at_q.get_buffer(name))
    assert not torch.allclose(model.get_buffer("7.running_var"), opt.q_buffers["7.running_var"])
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with opt.quantized():
        for name, tensor in at_q.state_dict().items():
            torch.testing.assert_close(model.state_dict()[name], tensor)
        model(x)  # in training mode: even this is gone afterwards
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    opt.harden(model)
    for name, tensor in at_q.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], tensor)


def test_recalibration_is_the_mean_over_batches() -> None:
    """Means and variances of the first BatchNorm's inputs, averaged over batches; modes and momentum are put back."""
    model = bn_net()
    inputs = [x for x, _ in batches(4)]
    model[7].eval()
    recalibrate(model, inputs)
    with torch.no_grad():
        means = torch.stack([model[0](x).mean(0) for x in inputs]).mean(0)
        variances = torch.stack([model[0](x).var(0) for x in inputs]).mean(0)
    torch.testing.assert_close(model.get_buffer("1.running_mean"), means)
    torch.testing.assert_close(model.get_buffer("1.running_var"), variances)
    assert model.training
    assert not model[7].training
    assert isinstance(model[1], nn.BatchNorm1d)
    assert model[1].momentum == 0.1
    before = {name: b.clone() for name, b in model.named_buffers()}
    with pytest.raises(DataError, match="no batch"):
        recalibrate(model, [])
    assert all(torch.equal(b, before[name]) for name, b in model.named_buffers())
    with pytest.raises(NetworkError, match="nothing to recalibrate"):
        recalibrate(classifier(), inputs)


def test_fine_tuning_keeps_the_assignment_when_centers_cross() -> None:
    """Weights follow their centers past each other; afterwards centers are sorted again."""
    model = classifier()
    opt = optimizer(model, 1)
    opt.harden(model)
    a, c = closest(WEIGHT, start(WEIGHT, 2)), start(WEIGHT, 2)
    by_q = gradients(c[a], BIAS)[0]
    h = np.array([by_q[a == j].sum() for j in range(2)])
    eta2 = -3 * (c[1] - c[0]) / (h[0] - h[1])
    if eta2 < 0:  # the loss drives the centers apart: turn it round
        eta2, sign = -eta2, -1.0
    else:
        sign = 1.0
    opt.groups[0]["eta2"] = eta2
    opt.step(lambda: sign * loss_of(model)())
    moved = c - eta2 * sign * h
    assert moved[0] > moved[1]
    np.testing.assert_allclose(model.weight.detach().numpy(), moved[a], rtol=1e-12)
    np.testing.assert_allclose(opt.centers["weight"][0].numpy(), np.sort(moved), rtol=1e-12)
    np.testing.assert_array_equal(opt.assigned["weight"].reshape(3, 4).numpy(), 1 - a)
