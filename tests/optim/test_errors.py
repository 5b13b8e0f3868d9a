"""Bad input is named, and leaves network and optimizer as they were."""

from collections.abc import Callable
from functools import partial
from itertools import cycle
from typing import Any, NamedTuple

import pytest
import torch
from helpers.optim_nets import METHODS, batches, bn_net, distinct, train
from torch import Tensor, nn

from quped import LinearSchedule
from quped.errors import InvalidValueError, NetworkError, QupedError, RunError
from quped.optim import BinaryRelax, CenterQuant, ProxQuant, StraightThrough, quantizable
from quped.simulation.client_round import one_thread


def snapshot(*things: Any) -> list[Tensor | str]:
    """Return all tensors, and the rest as text, of nested states."""
    found: list[Tensor | str] = []
    for thing in things:
        if isinstance(thing, Tensor):
            found.append(thing.detach().clone())
        elif isinstance(thing, dict):
            found += snapshot(*thing.keys(), *thing.values())
        elif isinstance(thing, list):
            found += snapshot(*thing)
        else:
            found.append(repr(thing))
    return found


def same(a: list[Tensor | str], b: list[Tensor | str]) -> bool:
    """Compare snapshots."""
    return len(a) == len(b) and all(
        torch.equal(x, y) if isinstance(x, Tensor) and isinstance(y, Tensor) else x == y
        for x, y in zip(a, b, strict=True)
    )


def constant(value: float, t: float) -> float:
    """A schedule that ignores t."""
    return value


def called_backward(logits: Tensor) -> Tensor:
    """Fail as closures for other optimizers do, in the way that is hardest to notice: the graph is still there."""
    loss = logits.square().mean()
    torch.autograd.backward(loss, retain_graph=True)
    return loss


def interrupted(_: Tensor) -> Tensor:
    """Fail as a closure may."""
    raise KeyboardInterrupt


class Failure(NamedTuple):
    """A way in which a closure goes wrong, and the error that follows."""

    loss: Callable[[Tensor], Any]
    error: type[BaseException]
    words: str


FAILURES = {
    "not a scalar": Failure(lambda logits: logits, InvalidValueError, r"closure's result must be .*\[16, 3\]"),
    "a float": Failure(lambda logits: 1.0, InvalidValueError, "closure's result"),
    "nothing": Failure(lambda logits: None, InvalidValueError, "got None"),
    "nan": Failure(lambda logits: logits.sum() * torch.nan, RunError, "is nan: this step is undone"),
    "inf": Failure(lambda logits: logits.exp().sum() * torch.inf, RunError, "is inf: this step is undone"),
    "detached": Failure(lambda logits: logits.sum().detach(), RunError, r"without detach\(\)"),
    "backward": Failure(called_backward, RunError, r"called backward\(\): .*return the loss"),
    "root of 0": Failure(
        lambda logits: (logits - logits.detach()).square().sum().sqrt(), RunError, "is not finite, though"
    ),
    "interrupted": Failure(interrupted, KeyboardInterrupt, "^$"),
}

COUNTS = {"CenterQuant": 2, "CenterQuant-soft": 3, "CenterQuant-averaged": 2}
"""How often a training step evaluates the closure; once in the other methods, and in fine-tuning."""

PASSES = [(name, i, False) for name in METHODS for i in range(COUNTS.get(name, 1))] + [
    (name, 0, True) for name in METHODS
]
"""Every evaluation of every method: the method, the number in its step, and whether the step is of fine-tuning."""

CASES = {
    **{(*where, what): None for where, what in zip(PASSES, cycle(FAILURES), strict=False)},
    **{("CenterQuant", 1, False, what): None for what in FAILURES},
}
"""Every evaluation fails in some way, and one of them in every way: all products would say the same 162 times."""


@pytest.mark.parametrize(("method", "which", "hard", "what"), CASES)
@one_thread()
def test_a_step_that_fails_changes_nothing(method: str, which: int, hard: bool, what: str) -> None:
    """In whichever pass the closure goes wrong: weights, statistics, centers and both optimizers' states stay."""
    model, failure = bn_net(), FAILURES[what]
    opt = METHODS[method](torch.optim.Adam(model.parameters(), lr=0.01), quantizable(model))
    (x, _), *rest = batches(3)
    for taken in range(2):  # before the first step, when the base optimizer has no state, and after some
        train(opt, model, rest * taken)
        if hard and not taken:
            opt.harden(model)
        before, passes = snapshot(model.state_dict(), opt.state_dict()), list[bool]()

        def closure(passes: list[bool] = passes) -> Any:
            passes.append(opt.is_quantized)
            logits = model(x)
            return failure.loss(logits) if len(passes) > which else logits.square().mean()

        with pytest.raises(failure.error, match=failure.words):
            opt.step(closure)
        assert len(passes) == which + 1
        assert opt.is_quantized == hard
        assert all(parameter.grad is None for parameter in model.parameters())
        assert same(snapshot(model.state_dict(), opt.state_dict()), before)


def test_gradients_stay_visible_after_a_step() -> None:
    """As with any optimizer, what the last step was taken with is there to be logged."""
    model = bn_net()
    opt = METHODS["CenterQuant"](torch.optim.SGD(model.parameters(), lr=0.01), quantizable(model))
    train(opt, model, batches(2))
    assert all(parameter.grad is not None for parameter in model.parameters())
    opt.zero_grad()
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_layer_that_was_replaced_is_noticed() -> None:
    """The new one is not trained here, and would stay as it is."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2))
    optimizer = CenterQuant(
        torch.optim.SGD(model.parameters(), lr=0.1), quantizable(model), bits=1, lam=LinearSchedule(1e-4)
    )
    model[1] = nn.Linear(4, 4)
    for use in (lambda: optimizer.harden(model), lambda: optimizer.step(lambda: model(torch.ones(1, 4)).sum())):
        with pytest.raises(RunError, match=r"'1\.weight' is no longer the parameter that was selected"):
            use()
    anything: Any = model
    with pytest.raises(InvalidValueError, match=r"parameters to quantize must be quantizable\(model\)"):
        CenterQuant(torch.optim.SGD(model.parameters(), lr=0.1), anything, bits=1, lam=LinearSchedule(1e-4))


def test_sparse_gradients_are_refused() -> None:
    """An embedding with sparse gradients cannot be quantized while it learns."""
    model = nn.Sequential(nn.Embedding(10, 4, sparse=True), nn.Linear(4, 2))
    opt = CenterQuant(
        torch.optim.SGD(model.parameters(), 0.1), quantizable(model, ["0.weight"]), bits=2, lam=LinearSchedule(1)
    )
    before = snapshot(model.state_dict(), opt.state_dict())
    with pytest.raises(RunError, match=r"gradient of '0\.weight' is sparse"):
        opt.step(lambda: model(torch.tensor([1, 2])).sum())
    assert same(snapshot(model.state_dict(), opt.state_dict()), before)


@pytest.mark.parametrize("bits", [0, 9, -1, 1.5, True, None, "2"])
def test_bits_are_from_1_to_8(bits: Any) -> None:
    """For all, and for one group."""
    model = bn_net()
    base = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(InvalidValueError, match=r"bits of '3\.weight' must be a whole number from 1 to 8, got"):
        StraightThrough(base, quantizable(model), bits=bits)
    with pytest.raises(InvalidValueError, match=r"bits of '6\.weight'"):
        StraightThrough(base, [{"params": quantizable(model, ["6.weight"]), "bits": bits}], bits=2)


@pytest.mark.parametrize("levels", [1, 257, 2.5, True])
def test_levels_take_the_place_of_bits(levels: Any) -> None:
    """2 to 256, for all or for one group, and not beside bits."""
    model = bn_net()
    base, one = torch.optim.SGD(model.parameters(), lr=0.1), quantizable(model, ["6.weight"])
    with pytest.raises(InvalidValueError, match=r"levels of '3\.weight' must be a whole number from 2 to 256, got"):
        StraightThrough(base, quantizable(model), levels=levels)
    with pytest.raises(InvalidValueError, match=r"levels of '6\.weight'"):
        StraightThrough(base, [{"params": one, "levels": levels}], bits=2)
    with pytest.raises(InvalidValueError, match=r"bits of '6\.weight' must be left out where levels are given, got 2"):
        StraightThrough(base, one, bits=2, levels=3)
    groups = StraightThrough(base, [{"params": one, "levels": 3}], bits=2).groups
    assert [group["levels"] for group in groups] == [3]


@pytest.mark.parametrize("bits", [1, 8])
def test_the_narrowest_and_the_widest_codebook_train(bits: int) -> None:
    """The limits of the range are in it."""
    model = bn_net()
    opt = CenterQuant(torch.optim.Adam(model.parameters()), quantizable(model), bits=bits, lam=LinearSchedule(0.1))
    train(opt, model, batches(2))
    opt.harden(model)
    train(opt, model, batches(2))
    assert distinct(opt.x["3.weight"]) <= 2**bits


def test_what_to_quantize_must_be_there() -> None:
    """No layer but a first and a last; a name that does not exist, that is frozen, that is a string."""
    with pytest.raises(NetworkError, match="no layer to quantize"):
        quantizable(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2)))
    model = bn_net()
    with pytest.raises(NetworkError, match=r"Did you mean '3\.weight'"):
        quantizable(model, ["3.weigth"])
    with pytest.raises(NetworkError, match="list of names"):
        quantizable(model, "3.weight")
    model.get_parameter("3.weight").requires_grad_(False)
    with pytest.raises(NetworkError, match=r"'3\.weight' .* is frozen"):
        quantizable(model, ["3.weight"])


def groups(*, of: nn.Module, other: nn.Module) -> list[tuple[Any, str]]:
    """Return selections that no optimizer takes, and what is said about each."""
    return [
        (of.parameters(), "must be quantizable"),
        ([], "must be quantizable"),
        ([{"bits": 2}], "must be quantizable"),
        ([{"params": quantizable(of), "bit": 2}], "no 'bit'. Did you mean 'bits'"),
        ([{"params": quantizable(of)}, {"params": quantizable(of, ["6.weight"])}], "'6.weight' is selected twice"),
        ([{"params": quantizable(of, ["3.weight"])}, {"params": quantizable(other)}], "one network"),
        ([{"params": quantizable(of), "eta2": -1.0}], "eta2 of '3.weight' must be"),
        (quantizable(other), "does not train '3.weight'"),
    ]


def test_groups_are_checked() -> None:
    """Whatever is wrong with them is said when the optimizer is made."""
    model, other = bn_net(), bn_net()
    for params, said in groups(of=model, other=other):
        with pytest.raises(InvalidValueError) as caught:
            CenterQuant(torch.optim.SGD(model.parameters(), lr=0.1), params, bits=1, lam=LinearSchedule(1))
        assert said in str(caught.value)


def test_averaged_gradients_take_the_place_of_a_soft_quantizer() -> None:
    """Both at once would count the gradient twice."""
    model = bn_net()
    with pytest.raises(InvalidValueError, match=r"sharpness P must be infinite with average_gradients"):
        CenterQuant(
            torch.optim.Adam(model.parameters()),
            quantizable(model),
            bits=1,
            lam=LinearSchedule(0),
            sharpness=3,
            average_gradients=True,
        )


def test_hyperparameters_are_checked() -> None:
    """Those of the constructor at once; lambda(t) in the step, which then changes nothing."""
    model = bn_net()
    base, chosen = torch.optim.SGD(model.parameters(), lr=0.1), quantizable(model)
    bad_base: Any = model
    with pytest.raises(InvalidValueError, match="base optimizer must be"):
        CenterQuant(bad_base, chosen, bits=1, lam=LinearSchedule(1))
    with pytest.raises(InvalidValueError, match="sharpness P must be above 0"):
        CenterQuant(base, chosen, bits=1, lam=LinearSchedule(1), sharpness=0)
    anything: Any = "signs"
    with pytest.raises(InvalidValueError, match="assignment must be 'sign' or 'nearest'"):
        CenterQuant(base, chosen, bits=1, lam=LinearSchedule(1), assignment=anything)
    with pytest.raises(InvalidValueError, match="init_centers must be 'range', 'kmeans' or 'unit'"):
        CenterQuant(base, chosen, bits=1, lam=LinearSchedule(1), init_centers=anything)
    number: Any = 1e-4
    for method in (CenterQuant, ProxQuant, BinaryRelax):
        with pytest.raises(
            InvalidValueError, match=r"lam must be a function of t, such as LinearSchedule\(1e-4\), got 0.0001"
        ):
            method(base, chosen, bits=1, lam=number)
    for value in (-1.0, torch.nan, torch.inf):
        opt = CenterQuant(base, chosen, bits=1, lam=partial(constant, value))
        before = snapshot(model.state_dict())
        with pytest.raises(InvalidValueError, match=r"lambda\(1\) must be at least 0"):
            train(opt, model, batches(1))
        assert same(snapshot(model.state_dict()), before)
    with torch.no_grad():
        model.get_parameter("3.weight").fill_(0.5)
    with pytest.raises(InvalidValueError, match=r"'3\.weight': 2 centers cannot be placed"):
        CenterQuant(base, chosen, bits=1, lam=LinearSchedule(1))
    with torch.no_grad():
        model.get_parameter("3.weight").zero_()
    with pytest.raises(InvalidValueError, match=r"'3\.weight': no scale fits"):
        StraightThrough(base, chosen, bits=1)


def test_calls_in_the_wrong_place() -> None:
    """To harden twice, or another network; to train, to harden or to look again while the network is lent out."""
    model = bn_net()
    opt = CenterQuant(torch.optim.SGD(model.parameters(), lr=0.1), quantizable(model), bits=1, lam=LinearSchedule(1))
    before = snapshot(model.state_dict(), opt.state_dict())
    with pytest.raises(InvalidValueError, match="network to harden"):
        opt.harden(bn_net())
    with opt.quantized():
        for wrong in (lambda: train(opt, model, batches(1)), lambda: opt.harden(model), lambda: enter(opt)):
            with pytest.raises(RunError, match=r"Within quantized\(\)"):
                wrong()
    assert same(snapshot(model.state_dict(), opt.state_dict()), before)
    opt.harden(model)
    with pytest.raises(QupedError, match="hard already"):
        opt.harden(model)


def enter(opt: CenterQuant) -> None:
    """Enter `quantized()`."""
    with opt.quantized():
        pass
