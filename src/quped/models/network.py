"""Any `nn.Module` as a pure function of its tensors."""

import copy
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from quped.errors import NetworkError, nearest
from quped.typing import Model, Params


def quantizable(module: nn.Module) -> tuple[str, ...]:
    """Name the tensors that are quantized unless a user says otherwise.

    A module may say so itself with an attribute `quantized`, a tuple of parameter names. Otherwise: every trainable
    weight with two or more dimensions (so no bias, no BatchNorm, no positions or tokens that are parameters themselves)
    but the first and the last, which the paper keeps in full precision, and what other weights are computed of
    (torch.nn.utils.parametrize). Frozen weights count, though they are not quantized. A tensor that several layers
    share is both the first and the last if it is the one's and the other's.
    """
    declared = getattr(module, "quantized", None)
    if isinstance(declared, str):
        kind = type(module).__name__
        raise NetworkError(f"The attribute 'quantized' of {kind} must be a tuple of parameter names: {declared!r}.")
    if isinstance(declared, list | tuple):  # anything else is the module's own affair
        return tuple(declared)
    norms = {id(part.weight) for part in module.modules() if isinstance(part, nn.LayerNorm | nn.RMSNorm)}
    places = module.named_parameters(remove_duplicate=False)
    weights = [id(p) for k, p in places if "weight" in k and p.dim() >= 2 and id(p) not in norms]
    inner = set(weights) - {*weights[:1], *weights[-1:]}
    rows = padded(module)
    own = ((k, p) for k, p in module.named_parameters() if "parametrizations." not in k and k not in rows)
    return tuple(k for k, p in own if id(p) in inner and p.requires_grad)


def padded(module: nn.Module) -> set[str]:
    """Return the names of embeddings with a row of zeros for padding, which no center would keep."""
    parts = ((name, part) for name, part in module.named_modules() if isinstance(part, nn.Embedding | nn.EmbeddingBag))
    return {f"{name}.weight".lstrip(".") for name, part in parts if part.padding_idx is not None}


def copied(tensor: Tensor) -> Tensor:
    """Return a copy in the usual order of memory, which states have wherever they are kept."""
    return tensor.detach().clone(memory_format=torch.contiguous_format)


Slot = tuple[dict[str, Tensor], str, Tensor]
"""A dictionary of a module, the key in it, and the tensor that is there between two calls."""


def slots(module: nn.Module) -> dict[str, list[Slot]]:
    """Return, for each tensor of a module, where its submodules hold it: tied weights are held in several places.

    Putting tensors there by hand takes a tenth of the time of `torch.func.functional_call`, which is a fifth of that of
    a small network's forward pass.
    """
    named = {id(tensor): name for name, tensor in (*module.named_parameters(), *module.named_buffers())}
    found: dict[str, list[Slot]] = {}
    for part in module.modules():
        for place in (part._parameters, part._buffers):
            for key, tensor in place.items():
                if tensor is not None:
                    found.setdefault(named[id(tensor)], []).append((cast(dict[str, Tensor], place), key, tensor))
    return found


class FunctionalNetwork:
    """A module split into structure, kept here, and tensors, which the caller holds.

    Buffers, such as BatchNorm statistics, are part of the tensors: `Model.buffers`. Frozen parameters are part of the
    structure: nothing trains, averages or sends them.
    """

    def __init__(self, module: nn.Module, quantized: Sequence[str] | None = None) -> None:
        """Take the structure and the present tensors of `module`; the module itself is not touched again."""
        own = getattr(module, "name", None)
        self.name = own if isinstance(own, str) else type(module).__name__
        if any(is_lazy(p) for p in module.parameters()):
            raise NetworkError(f"{self.name} has lazy layers without weights: run one forward pass before using it.")
        params = dict(module.named_parameters())
        trainable = {k: copied(p) for k, p in params.items() if p.requires_grad}
        buffers = {k: copied(b) for k, b in module.named_buffers()}
        self.frozen = {k: copied(p) for k, p in params.items() if not p.requires_grad}
        """Parameters that are not trained; they stay with the structure."""
        if not trainable:
            raise NetworkError(f"{self.name} has no trainable parameters.")
        self.initial = Model(trainable, buffers)
        self.quantized = self._chosen(module, quantized)
        try:
            self._training = copy.deepcopy(module).train()
            self._evaluation = copy.deepcopy(self._training).eval()
        except Exception as error:  # whatever a user's module does when it is copied
            raise NetworkError(f"{self.name} cannot be copied: {error} (copy.deepcopy must work for it).") from error
        for part in (*self._training.modules(), *self._evaluation.modules()):
            if isinstance(part, nn.Embedding | nn.EmbeddingBag):
                part.sparse = False  # sparse gradients fit torch's own optimizers only
        self.structure = repr(self._evaluation)
        """Its layers in words, without their weights."""
        self._slots = {train: slots(self._training if train else self._evaluation) for train in (True, False)}

    def _chosen(self, module: nn.Module, quantized: Sequence[str] | None) -> tuple[str, ...]:
        """Return the names of the parameters to quantize: those that were asked for, or else the usual ones."""
        if quantized is None:
            quantized = quantizable(module)
        if not isinstance(quantized, list | tuple) or not all(isinstance(name, str) for name in quantized):
            raise NetworkError(f"The parameters to quantize must be a list of names, got {quantized!r}.")
        rows = padded(module)
        for name in quantized:
            if name in self.frozen:
                raise NetworkError(f"The parameter '{name}' of {self.name} is frozen: only what trains is quantized.")
            if name in rows:
                raise NetworkError(
                    f"The parameter '{name}' of {self.name} has a row for padding (padding_idx), whose zeros no center "
                    "would keep: leave it out of what is quantized."
                )
            if name not in self.initial.params:
                hint = nearest(name, self.initial.params)
                raise NetworkError(f"{self.name} has no trainable parameter '{name}' to quantize. {hint}")
            if self.initial.params[name].numel() == 0:
                raise NetworkError(f"The parameter '{name}' of {self.name} is empty: it cannot be quantized.")
        return tuple(dict.fromkeys(quantized))

    def __call__(
        self, params: Params, buffers: Params, inputs: tuple[Tensor, ...], *, train: bool
    ) -> tuple[Tensor, Params]:
        """Return the logits and the buffers after the pass; those of an evaluation stay as they are."""
        module = self._training if train else self._evaluation
        held = self._slots[train]
        # Modules may write to their buffers in place, in evaluation, too: they get copies.
        copies = {k: v.clone() for k, v in buffers.items()}
        try:
            for tensors in (params, copies):
                for name, tensor in tensors.items():
                    for place, key, _ in held[name]:
                        place[key] = tensor
            logits: Tensor = module(*inputs)
            if train:  # in place or by assignment: what counts is what the module holds now
                buffers = {name: place[key].detach() for name in buffers for place, key, _ in held[name][:1]}
        finally:
            for places in held.values():
                for place, key, own in places:
                    place[key] = own
        return logits, buffers

    def module(self, model: Model) -> nn.Module:
        """Return an ordinary module with these tensors, in evaluation mode."""
        module = copy.deepcopy(self._evaluation)
        tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        with torch.no_grad():
            for key, value in {**model.params, **model.buffers}.items():
                tensors[key].copy_(value)
        return module
