"""Checks of the loss and its gradients, and the restoration after a step that fails."""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from quped.errors import RunError, check
from quped.optim._network import SelectedNetwork, clones, write

Closure = Callable[[], Tensor]
"""Runs the network on a batch and returns the loss, without `backward()`."""

Gradients = dict[Tensor, Tensor | None]
"""By parameter; None where the loss does not depend on it."""


def learning_rates(optimizer: Optimizer) -> dict[Tensor, float]:
    """Return the learning rate of every parameter that an optimizer trains; frozen ones are left out."""
    groups = optimizer.param_groups
    return {p: float(group["lr"]) for group in groups for p in group["params"] if p.requires_grad}


@dataclass(frozen=True)
class Guard:
    """Watches over the steps of one network."""

    base: Optimizer
    network: SelectedNetwork

    def loss(self, closure: Closure, where: str) -> Tensor:
        """Call the closure and return its loss, if it is one number that can be differentiated."""
        trained = list(learning_rates(self.base))
        before = [parameter.grad for parameter in trained]
        for parameter in trained:
            parameter.grad = None
        try:
            with torch.enable_grad():
                loss = closure()
            if any(parameter.grad is not None for parameter in trained):
                raise RunError(
                    "The closure called backward(): let it return the loss only. The optimizer computes the gradients, "
                    "at x and at the quantized weights."
                )
        finally:
            for parameter, gradient in zip(trained, before, strict=True):
                parameter.grad = gradient
        single = isinstance(loss, Tensor) and loss.numel() == 1
        check(single, "closure's result", "the loss, a tensor with one number", getattr(loss, "shape", loss))
        if not bool(loss.isfinite()):
            raise RunError(
                f"The loss at {where} is {float(loss.detach())}: this step is undone. Look for such numbers in the "
                "data, or lower the learning rate."
            )
        if not loss.requires_grad:
            raise RunError(f"The loss at {where} has no gradient: return it without detach(), item() or no_grad().")
        return loss

    def gradients(self, loss: Tensor, of: Sequence[Tensor], where: str) -> Gradients:
        """Return the gradients of the loss, if a step can be taken with them."""
        gradients: Gradients = dict(
            zip(of, torch.autograd.grad(loss, of, allow_unused=True) if of else (), strict=True)
        )
        for parameter, gradient in gradients.items():
            if gradient is None:
                continue
            if gradient.is_sparse:
                if (name := self._name(parameter)) in self.network.x:
                    raise RunError(f"The gradient of '{name}' is sparse: quantize layers with sparse=False only.")
            elif not bool(gradient.isfinite().all()):
                raise RunError(
                    f"The gradient of '{self._name(parameter)}' at {where} is not finite, though the loss is: this "
                    "step is undone. Look for a root of 0 or a division by 0 in the loss."
                )
        return gradients

    def _name(self, parameter: Tensor) -> str:
        names = (name for name, own in self.network.model.named_parameters() if own is parameter)
        return next(names, "a parameter beside the network")

    @contextmanager
    def undo_on_error(self) -> Iterator[None]:
        """Restore the weights, the buffers and the state of the base optimizer if the block ends with an error."""
        weights = {str(i): tensor for i, tensor in enumerate(learning_rates(self.base))}
        before, buffers, state = clones(weights), clones(self.network.buffers()), copied_state(self.base)
        try:
            yield
        except BaseException:
            write(weights, before)
            write(self.network.buffers(), buffers)
            self.base.zero_grad()
            self.base.state.clear()
            self.base.state.update(state)
            raise


def copied_state(optimizer: Optimizer) -> dict[Tensor, dict[str, Any]]:
    """Return a copy of an optimizer's state, by parameter."""
    return {
        parameter: {k: v.clone() if isinstance(v, Tensor) else copy.deepcopy(v) for k, v in values.items()}
        for parameter, values in optimizer.state.items()
    }
