"""Training loops beside the steps: freezing, clipping, gradients, copies, buffers."""

import copy
import pickle
from typing import Any

import pytest
import torch
from helpers.optim_nets import METHODS, batches, bn_net, train
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from quped import LinearSchedule
from quped.errors import InvalidValueError
from quped.optim import CenterQuant, quantizable


@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_frozen_parameters_stay(method: str, hard: bool) -> None:
    """One that is quantized and one that is not, frozen after some steps; everything else learns."""
    model = bn_net()
    opt = METHODS[method](torch.optim.Adam(model.parameters(), lr=0.01), quantizable(model))
    train(opt, model, batches(2))
    if hard:
        opt.harden(model)
    frozen, free = (model.get_parameter("0.weight"), opt.x["3.weight"]), model.get_parameter("9.weight")
    for parameter in frozen:
        parameter.requires_grad_(False)
    before, moving = [p.clone() for p in (*frozen, opt.centers["3.weight"])], free.detach().clone()
    train(opt, model, batches(3))
    after = (*frozen, opt.centers["3.weight"])
    assert all(torch.equal(a, b) for a, b in zip(after, before, strict=True))
    assert not torch.equal(free, moving)


def test_all_quantized_parameters_may_be_frozen() -> None:
    """Then the others learn, and the statistics of the quantized network continue."""
    model = bn_net()
    opt = CenterQuant(
        torch.optim.Adam(model.parameters(), lr=0.01), quantizable(model), bits=2, lam=LinearSchedule(0.1)
    )
    for x in opt.x.values():
        x.requires_grad_(False)
    train(opt, model, batches(3))
    assert int(opt.q_buffers["1.num_batches_tracked"]) == 3


def test_gradients_are_clipped_by_a_hook() -> None:
    """The base optimizer's own hooks see the gradients."""
    model = bn_net()
    sgd = torch.optim.SGD(model.parameters(), lr=1.0)
    opt = CenterQuant(sgd, quantizable(model), bits=2, lam=LinearSchedule(0))

    def clip(*_: Any) -> None:
        clip_grad_norm_(model.parameters(), 1e-3)

    sgd.register_step_pre_hook(clip)
    before = [p.detach().clone() for p in model.parameters()]
    opt.zero_grad()
    train(opt, model, batches(1))
    moved = torch.cat([(p.detach() - q).flatten() for p, q in zip(model.parameters(), before, strict=True)])
    assert float(moved.norm()) == pytest.approx(1e-3, rel=1e-3)


@pytest.mark.parametrize("method", METHODS)
def test_copies_continue_alike(method: str) -> None:
    """Network and optimizer, pickled or copied together."""
    model = bn_net()
    opt = METHODS[method](torch.optim.Adam(model.parameters(), lr=0.01), quantizable(model))
    train(opt, model, batches(2))
    copies = [copy.deepcopy((model, opt)), pickle.loads(pickle.dumps((model, opt)))]
    losses = train(opt, model, batches(3, seed=1))
    for other_model, other in copies:
        assert train(other, other_model, batches(3, seed=1)) == losses


class RunningMean(nn.Module):
    """Keeps a running mean in a buffer that it replaces, not updates in place."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(12))

    def forward(self, x: Tensor) -> Tensor:
        """Subtract the running mean."""
        if self.training:
            self.mean = 0.5 * self.mean + 0.5 * x.detach().mean(0)
        return x - self.mean


def test_replaced_buffers_are_kept_apart() -> None:
    """Each pass has its own, also when the module puts a new tensor in the place of the old one."""
    model = nn.Sequential(nn.Linear(8, 12), nn.Linear(12, 12), RunningMean(), nn.Linear(12, 3))
    opt = CenterQuant(
        torch.optim.SGD(model.parameters(), lr=0.0), quantizable(model), bits=1, lam=LinearSchedule(0), eta2=0.0
    )
    ((x, y),) = batches(1)
    train(opt, model, [(x, y)])

    def hidden() -> Tensor:
        return torch.mul(model[1](model[0](x)).mean(0), 0.5)

    assert torch.allclose(model.get_buffer("2.mean"), hidden(), atol=1e-6)
    with opt.quantized():
        assert torch.allclose(model.get_buffer("2.mean"), hidden(), atol=1e-6)
    opt.harden(model)
    assert torch.allclose(model.get_buffer("2.mean"), hidden(), atol=1e-6)


def test_an_optimizer_that_needs_a_closure_cannot_be_wrapped() -> None:
    """LBFGS evaluates the loss itself, at weights of its own choice."""
    model = bn_net()
    with pytest.raises(InvalidValueError, match=r"needs no closure.*LBFGS"):
        CenterQuant(torch.optim.LBFGS(model.parameters()), quantizable(model), bits=1, lam=LinearSchedule(0))
