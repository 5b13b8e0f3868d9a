"""What the quantizing optimizers share: everything but how x and its centers learn."""

import copy
import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from reprlib import repr as brief
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from quped.errors import InvalidValueError, RunError, check
from quped.optim._buffers import clones, holding, write
from quped.optim.selection import GroupSpec, Selection, groups_of
from quped.quant import descend_centers, nearest, place
from quped.typing import Params

Closure = Callable[[bool], Tensor]
"""Runs the network on a batch and returns the loss, without `backward`. Its argument is False where the network holds
x, and True where it holds other, quantized weights in place of x."""

Schedule = Callable[[float], float]
"""lambda(t)."""

CENTER_GRAD_CLIP = 10.0
"""How large an entry of h, the gradient by a center, may be; larger ones are cut. That of the authors' code."""

Gradients = dict[Tensor, Tensor | None]
"""By parameter; None where the loss does not depend on it."""


def schedule(lam: Schedule) -> Schedule:
    """Return lambda(t), if a function is what it is."""
    check(callable(lam), "lam", "a function of t, such as LinearSchedule(1e-4)", lam)
    return lam


def at(lam: Schedule, t: float) -> float:
    """Return lambda(t), which a proximal step needs to be finite."""
    value = lam(t)
    check(0 <= value < math.inf, f"lambda({t:g})", "at least 0 and finite", value)
    return value


class QuantizedOptimizer(ABC):
    """An optimizer around another one, after which the selected parameters have 2^bits values each.

    First `step`s train x, which the network holds all the time; `harden` then replaces x by Q_c(x); `step`s after that
    fine-tune: which center a weight has stays as it is; centers, if they learn at all, go on with eta_2, and all other
    parameters with the base optimizer. A `step` that ends with an error has changed nothing: for this, a copy of
    weights and state is kept meanwhile.
    """

    centers_learn: ClassVar[bool] = False
    """Whether centers have gradients: then the network runs at x and at Q_c(x), and each has buffers of its own."""

    def __init__(
        self,
        base: Optimizer,
        params: Selection | Sequence[GroupSpec],
        start: Callable[[Tensor, int], Tensor],
        *,
        bits: int | None,
        eta2: float = 0.0,
        center_grad_clip: float = CENTER_GRAD_CLIP,
    ) -> None:
        """Wrap `base`; `start` gives the centers of a tensor, of a number that is its second argument.

        Centers start where the weights are now: load those to begin with before.
        """
        check(isinstance(base, Optimizer), "base optimizer", "a torch.optim.Optimizer", base)
        closure = inspect.signature(base.step).parameters.get("closure")
        alone = closure is None or closure.default is not inspect.Parameter.empty
        check(alone, "base optimizer", "one whose step needs no closure, unlike LBFGS", type(base).__name__)
        check(center_grad_clip > 0, "center_grad_clip", "above 0", center_grad_clip)
        self.base = base
        self.center_grad_clip = center_grad_clip
        self.model, self.groups = groups_of(params, bits, eta2)
        self.t = 1.0
        """The t of lambda(t), in epochs: set it at the start of each. The first epoch is 1, so that lambda is not 0
        for those who leave it as it is: they train with lambda(1) throughout."""
        self.hard = False
        """Whether `harden` has been called."""
        named = dict(self.model.named_parameters())
        self.x: dict[str, Tensor] = {name: named[name] for group in self.groups for name in group["names"]}
        """The selected parameters themselves."""
        rates = self._rates()
        if strange := [name for name, x in self.x.items() if x not in rates]:
            raise InvalidValueError(
                f"The base optimizer does not train '{strange[0]}', which is selected: add it there."
            )
        self._start = start
        self.centers: Params = self._started()
        """c: for each selected parameter its centers, `[1, m]` or `[channels, m]`, sorted."""
        self.assigned: Params = {}
        """After `harden`, which center each weight has."""
        self.q_buffers: Params = clones(self._buffers()) if self.centers_learn else {}
        """Until `harden`, buffers of the network running Q_c(x), if it does; the network has those of x."""
        self._lent = False

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups of the base optimizer, with their learning rates."""
        return self.base.param_groups

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients, as loops are used to do; `step` does so by itself."""
        self.base.zero_grad(set_to_none)

    def step(self, closure: Closure) -> Tensor:
        """Take one step and return the loss before it, as it was in the first evaluation of the closure."""
        self._not_lent("take a step")
        with self._undone_by_errors():
            return self._finetune(closure) if self.hard else self._learn(closure)

    @abstractmethod
    def _learn(self, closure: Closure) -> Tensor:
        """Take one step of the method's own; return the loss."""

    def codebooks(self) -> Params:
        """Return the centers that Q_c has now."""
        return self.centers

    def harden(self, model: nn.Module) -> None:
        """Put Q_c(x) into the network, with the buffers that belong to it; from here on, fine-tune."""
        check(model is self.model, "network to harden", "the one that the optimizer trains", type(model).__name__)
        self._not_lent("harden the network")
        self._check_held()
        if self.hard:
            raise RunError("The network is hard already: harden() is called once, between training and fine-tuning.")
        self.centers = self.codebooks()
        self.assigned = {name: nearest(x, self.centers[name]) for name, x in self.x.items()}
        write(self.x, self._placed())
        write(self._buffers(), self.q_buffers)
        self.q_buffers = {}
        self.hard = True

    @contextmanager
    def quantized(self) -> Iterator[None]:
        """Let the network be Q_c(x), with its buffers, within the block; then it is as before, whatever was done."""
        self._not_lent("enter quantized() again")
        self._check_held()
        values = self._placed() if self.hard else self._nearest_values(self.codebooks())
        self._lent = True
        try:
            with self._holding(values), holding(self._buffers, self.q_buffers):
                yield
        finally:
            self._lent = False

    def _check_held(self) -> None:
        """Raise an error if the network no longer holds a parameter that is trained here."""
        named = dict(self.model.named_parameters())
        if lost := [name for name, x in self.x.items() if named.get(name) is not x]:
            raise RunError(
                f"The network's '{lost[0]}' is no longer the parameter that was selected: after a layer was replaced, "
                "make a new optimizer."
            )

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the state beside the network's own: tensors, numbers, strings, None, in lists and dicts."""
        state = {
            **self._identity(),
            "t": self.t,
            "hard": self.hard,
            "eta2": [group["eta2"] for group in self.groups],
            "base": self.base.state_dict(),
            "centers": self.centers,
            "assigned": self.assigned,
            "q_buffers": self.q_buffers,
        }
        copied: dict[str, Any] = plain(state)
        return copied

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state; the network loads its own by itself. A state of something else changes nothing."""
        self._not_lent("load a state")
        self._check_state(state)
        base = plain(state["base"])
        self.base.load_state_dict({**base, "state": {int(key): value for key, value in base["state"].items()}})
        self.t, self.hard = float(state["t"]), bool(state["hard"])
        for group, eta2 in zip(self.groups, state["eta2"], strict=True):
            group["eta2"] = float(eta2)
        self.centers = {name: c.to(self.x[name], copy=True) for name, c in state["centers"].items()}
        self.assigned = {
            name: a.to(self.x[name].device, torch.uint8, copy=True) for name, a in state["assigned"].items()
        }
        self.q_buffers = clones(state["q_buffers"])

    def _identity(self) -> dict[str, Any]:
        """Return what must be equal for a state to fit, as plain data."""
        return {
            "method": type(self).__name__,
            "optimizer": type(self.base).__name__,
            "shapes": [[list(p.shape) for p in group["params"]] for group in self.base.param_groups],
            "quantized": [{"names": list(group["names"]), "bits": group["bits"]} for group in self.groups],
        }

    def _check_state(self, state: Mapping[str, Any]) -> None:
        """Raise an error unless the state is one of this optimizer on this network."""
        for key, own in self._identity().items():
            if state.get(key) != own:
                raise RunError(
                    f"The state is not one of this optimizer and network: its '{key}' is {brief(state.get(key))}, here "
                    f"it is {brief(own)}. Build both as they were when it was saved."
                )
        hard = bool(state.get("hard"))
        assigned = {name: (len(c), self.x[name].numel() // len(c)) for name, c in self.centers.items()}
        apart = self.centers_learn and not hard
        expected = {
            "centers": {name: tuple(c.shape) for name, c in self.centers.items()},
            "assigned": assigned if hard else {},
            "q_buffers": {name: tuple(b.shape) for name, b in self._buffers().items()} if apart else {},
        }
        for key, shapes in expected.items():
            found = {name: tuple(tensor.shape) for name, tensor in state.get(key, {}).items()}
            if found != shapes:
                raise RunError(
                    f"The '{key}' of the state have the shapes {brief(found)}, here they have {brief(shapes)}: it is "
                    "one of another optimizer or network."
                )
        for name, assigned in state["assigned"].items():
            if int(assigned.max()) >= self.centers[name].shape[1]:
                raise RunError(
                    f"The assignment of '{name}' in the state is to centers that do not exist: it is damaged."
                )
        if missing := {"t", "eta2", "base"} - state.keys():
            raise RunError(f"The state lacks '{min(missing)}': it is incomplete.")
        if len(state["eta2"]) != len(self.groups):
            raise RunError(f"The state has {len(state['eta2'])} 'eta2', here are {len(self.groups)} groups.")

    def _finetune(self, closure: Closure) -> Tensor:
        """c <- c - eta_2 h, each weight at its center; other parameters step by the base optimizer. R is 0 here."""
        loss, gradients = self._gradients(closure, q=True, of=list(self._rates()))
        # A parameter without a gradient is left alone by optimizers: no momentum, no weight decay.
        self._base_step(gradients | dict.fromkeys(self.x.values()))
        rates = self._eta2()
        for name, x in self._trained().items() if self.centers_learn else ():
            c, assigned, eta2 = self.centers[name], self.assigned[name], rates[name]
            h = pull_back(partial(place, assigned=assigned, shape=x.shape), c, gradients[x])
            self.centers[name], self.assigned[name] = in_order(
                descend_centers(c, h, eta2, self.center_grad_clip), assigned
            )
        write(self.x, self._placed())
        return loss

    def _gradients(self, closure: Closure, *, q: bool, of: Sequence[Tensor]) -> tuple[Tensor, Gradients]:
        """Return the loss at what the network holds, and its gradients."""
        with torch.enable_grad():
            loss = closure(q)
        single = isinstance(loss, Tensor) and loss.numel() == 1
        check(single, "closure's result", "the loss, a tensor with one number", getattr(loss, "shape", loss))
        where = "the quantized weights" if q else "x"
        if not bool(loss.isfinite()):
            raise RunError(
                f"The loss at {where} is {float(loss.detach())}: this step is undone. Look for such numbers in the "
                "data, or lower the learning rate."
            )
        if not loss.requires_grad:
            raise RunError(f"The loss at {where} has no gradient: return it without detach(), item() or no_grad().")
        try:
            found = torch.autograd.grad(loss, of, allow_unused=True) if of else ()
        except RuntimeError as error:
            raise RunError(
                f"The gradient of the loss at {where} cannot be computed: {error} The closure returns the loss and "
                "leaves backward() to the optimizer."
            ) from error
        gradients: Gradients = dict(zip(of, found, strict=True))
        self._check_gradients(gradients, where)
        return loss.detach(), gradients

    def _check_gradients(self, gradients: Gradients, where: str) -> None:
        """Raise an error for a gradient that no step can be taken with."""
        for parameter, gradient in gradients.items():
            if gradient is None:
                continue
            if gradient.is_sparse:
                if (name := self._name(parameter)) in self.x:
                    raise RunError(f"The gradient of '{name}' is sparse: quantize layers with sparse=False only.")
            elif not bool(gradient.isfinite().all()):
                raise RunError(
                    f"The gradient of '{self._name(parameter)}' at {where} is not finite, though the loss is: this "
                    "step is undone. Look for a root of 0 or a division by 0 in the loss."
                )

    def _name(self, parameter: Tensor) -> str:
        """Return what the network calls a parameter."""
        names = (name for name, own in self.model.named_parameters() if own is parameter)
        return next(names, "a parameter beside the network")

    def _base_step(self, gradients: Gradients) -> None:
        """Let the base optimizer take its step."""
        self.base.zero_grad()  # of those frozen since the last step, too: they would go on moving
        for parameter, gradient in gradients.items():
            parameter.grad = gradient
        self.base.step()

    def _step_at(self, values: Params, closure: Closure) -> Tensor:
        """Take a base step of x with the gradient at other values of the selected parameters; return the loss there."""
        with self._holding(values):
            loss, gradients = self._gradients(closure, q=True, of=list(self._rates()))
        self._base_step(gradients)
        return loss

    def _rates(self) -> dict[Tensor, float]:
        """Return the learning rate of every parameter that the base optimizer trains."""
        groups = self.base.param_groups
        return {p: float(group["lr"]) for group in groups for p in group["params"] if p.requires_grad}

    def _trained(self) -> Params:
        """Return the selected parameters without those frozen meanwhile: these stay, and their centers with them."""
        return {name: x for name, x in self.x.items() if x.requires_grad}

    def _holding(self, values: Params) -> AbstractContextManager[None]:
        """Let the network hold other values of the selected parameters within a block."""
        return holding(lambda: self.x, values)

    def _eta2(self) -> dict[str, float]:
        """Return the learning rate of the centers of every selected parameter."""
        return {name: group["eta2"] for group in self.groups for name in group["names"]}

    def _buffers(self) -> Params:
        """Return the buffers of the network themselves."""
        return dict(self.model.named_buffers())

    def _started(self) -> Params:
        """Return the centers for x as it is now."""
        centers = {}
        for group in self.groups:
            for name in group["names"]:
                try:
                    centers[name] = self._start(self.x[name].detach(), 2 ** group["bits"])
                except InvalidValueError as error:
                    raise InvalidValueError(f"'{name}': {error}") from None
        return centers

    def _nearest_values(self, centers: Params) -> Params:
        """Return Q_c(x)."""
        return {name: place(c, nearest(self.x[name], c), self.x[name].shape) for name, c in centers.items()}

    def _placed(self) -> Params:
        """Return every weight at the center it is assigned to, after `harden`."""
        return {name: place(self.centers[name], a, self.x[name].shape) for name, a in self.assigned.items()}

    def _not_lent(self, what: str) -> None:
        """Raise an error within `quantized()`."""
        if self._lent:
            raise RunError(f"Within quantized() the network does not hold x: leave the block before you {what}.")

    @contextmanager
    def _undone_by_errors(self) -> Iterator[None]:
        """Put weights, buffers and the optimizers' states back if the block ends with an error."""
        weights = {str(i): tensor for i, tensor in enumerate(self._rates())}
        before, buffers, state = clones(weights), clones(self._buffers()), copied_state(self.base)
        own = dict(self.centers), dict(self.assigned), dict(self.q_buffers)
        try:
            yield
        except BaseException:
            write(weights, before)
            write(self._buffers(), buffers)
            self.base.zero_grad()
            self.base.state.clear()
            self.base.state.update(state)
            self.centers, self.assigned, self.q_buffers = own
            raise


def pull_back(f: Callable[[Tensor], Tensor], at: Tensor, gradient: Tensor | None) -> Tensor:
    """Turn the gradient by f(at) into the gradient by `at`."""
    if gradient is None:
        return torch.zeros_like(at)
    leaf = at.detach().requires_grad_()
    with torch.enable_grad():
        value = f(leaf)
    return torch.autograd.grad(value, leaf, gradient)[0]


def in_order(centers: Tensor, assigned: Tensor) -> tuple[Tensor, Tensor]:
    """Sort centers that passed each other; each weight keeps its own."""
    if bool((centers.diff(dim=1) >= 0).all()):
        return centers, assigned
    ordered, order = centers.sort(1)
    return ordered, order.argsort(1).gather(1, assigned.long()).to(assigned.dtype)


def copied_state(optimizer: Optimizer) -> dict[Tensor, dict[str, Any]]:
    """Return the state of an optimizer, by parameter, as a copy."""
    return {
        parameter: {k: v.clone() if isinstance(v, Tensor) else copy.deepcopy(v) for k, v in values.items()}
        for parameter, values in optimizer.state.items()
    }


def plain(value: Any) -> Any:
    """Copy nested data with strings for keys and lists for tuples, as JSON has them; tensors are cloned."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise InvalidValueError(f"The state of the base optimizer holds a {type(value).__name__}, which cannot be saved.")
