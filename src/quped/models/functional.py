"""Any `nn.Module` as a pure function of its tensors."""

import copy
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from quped._transform import under_vmap
from quped.errors import NetworkError
from quped.models.cnn import ConvPool
from quped.models.select import check_quantizable, last_layer, network_name
from quped.typing import ModelState, Params


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

    Buffers, such as BatchNorm statistics, are part of the tensors: `ModelState.buffers`. Frozen parameters are part of
    the structure: nothing trains, averages or sends them.
    """

    def __init__(self, module: nn.Module) -> None:
        """Take the structure and the present tensors of `module`; the module itself is not touched again."""
        self.name = network_name(module)
        if any(is_lazy(p) for p in module.parameters()):
            raise NetworkError(f"{self.name} has lazy layers without weights: run one forward pass before using it.")
        params = dict(module.named_parameters())
        trainable = {k: copied(p) for k, p in params.items() if p.requires_grad}
        buffers = {k: copied(b) for k, b in module.named_buffers()}
        self.frozen = {k: copied(p) for k, p in params.items() if not p.requires_grad}
        """Parameters that are not trained; they stay with the structure."""
        if not trainable:
            raise NetworkError(f"{self.name} has no trainable parameters.")
        self.initial = ModelState(trainable, buffers)
        self.head = last_layer(module)
        """The trained parameters of the last layer."""
        try:
            self._training = copy.deepcopy(module).train()
            self._evaluation = copy.deepcopy(self._training).eval()
        except Exception as error:  # whatever a user's module does when it is copied
            raise NetworkError(f"{self.name} cannot be copied: {error} (copy.deepcopy must work for it).") from error
        for part in (*self._training.modules(), *self._evaluation.modules()):
            if isinstance(part, nn.Embedding | nn.EmbeddingBag):
                part.sparse = False  # sparse gradients fit torch's own optimizers only
        self.built_from: dict[str, Any] | None = getattr(module, "built_from", None)
        """What `quped.models.build` made it from, if it did."""
        self.structure = repr(self._evaluation)
        """Its layers in words, without their weights."""
        self.has_kernels = any(isinstance(part, ConvPool) for part in module.modules())
        """Whether it has layers with compiled kernels of ours, which are faster than what Inductor makes of them."""
        self._channels_last = any(type(part) is nn.Conv2d for part in module.modules())
        """Whether images go in with their channels last, as PyTorch's convolutions and pooling are fastest."""
        self._slots = {train: slots(self._training if train else self._evaluation) for train in (True, False)}

    def check_quantizable(self, names: Sequence[str]) -> None:
        """Raise if one of these parameters cannot be quantized."""
        check_quantizable(self._evaluation, names)

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
            logits: Tensor = module(*self._laid_out(inputs))
            if train:  # in place or by assignment: what counts is what the module holds now
                buffers = {name: place[key].detach() for name in buffers for place, key, _ in held[name][:1]}
        except RuntimeError as error:
            if not self._channels_last or "view size is not compatible" not in str(error):
                raise
            self._channels_last = False  # the module flattens with view(), which needs the usual order of memory
            return self(params, buffers, inputs, train=train)
        finally:
            for places in held.values():
                for place, key, own in places:
                    place[key] = own
        return logits, buffers

    def _laid_out(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return the inputs in the order of memory that suits the network; torch.func.vmap knows one only."""
        if not self._channels_last or under_vmap():
            return inputs
        last = torch.channels_last
        return tuple(part.contiguous(memory_format=last) if part.dim() == 4 else part for part in inputs)

    def logit_bias(self, inputs: tuple[Tensor, ...]) -> str | None:
        """Name the parameter of the last layer that is added to the logits, if there is one: tried on these inputs."""
        params, buffers = self.initial

        @torch.no_grad()
        def logits(changed: Params) -> Tensor:
            return self(params | changed, buffers, inputs, train=False)[0]

        before = logits({})
        shift = torch.arange(1.0, before.shape[1] + 1, device=before.device, dtype=before.dtype)
        for name in self.head:
            if params[name].shape == shift.shape:
                moved = logits({name: params[name] + shift}) - before
                if torch.allclose(moved, shift.expand_as(moved), atol=1e-3):
                    return name
        return None

    def module(self, model: ModelState) -> nn.Module:
        """Return an ordinary module with these tensors, in evaluation mode."""
        module = copy.deepcopy(self._evaluation)
        tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        with torch.no_grad():
            for key, value in {**model.params, **model.buffers}.items():
                tensors[key].copy_(value)
        return module
