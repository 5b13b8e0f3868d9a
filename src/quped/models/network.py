"""Any `nn.Module` as a pure function of its tensors."""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.parameter import is_lazy

from quped.errors import NetworkError, nearest
from quped.typing import Model, Params


def quantizable(module: nn.Module) -> tuple[str, ...]:
    """Name the tensors that are quantized unless a user says otherwise.

    A module may say so itself with an attribute `quantized`, a tuple of parameter names. Otherwise: every trainable
    parameter with two or more dimensions (so no bias and no BatchNorm) but the first and the last, which the paper
    keeps in full precision.
    """
    declared = getattr(module, "quantized", None)
    if declared is not None:
        return tuple(declared)
    return tuple(k for k, p in module.named_parameters() if p.requires_grad and p.dim() >= 2)[1:-1]


class FunctionalNetwork:
    """A module split into structure, kept here, and tensors, which the caller holds.

    Buffers, such as BatchNorm statistics, are part of the tensors: `Model.buffers`. Frozen parameters are part of the
    structure: nothing trains, averages or sends them.
    """

    def __init__(self, module: nn.Module, quantized: Sequence[str] | None = None) -> None:
        """Take the structure and the present tensors of `module`; the module itself is not touched again."""
        self.name = str(getattr(module, "name", type(module).__name__))
        if any(is_lazy(p) for p in module.parameters()):
            raise NetworkError(f"{self.name} has lazy layers without weights: run one forward pass before using it.")
        params = dict(module.named_parameters())
        trainable = {k: p.detach().clone() for k, p in params.items() if p.requires_grad}
        buffers = {k: b.detach().clone() for k, b in module.named_buffers()}
        self.frozen = sum(p.numel() for p in params.values() if not p.requires_grad)
        """Numbers in parameters that are not trained; they stay with the structure."""
        if not trainable:
            raise NetworkError(f"{self.name} has no trainable parameters.")
        self.initial = Model(trainable, buffers)
        if isinstance(quantized, str):
            raise NetworkError(f"The parameters to quantize must be a list of names, got the string '{quantized}'.")
        self.quantized = quantizable(module) if quantized is None else tuple(dict.fromkeys(quantized))
        if unknown := [name for name in self.quantized if name not in trainable]:
            hint = nearest(unknown[0], trainable)
            raise NetworkError(f"{self.name} has no trainable parameter '{unknown[0]}' to quantize. {hint}")
        # Looking for tied weights in every call is slow; most networks have none.
        self._tied = len(params) < len(list(module.named_parameters(remove_duplicate=False)))
        self._training = copy.deepcopy(module).train()
        self._evaluation = copy.deepcopy(self._training).eval()

    def __call__(
        self, params: Params, buffers: Params, inputs: tuple[Tensor, ...], *, train: bool
    ) -> tuple[Tensor, Params]:
        """Return the logits and the buffers after the pass."""
        if not train:
            logits: Tensor = functional_call(self._evaluation, {**params, **buffers}, inputs, tie_weights=self._tied)
            return logits, buffers
        # BatchNorm updates its statistics in place: give it copies, so that the caller's stay as they are.
        updated = {k: v.clone() for k, v in buffers.items()}
        logits = functional_call(self._training, {**params, **updated}, inputs, tie_weights=self._tied)
        return logits, updated

    def module(self, model: Model) -> nn.Module:
        """Return an ordinary module with these tensors, in evaluation mode."""
        module = copy.deepcopy(self._evaluation)
        tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        with torch.no_grad():
            for key, value in {**model.params, **model.buffers}.items():
                tensors[key].copy_(value)
        return module
