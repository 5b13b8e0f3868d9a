"""States: saved, loaded and continued, bit for bit."""

import json
from typing import Any

import pytest
import torch
from helpers.optim_nets import METHODS, batches, bn_net, train
from safetensors.torch import load, save
from torch import Tensor, nn

from quped import LinearSchedule
from quped.errors import RunError
from quped.optim import CenterQuant, KMeans, QuantizedOptimizer, quantizable
from quped.records.nested import put_tensors, take_tensors


def through_files(state: dict[str, Any]) -> dict[str, Any]:
    """Send a state through safetensors and JSON."""
    plain, tensors = take_tensors(state)
    loaded: dict[str, Any] = put_tensors(json.loads(json.dumps(plain)), load(save(tensors)))
    return loaded


def equal(a: Any, b: Any) -> bool:
    """Compare nested states bit by bit."""
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(equal(*pair) for pair in zip(a, b, strict=True))
    return bool(a == b)


def build(method: str, seed: int) -> tuple[nn.Module, QuantizedOptimizer]:
    """Return a new network and its optimizer."""
    model = bn_net(seed)
    return model, METHODS[method](torch.optim.Adam(model.parameters(), lr=0.01), quantizable(model))


@pytest.mark.parametrize("harden_at", [2, 4, 99], ids=["hard", "soft then hard", "soft"])
@pytest.mark.parametrize("method", METHODS)
def test_a_resumed_run_is_the_same_run(method: str, harden_at: int) -> None:
    """Saved after three steps and continued by a new optimizer on a new network: every bit is the same."""
    data = batches(6)

    def go(opt: QuantizedOptimizer, model: nn.Module, first: int, last: int) -> None:
        for i in range(first, last):
            opt.epoch = 1 + i / 2
            if i == harden_at:
                opt.harden(model)
            train(opt, model, data[i : i + 1])

    model, opt = build(method, seed=0)
    opt.groups[0]["eta2"] *= 0.1
    go(opt, model, 0, 3)
    saved, weights = through_files(opt.state_dict()), through_files(model.state_dict())
    go(opt, model, 3, 6)

    other, resumed = build(method, seed=1)
    other.load_state_dict(weights)
    resumed.load_state_dict(saved)
    assert equal(resumed.state_dict(), saved)
    go(resumed, other, 3, 6)
    assert equal(dict(other.state_dict()), dict(model.state_dict()))
    assert equal(resumed.state_dict(), opt.state_dict())


def test_a_state_is_a_copy() -> None:
    """A saved state does not change when training continues, and two optimizers do not share a loaded one."""
    model, opt = build("CenterQuant", 0)
    train(opt, model, batches(2))
    saved = opt.state_dict()
    before = through_files(saved)
    _, other = build("CenterQuant", 0)
    other.load_state_dict(saved)
    train(opt, model, batches(2))
    train(other, other.model, batches(2))
    assert equal(saved, before)


def broken(state: dict[str, Any], key: str) -> dict[str, Any]:
    """Return a state without one of its entries."""
    return {k: v for k, v in state.items() if k != key}


def test_a_state_of_something_else_is_refused() -> None:
    """Another network, method, base optimizer, number of bits; a part missing: nothing changes, the error tells."""
    model, opt = build("CenterQuant", 0)
    train(opt, model, batches(2))
    before = opt.state_dict()
    wide = bn_net(width=16)
    others: list[tuple[dict[str, Any], str]] = [
        (
            CenterQuant(
                torch.optim.Adam(wide.parameters()), quantizable(wide), bits=2, lam=LinearSchedule(0)
            ).state_dict(),
            "shapes",
        ),
        (KMeans(torch.optim.Adam(model.parameters()), quantizable(model), bits=2).state_dict(), "method"),
        (build("CenterQuant-soft", 0)[1].state_dict(), "quantized"),
        (
            CenterQuant(
                torch.optim.SGD(model.parameters()), quantizable(model), bits=2, lam=LinearSchedule(0)
            ).state_dict(),
            "optimizer",
        ),
        (
            CenterQuant(
                torch.optim.Adam(model.parameters()),
                quantizable(model),
                bits=2,
                lam=LinearSchedule(0),
                per_channel=True,
            ).state_dict(),
            "centers",
        ),
        ({**before, "hard": True}, "assigned"),
        (broken(before, "q_buffers"), "q_buffers"),
        (broken(before, "base"), "lacks 'base'"),
        ({**before, "eta2": []}, "0 'eta2', here are 1 groups"),
        ({}, "method"),
    ]
    for state, said in others:
        with pytest.raises(RunError, match=said):
            opt.load_state_dict(state)
        assert equal(opt.state_dict(), before)
    with opt.quantized(), pytest.raises(RunError, match="leave the block before you load a state"):
        opt.load_state_dict(before)
    opt.harden(model)
    state = opt.state_dict()
    state["assigned"]["3.weight"][0, 0] = 77
    with pytest.raises(RunError, match=r"assignment of '3\.weight'"):
        opt.load_state_dict(state)


def test_learning_rates_survive_a_resume() -> None:
    """Those of the base optimizer, of its scheduler, and of the centers."""
    model, opt = build("CenterQuant", 0)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(opt.base, 0.5)
    train(opt, model, batches(1))
    scheduler.step()
    opt.groups[0]["eta2"] = 3e-5
    _, other = build("CenterQuant", 0)
    other.load_state_dict(through_files(opt.state_dict()))
    assert other.param_groups[0]["lr"] == 0.005
    assert other.param_groups[0]["initial_lr"] == 0.01
    assert other.groups[0]["eta2"] == 3e-5
