"""One step of every peer against NumPy, and the common behaviour of all methods."""

import math

import numpy as np
import pytest
import torch
from helpers.optim_nets import (
    BIAS,
    INPUTS,
    LABELS,
    METHODS,
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

from quped import LinearSchedule
from quped.errors import InvalidValueError
from quped.optim import BinaryRelax, KMeans, ProxQuant, StraightCenters, StraightThrough, geometric, quantizable
from quped.optim._levels import fit
from quped.simulation.client_round import one_thread

LR = 0.3


def least_squares(x: Array, m: int) -> Array:
    """Return the evenly spaced levels of the best scale, found on a fine grid of scales."""
    grid = np.linspace(-1, 1, m)
    scales = np.linspace(0.3, 1, 20001) * np.abs(x).max()
    errors = [np.square(x - scale * grid[closest(x / scale, grid)]).sum() for scale in scales]
    return np.asarray(scales[int(np.argmin(errors))] * grid)


def test_proxquant_step() -> None:
    """Soft threshold toward the sign by lambda eta, without the factor 1/2; weights stay in [-1, 1]."""
    model = classifier()
    opt = ProxQuant(
        torch.optim.SGD(model.parameters(), lr=LR), quantizable(model, ["weight"]), bits=1, lam=LinearSchedule(0.25)
    )
    opt.epoch = 2
    opt.step(loss_of(model))
    by_w, by_b = gradients(WEIGHT, BIAS)
    y = WEIGHT - LR * by_w
    x = np.clip(np.sign(y) + shrink(y - np.sign(y), 0.5 * LR), -1, 1)
    np.testing.assert_allclose(model.weight.detach().numpy(), x, rtol=1e-12)
    np.testing.assert_allclose(model.bias.detach().numpy(), BIAS - LR * by_b, rtol=1e-12)
    opt.harden(model)
    np.testing.assert_array_equal(model.weight.detach().numpy(), np.sign(x))


@pytest.mark.parametrize("lam", [0.0, 1.5, math.inf])
def test_binaryrelax_step(lam: float) -> None:
    """The gradient is taken at (lambda Proj(x) + x) / (lambda + 1), at Proj(x) in the end; x is stepped."""
    model = classifier()
    opt = BinaryRelax(
        torch.optim.SGD(model.parameters(), lr=LR), quantizable(model, ["weight"]), bits=1, lam=lambda t: lam
    )
    opt.step(loss_of(model))
    projected = np.abs(WEIGHT).mean() * np.sign(WEIGHT)
    y = projected if lam == math.inf else (lam * projected + WEIGHT) / (lam + 1)
    by_y, by_b = gradients(y, BIAS)
    x = WEIGHT - LR * by_y
    np.testing.assert_allclose(model.weight.detach().numpy(), x, rtol=1e-12)
    np.testing.assert_allclose(model.bias.detach().numpy(), BIAS - LR * by_b, rtol=1e-12)
    opt.harden(model)
    np.testing.assert_allclose(model.weight.detach().numpy(), np.abs(x).mean() * np.sign(x), rtol=1e-12)


def test_binaryrelax_schedule_grows_and_ends_in_the_second_phase() -> None:
    """start * growth^t, then infinity."""
    lam = geometric(2.0, 1.5, hard_from=3)
    assert [lam(t) for t in (0, 1, 2, 3, 4)] == [2.0, 3.0, 4.5, math.inf, math.inf]


@pytest.mark.parametrize("m", [2, 3, 4])
def test_straight_through_step(m: int) -> None:
    """The gradient at the levels of the best scale, applied to x."""
    model = classifier()
    opt = StraightThrough(torch.optim.SGD(model.parameters(), lr=LR), quantizable(model, ["weight"]), levels=m)
    levels = least_squares(WEIGHT, m)
    np.testing.assert_allclose(opt.centers["weight"][0].numpy(), levels, rtol=1e-4)
    levels = opt.centers["weight"][0].numpy()
    opt.step(loss_of(model))
    by_q, by_b = gradients(levels[closest(WEIGHT, levels)], BIAS)
    x = WEIGHT - LR * by_q
    np.testing.assert_allclose(model.weight.detach().numpy(), x, rtol=1e-12)
    np.testing.assert_allclose(model.bias.detach().numpy(), BIAS - LR * by_b, rtol=1e-12)
    grid = np.linspace(-1, 1, m)
    q = grid[closest(x, levels)]
    np.testing.assert_allclose(opt.centers["weight"][0].numpy(), (x * q).sum() / (q * q).sum() * grid, rtol=1e-12)


def test_ternary_weights_that_are_all_small_keep_their_scale() -> None:
    """At the step 0 no scale fits better than another."""
    levels = torch.tensor([[-1.0, 0.0, 1.0]])
    assert torch.equal(fit(torch.tensor([0.1, -0.2]), levels), levels)


@pytest.mark.parametrize("m", [2, 3, 4])
def test_straight_centers_step(m: int) -> None:
    """The gradient at Q(x) steps x and the bias; centers step by its sums over their weights, scaled by sqrt(12)."""
    model, kappa = classifier(), 0.8
    opt = StraightCenters(
        torch.optim.SGD(model.parameters(), lr=LR),
        quantizable(model, ["weight"]),
        levels=m,
        center_lr_ratio=kappa,
        assignment="nearest",
    )
    c = opt.centers["weight"][0].numpy()
    a = closest(WEIGHT, c)
    np.testing.assert_allclose(c, [WEIGHT[a == j].mean() for j in range(m)], rtol=1e-12)
    loss = opt.step(loss_of(model))
    by_q, by_b = gradients(c[a], BIAS)
    np.testing.assert_allclose(model.weight.detach().numpy(), WEIGHT - LR * by_q, rtol=1e-12)
    np.testing.assert_allclose(model.bias.detach().numpy(), BIAS - LR * by_b, rtol=1e-12)
    h = np.array([by_q[a == j].sum() for j in range(m)])
    np.testing.assert_allclose(opt.centers["weight"][0].numpy(), c - kappa * LR / np.sqrt(12) * h, rtol=1e-12)
    logits = INPUTS @ c[a].T + BIAS
    expected = (np.log(np.exp(logits).sum(1)) - logits[np.arange(6), LABELS]).mean()
    assert float(loss) == pytest.approx(expected, rel=1e-12)


def test_kmeans_trains_as_the_base_optimizer_alone() -> None:
    """And at the end puts every weight on the mean of its cluster."""
    model, alone = bn_net(), bn_net()
    opt = KMeans(torch.optim.Adam(model.parameters(), lr=0.01), quantizable(model), bits=2)
    adam = torch.optim.Adam(alone.parameters(), lr=0.01)
    train(opt, model, batches(5))
    with one_thread():
        for x, y in batches(5):
            parameters = list(alone.parameters())
            found = torch.autograd.grad(torch.nn.functional.cross_entropy(alone(x), y), parameters)
            for parameter, gradient in zip(parameters, found, strict=True):
                parameter.grad = gradient
            adam.step()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), alone.parameters(), strict=True))
    weight = model.get_parameter("3.weight").detach()
    before = weight.clone()
    opt.harden(model)
    assert distinct(weight) == 4
    for value in set(weight.flatten().tolist()):
        assert float(before[weight == value].mean()) == pytest.approx(value, rel=1e-5)


def test_proxquant_is_for_one_bit() -> None:
    """More bits would need other centers."""
    model = bn_net()
    with pytest.raises(InvalidValueError, match="bits of ProxQuant must be 1"):
        ProxQuant(torch.optim.SGD(model.parameters(), lr=LR), quantizable(model), bits=2, lam=LinearSchedule(0.1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("method", METHODS)
def test_hard_weights_have_few_values_and_everything_else_learns(method: str, dtype: torch.dtype) -> None:
    """For every method: `quantized` shows what `harden` makes; fine-tuning keeps each weight's center."""
    model = bn_net().to(dtype)
    opt = METHODS[method](torch.optim.Adam(model.parameters(), lr=0.01), quantizable(model))
    data = [(x.to(dtype), y) for x, y in batches(8)]
    losses = train(opt, model, data[:4] * 8)
    assert sum(losses[-4:]) < sum(losses[:4])
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with opt.quantized():
        shown = {name: p.detach().clone() for name, p in model.named_parameters()}
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    opt.harden(model)
    assert all(torch.equal(p, shown[name]) for name, p in model.named_parameters())
    assigned = {name: a.clone() for name, a in opt.assigned.items()}
    opt.groups[0]["eta2"] = 0.01
    train(opt, model, data[4:])
    for name, p in model.named_parameters():
        assert torch.equal(p, shown[name]) == (name in opt.x and not opt.centers_learn), name
    for group in opt.groups:
        for name in group["names"]:
            rows = opt.x[name].detach().reshape(len(opt.centers[name]), -1)
            assert all(distinct(row) <= group["levels"] for row in rows)
            assert torch.equal(opt.assigned[name], assigned[name])
    assert not torch.equal(model.get_buffer("1.running_mean"), before["1.running_mean"])
