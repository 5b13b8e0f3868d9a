"""Algorithm 1 as an optimizer: one step against NumPy, many against the federated one, and its statistics."""

import copy
import math

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
from torch import nn

from quped.algorithms import SGD, ClientSpec, Local, Quantization
from quped.errors import DataError, NetworkError
from quped.models import FunctionalNetwork
from quped.optim import CenterQuant, GroupSpec, linear, quantizable, recalibrate
from quped.quant import LinearSchedule, hard
from quped.simulation.client_round import one_thread
from quped.typing import Batch, Clock, Phase

LR, RATE, T, ETA2 = 0.3, 0.05, 4.0, 0.2
LAM = RATE * T
CENTER_GRAD_CLIP = 0.02
"""Which cuts gradients by centers."""


def optimizer(
    model: nn.Linear,
    bits: int,
    sharpness: float = math.inf,
    per_channel: bool = False,
    straight_through: bool = False,
    center_grad_clip: float = 10.0,
) -> CenterQuant:
    """Return one with SGD at epoch T."""
    opt = CenterQuant(
        torch.optim.SGD(model.parameters(), lr=LR),
        quantizable(model, ["weight"]),
        bits=bits,
        lam=linear(RATE),
        eta2=ETA2,
        sharpness=sharpness,
        per_channel=per_channel,
        straight_through=straight_through,
        center_grad_clip=center_grad_clip,
    )
    opt.t = T
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


@pytest.mark.parametrize("bits", [1, 2])
def test_a_step_straight_through(bits: int) -> None:
    """Half the gradient at x and half that at Q(x), for all parameters; h is of the old x, the pull of the new."""
    model = classifier()
    opt = optimizer(model, bits, straight_through=True)
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


@pytest.mark.parametrize(("momentum", "sharpness"), [(0.0, math.inf), (0.9, math.inf), (0.9, 3.0)])
@one_thread()
def test_equals_the_federated_algorithm(momentum: float, sharpness: float) -> None:
    """With SGD this is what `local` does at a client: weights, centers and both kinds of statistics, in both phases."""
    model = bn_net().double()
    network = FunctionalNetwork(model)
    spec = ClientSpec(
        network,
        network.initial,
        network,
        network.initial,
        2,
        network.quantized,
        sgd=SGD(1e-3, momentum),
        init_centers="kmeans",
    )
    local = Local(Quantization(eta2=0.01, lam={2: LinearSchedule(0.05)}, sharpness=sharpness))
    opt = CenterQuant(
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum, weight_decay=1e-3),
        quantizable(model),
        bits=2,
        lam=linear(0.05),
        eta2=0.01,
        sharpness=sharpness,
        init_centers="kmeans",
    )
    opt.t = 3
    data = [(x.double(), y) for x, y in batches(12)]
    work = local.init_personal(spec, local.init_shared(spec))
    for i, (inputs, labels) in enumerate(data):
        clock = Clock(0, 3, Phase.TRAIN if i < 6 else Phase.FINETUNE, 3.0, 0.1)
        work = local.start(spec, local.init_shared(spec), work, clock)
        work, _ = local.step(spec, work, (Batch((inputs,), labels),), clock)
        if i == 6:
            opt.harden(model)
        train(opt, model, [(inputs, labels)])
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(parameter.detach(), work.x.params[name], rtol=1e-10, atol=1e-12)
        for name, centers in opt.centers.items():
            torch.testing.assert_close(centers, work.c[name], rtol=1e-10, atol=1e-12)
        for name, buffer in model.named_buffers():
            expected = (work.q_buffers if opt.hard else work.x.buffers)[name]
            torch.testing.assert_close(buffer, expected, rtol=1e-10, atol=1e-12)
        for name, buffer in opt.q_buffers.items():
            torch.testing.assert_close(buffer, work.q_buffers[name], rtol=1e-10, atol=1e-12)


def test_the_closure_is_told_which_weights_the_network_holds() -> None:
    """First x, then the new x on its centers; x afterwards."""
    model, seen = classifier(), list[tuple[bool, int]]()
    opt = optimizer(model, 1)

    def closure(q: bool) -> torch.Tensor:
        seen.append((q, distinct(model.weight)))
        return loss_of(model)(q)

    opt.step(closure)
    assert seen == [(False, 12), (True, 2)]
    assert distinct(model.weight) > 2
    opt.harden(model)
    opt.step(closure)
    assert seen[2:] == [(True, 2)]


def test_a_scheduler_of_the_base_optimizer_scales_the_prox() -> None:
    """Without gradients a weight moves by lambda eta_1 / 2, with eta_1 as the scheduler has it; so do t and lambda."""
    model = classifier()
    opt = optimizer(model, 1)
    scheduler = torch.optim.lr_scheduler.StepLR(opt.base, step_size=1, gamma=0.5)
    for lam, lr in ((LAM, LR), (LAM, LR / 2), (2 * LAM, LR / 4)):
        before = model.weight.detach().clone()
        opt.t = lam / RATE
        opt.groups[0]["eta2"] = 0.0
        opt.step(lambda q: 0 * model.weight.sum())
        assert float((model.weight.detach() - before).abs().max()) == pytest.approx(lam * lr / 2, rel=1e-9)
        scheduler.step()
    assert opt.param_groups is opt.base.param_groups


def test_who_never_sets_the_epoch_trains_with_lambda_of_1() -> None:
    """A linear lambda is not 0 for them."""
    model = classifier()
    opt = CenterQuant(
        torch.optim.SGD(model.parameters(), 1.0), quantizable(model, ["weight"]), bits=1, lam=linear(0.02)
    )
    before = model.weight.detach().clone()
    opt.step(lambda q: 0 * model.weight.sum())
    assert float((model.weight.detach() - before).abs().max()) == pytest.approx(0.01, rel=1e-9)


def test_groups_have_bits_and_center_rates_of_their_own() -> None:
    """Two layers, 1 and 3 bits; the centers of the first do not move."""
    model = bn_net()
    groups: list[GroupSpec] = [
        {"params": quantizable(model, ["3.weight"]), "bits": 1, "eta2": 0.0},
        {"params": quantizable(model, ["6.weight"])},
    ]
    opt = CenterQuant(torch.optim.Adam(model.parameters()), groups, bits=3, lam=linear(0.1), eta2=0.1)
    before = dict(opt.centers)
    train(opt, model, batches(3))
    opt.harden(model)
    assert torch.equal(opt.centers["3.weight"], before["3.weight"])
    assert not torch.equal(opt.centers["6.weight"], before["6.weight"])
    assert [group["bits"] for group in opt.groups] == [1, 3]
    assert distinct(opt.x["3.weight"]) == 2
    assert 2 < distinct(opt.x["6.weight"]) <= 8


def test_statistics_of_both_passes_are_kept_apart() -> None:
    """The network has those of x; Q_c(x) has its own, which `quantized` and `harden` bring in."""
    model = bn_net()
    opt = CenterQuant(
        torch.optim.SGD(model.parameters(), lr=0.1), quantizable(model), bits=1, lam=linear(0.0), eta2=0.0
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
    opt.step(lambda q: sign * loss_of(model)(q))
    moved = c - eta2 * sign * h
    assert moved[0] > moved[1]
    np.testing.assert_allclose(model.weight.detach().numpy(), moved[a], rtol=1e-12)
    np.testing.assert_allclose(opt.centers["weight"][0].numpy(), np.sort(moved), rtol=1e-12)
    np.testing.assert_array_equal(opt.assigned["weight"].reshape(3, 4).numpy(), 1 - a)
