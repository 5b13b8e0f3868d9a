"""The interface of the quantizing optimizers, and the common parts of their steps."""

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar, get_args

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from quped.errors import InvalidValueError, RunError, check, check_number
from quped.optim._guards import Closure, Gradients, Guard, learning_rates
from quped.optim._network import SelectedNetwork, clones, write
from quped.optim._state import check_state, plain
from quped.optim.selection import GroupSpec, Selection, groups_of
from quped.quant import Assignment, Codebook, assign, center_rate, descend_centers, place
from quped.quant.quantizer import grouped
from quped.typing import Params

Schedule = Callable[[float], float]
"""lambda(t)."""

CENTER_GRAD_CLIP = 10.0
"""How large an entry of h, the gradient by a center, may be; larger ones are cut. The authors' code has the same."""


def schedule(lam: Schedule) -> Schedule:
    """Return lambda(t), if it is a function."""
    check(callable(lam), "lam", "a function of t, such as LinearSchedule(1e-4)", lam)
    return lam


def at(lam: Schedule, t: float) -> float:
    """Return lambda(t), which a proximal step needs to be finite."""
    value = lam(t)
    check(0 <= value < math.inf, f"lambda({t:g})", "at least 0 and finite", value)
    return value


def check_assignment(assignment: Assignment) -> None:
    """Raise an error for an assignment that there is not."""
    check(assignment in get_args(Assignment), "assignment", "'sign' or 'nearest'", assignment)


class QuantizedOptimizer(ABC):
    """An optimizer around another one, after which the selected parameters have m = 2^bits values each.

    At first `step` trains x, which the network holds between the steps. `harden` replaces x by Q_c(x). Then `step`
    fine-tunes: every weight keeps its center, centers that learn continue with eta_2, and all other parameters continue
    with the base optimizer. A `step` that ends with an error has changed nothing.

    A method is a subclass with a `_learn` of its own.
    """

    centers_learn: ClassVar[bool] = False
    """Whether centers have gradients, and move."""

    runs_both: ClassVar[bool] = False
    """Whether a step runs the network at x and at Q_c(x): then each has buffers of its own."""

    assignment: Assignment = "nearest"
    """How weights are assigned to centers."""

    def __init__(
        self,
        base: Optimizer,
        params: Selection | Sequence[GroupSpec],
        init: Callable[[Tensor, int], Tensor],
        *,
        bits: int | None,
        levels: int | None = None,
        eta2: float = 0.0,
        center_grad_clip: float = CENTER_GRAD_CLIP,
        center_lr_ratio: float | None = None,
    ) -> None:
        """Wrap `base`. `init` takes a tensor and the number of its centers, and returns the centers.

        Centers start among the present weights: load pretrained ones before.
        """
        check(isinstance(base, Optimizer), "base optimizer", "a torch.optim.Optimizer", base)
        closure = inspect.signature(base.step).parameters.get("closure")
        alone = closure is None or closure.default is not inspect.Parameter.empty
        check(alone, "base optimizer", "one whose step needs no closure, unlike LBFGS", type(base).__name__)
        check(center_grad_clip > 0, "center_grad_clip", "above 0", center_grad_clip)
        if center_lr_ratio is not None:
            check_number("center_lr_ratio", center_lr_ratio, 0)
        self.base = base
        self.center_grad_clip, self.center_lr_ratio = center_grad_clip, center_lr_ratio
        self.model, self.groups = groups_of(params, bits, levels, eta2)
        self._network = SelectedNetwork(self.model, [name for group in self.groups for name in group["names"]])
        self._guard = Guard(base, self._network)
        self.epoch = 1.0
        """The t of lambda(t), from 1: set it at the start of each epoch. Left alone, lambda(1) holds throughout."""
        self.hard = False
        """Whether `harden` has been called."""
        rates = self._rates()
        if strange := [name for name, x in self.x.items() if x not in rates]:
            raise InvalidValueError(
                f"The base optimizer does not train '{strange[0]}', which is selected: add it there."
            )
        self._init = init
        self.centers: Params = self._initial_centers()
        """c: for each selected parameter its centers, `[1, m]` or `[channels, m]`, sorted."""
        self.assigned: Params = {}
        """After `harden`, which center each weight has."""
        self.q_buffers: Params = clones(self._network.buffers()) if self.runs_both else {}
        """Until `harden`, the buffers of Q_c(x) if the network runs it. The network itself has the buffers of x."""

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups of the base optimizer, with their learning rates."""
        return self.base.param_groups

    @property
    def x(self) -> Params:
        """The selected parameters themselves."""
        return self._network.x

    @property
    def is_quantized(self) -> bool:
        """Whether the network holds quantized weights now, in place of x: a closure may ask.

        BinaryRelax has weights between x and Q_c(x), which count as quantized.
        """
        return self.hard or not self._network.holds_x

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients, as training loops do; `step` does so by itself."""
        self.base.zero_grad(set_to_none)

    def step(self, closure: Closure) -> Tensor:
        """Take one step and return the loss before it.

        closure: a function without arguments that runs the network on a batch and returns the loss. It does not call
            `backward()`. A step may call it several times, with different weights in the network (`is_quantized`); the
            loss is of the first call.
        """
        check(callable(closure), "closure", "a function without arguments that returns the loss", closure)
        self._network.check_ready("take a step")
        own = dict(self.centers), dict(self.assigned), dict(self.q_buffers)
        try:
            with self._guard.undo_on_error():
                return self._finetune(closure) if self.hard else self._learn(closure)
        except BaseException:
            self.centers, self.assigned, self.q_buffers = own
            raise

    @abstractmethod
    def _learn(self, closure: Closure) -> Tensor:
        """Take one step of the method before hardening; return the loss."""

    def codebooks(self) -> dict[str, Codebook]:
        """Return Q_c(x): the centers of each selected parameter, and which of them each weight has."""
        if self.hard:
            return {name: Codebook(self.centers[name], assigned) for name, assigned in self.assigned.items()}
        centers = self._present_centers()
        assigned = self._assign(centers)
        return {name: Codebook(c, assigned[name]) for name, c in centers.items()}

    def harden(self, model: nn.Module) -> None:
        """Put Q_c(x) into the network, with the buffers that belong to it; from here on, `step` fine-tunes."""
        check(model is self.model, "network to harden", "the one that the optimizer trains", type(model).__name__)
        self._network.check_ready("harden the network")
        if self.hard:
            raise RunError("The network is hard already: harden() is called once, between training and fine-tuning.")
        books = self.codebooks()
        self.centers = {name: book.centers for name, book in books.items()}
        self.assigned = {name: book.indices for name, book in books.items()}
        write(self.x, self._values(books))
        write(self._network.buffers(), self.q_buffers)
        self.q_buffers = {}
        self.hard = True

    @contextmanager
    def quantized(self) -> Iterator[None]:
        """Let the network be Q_c(x), with its buffers, within the block. Afterwards it is as it was before."""
        self._network.check_ready("enter quantized() again")
        with self._network.holding(self._values(self.codebooks()), self.q_buffers):
            yield

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the state beside the network's own: tensors, numbers, strings, None, in lists and dicts."""
        state = {
            **self._identity(),
            "epoch": self.epoch,
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
        """Continue from a state; the network loads its own by itself. A state of something else changes nothing."""
        self._network.check_ready("load a state")
        check_state(state, self._identity(), self._shapes(hard=bool(state.get("hard"))))
        base = plain(state["base"])
        self.base.load_state_dict({**base, "state": {int(key): value for key, value in base["state"].items()}})
        self.epoch, self.hard = float(state["epoch"]), bool(state["hard"])
        for group, eta2 in zip(self.groups, state["eta2"], strict=True):
            group["eta2"] = float(eta2)
        self.centers = {name: c.to(self.x[name], copy=True) for name, c in state["centers"].items()}
        self.assigned = {
            name: a.to(self.x[name].device, torch.uint8, copy=True) for name, a in state["assigned"].items()
        }
        self.q_buffers = clones(state["q_buffers"])

    def _identity(self) -> dict[str, Any]:
        """Return, as plain data, the properties that a state must share."""
        return {
            "method": type(self).__name__,
            "optimizer": type(self.base).__name__,
            "shapes": [[list(p.shape) for p in group["params"]] for group in self.base.param_groups],
            "quantized": [{"names": list(group["names"]), "levels": group["levels"]} for group in self.groups],
        }

    def _shapes(self, *, hard: bool) -> dict[str, dict[str, tuple[int, ...]]]:
        """Return the shapes of the tensors of a state."""
        apart = self.runs_both and not hard
        tensors = {
            "centers": self.centers,
            "assigned": {name: grouped(self.x[name], c) for name, c in self.centers.items()} if hard else {},
            "q_buffers": self._network.buffers() if apart else {},
        }
        return {key: {name: tuple(t.shape) for name, t in entries.items()} for key, entries in tensors.items()}

    def _finetune(self, closure: Closure) -> Tensor:
        """c <- c - eta_2 h, each weight at its center; other parameters step by the base optimizer. R is 0 here."""
        loss, gradients = self._gradients(closure)
        # A parameter without a gradient is left alone by optimizers: no momentum, no weight decay.
        self._base_step(gradients | dict.fromkeys(self.x.values()))
        rates = self._center_rates()
        for name, x in self._network.trained().items() if self.centers_learn else ():
            c, assigned = self.centers[name], self.assigned[name]
            h = pull_back(partial(place, assigned=assigned, shape=x.shape), c, gradients[x])
            moved = descend_centers(c, h, *rates[name])
            self.centers[name], self.assigned[name] = in_order(moved, assigned)
        write(self.x, self._values(self.codebooks()))
        return loss

    def _gradients(self, closure: Closure, of: Sequence[Tensor] | None = None) -> tuple[Tensor, Gradients]:
        """Return the loss at the weights that the network holds, and its gradients, by default all."""
        where = "the quantized weights" if self.is_quantized else "x"
        loss = self._guard.loss(closure, where)
        return loss.detach(), self._guard.gradients(loss, list(self._rates()) if of is None else of, where)

    def _base_step(self, gradients: Gradients) -> None:
        """Let the base optimizer take its step."""
        self.base.zero_grad()  # also of parameters frozen since the last step: they would continue to move
        for parameter, gradient in gradients.items():
            parameter.grad = gradient
        self.base.step()

    def _rates(self) -> dict[Tensor, float]:
        """Return the present learning rate of every parameter that the base optimizer trains."""
        return learning_rates(self.base)

    def _center_rates(self) -> dict[str, tuple[float, float]]:
        """Return eta_2 of the centers of every trained parameter, and the size to which entries of h are cut."""
        eta2 = {name: group["eta2"] for group in self.groups for name in group["names"]}
        ratio, rates, trained = self.center_lr_ratio, self._rates(), self._network.trained()
        if ratio is None:
            return {name: (eta2[name], self.center_grad_clip) for name in trained}
        return {k: (center_rate(ratio, rates[x], x, self.centers[k]), math.inf) for k, x in trained.items()}

    def _initial_centers(self) -> Params:
        """Return centers for the present x."""
        centers = {}
        for group in self.groups:
            for name in group["names"]:
                try:
                    centers[name] = self._init(self.x[name].detach(), group["levels"])
                except InvalidValueError as error:
                    raise InvalidValueError(f"'{name}': {error}") from None
        return centers

    def _present_centers(self) -> Params:
        """Return the centers that Q_c has before hardening."""
        return self.centers

    def _assign(self, centers: Params) -> Params:
        """Return which of its centers each weight has."""
        return {name: assign(self.x[name], c, self.assignment) for name, c in centers.items()}

    def _values(self, books: Mapping[str, Codebook]) -> Params:
        """Return every weight at its center."""
        return {name: place(book.centers, book.indices, self.x[name].shape) for name, book in books.items()}


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
