"""Gradients of functions of tensor trees: by autograd, or by torch.func under vmap."""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.func import vjp

from quped import _tree
from quped._losses import cross_entropy
from quped._transform import transformed
from quped.typing import Batch, ModelState, Network, Params

Aux = TypeVar("Aux")
Variables = TypeVar("Variables")


def gradient(f: Callable[[Variables], tuple[Tensor, Aux]], variables: Variables) -> tuple[Variables, Tensor, Aux]:
    """Return the gradient of f at a tree of variables, its value, and what f returned beside its value."""
    value, pull_back, aux = pullback(f, variables)
    return pull_back(None), value, aux


def pullback(
    f: Callable[[Variables], tuple[Tensor, Aux]], variables: Variables
) -> tuple[Tensor, Callable[[Tensor | None], Variables], Aux]:
    """Return f's output at a tree of variables, the map from a gradient by that output to one by the variables, once,
    and what f returned beside its output."""
    if transformed():
        return transformed_pullback(f, variables)
    leaves = _tree.map_leaves(lambda leaf: leaf.detach().requires_grad_(), variables)
    with torch.enable_grad():
        output, aux = f(leaves)

    def pull_back(by_output: Tensor | None) -> Variables:
        inputs = [leaf for _, leaf in _tree.items(leaves)]
        # A gradient by the output would make PyTorch import SymPy, which takes each process half a second.
        scalar = output if by_output is None else (output * by_output).sum()
        grads = iter(torch.autograd.grad(scalar, inputs, materialize_grads=True))
        return _tree.map_leaves(lambda _: next(grads), variables)

    return output.detach(), pull_back, _tree.map_leaves(Tensor.detach, aux)


def transformed_pullback(
    f: Callable[[Variables], tuple[Tensor, Aux]], variables: Variables
) -> tuple[Tensor, Callable[[Tensor | None], Variables], Aux]:
    """`pullback` by torch.func: slower for one client, and the only way under vmap."""
    found: Any = vjp(f, variables, has_aux=True)
    output, by_variables, aux = found

    def pull_back(by_output: Tensor | None) -> Variables:
        grads: Variables
        (grads,) = by_variables(torch.ones_like(output) if by_output is None else by_output)
        return grads

    return output, pull_back, aux


def cross_entropy_gradient(
    network: Network, model: ModelState, batch: Batch, names: Iterable[str] | None = None
) -> tuple[Params, Tensor, Params]:
    """Return the gradient of f, the cross-entropy on a batch, its value, and the buffers after the pass.

    The gradient is that by the named parameters, by default all.
    """

    def f(params: Params) -> tuple[Tensor, Params]:
        logits, buffers = network(model.params | params, model.buffers, batch.inputs, train=True)
        return cross_entropy(logits, batch.labels), buffers

    return gradient(f, model.params if names is None else {k: model.params[k] for k in names})
