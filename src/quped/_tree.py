"""Arithmetic on trees of tensors: dictionaries and NamedTuples, nested, with tensors as leaves."""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from quped._transform import plus, transformed
from quped.typing import Params

T = TypeVar("T")


def map_leaves(f: Callable[..., Tensor], tree: T, *others: T) -> T:
    """Apply `f` to corresponding leaves of trees of one shape."""
    if isinstance(tree, Tensor):
        return cast(T, f(tree, *others))
    if isinstance(tree, dict):
        if any(cast(Any, o).keys() != tree.keys() for o in others):
            raise ValueError("trees to be mapped together must have the same keys")
        pairs = {k: map_leaves(f, v, *(cast(Any, o)[k] for o in others)) for k, v in tree.items()}
        return cast(T, pairs)
    if isinstance(tree, tuple):
        parts = [map_leaves(f, *column) for column in zip(tree, *cast(Any, others), strict=True)]
        return cast(T, type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts))
    raise TypeError(f"a tree holds tensors, dictionaries and tuples, not {type(tree).__name__}")


def items(tree: object, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield every leaf with its path, such as `x.params/conv1.weight`."""
    if isinstance(tree, Tensor):
        yield prefix, tree
    elif isinstance(tree, dict):
        for key, value in tree.items():
            yield from items(value, f"{prefix}/{key}" if prefix else str(key))
    elif isinstance(tree, tuple):
        names = getattr(tree, "_fields", range(len(tree)))
        for name, value in zip(names, tree, strict=True):
            yield from items(value, f"{prefix}.{name}" if prefix else str(name))
    else:
        raise TypeError(f"a tree holds tensors, dictionaries and tuples, not {type(tree).__name__}")


def union(a: T, b: T) -> T:
    """Return a tree with the leaves of both, of which dictionaries may have different keys; common leaves are a's."""
    if isinstance(a, dict):
        other = cast(Any, b)
        return cast(T, a | {k: union(a[k], v) if k in a else v for k, v in other.items()})
    if isinstance(a, tuple):
        parts = [union(*pair) for pair in zip(a, cast(Any, b), strict=True)]
        return cast(T, type(a)(*parts) if hasattr(a, "_fields") else tuple(parts))
    return a


def size(tree: object) -> int:
    """Return the bytes of all leaves."""
    return sum(leaf.numel() * leaf.element_size() for _, leaf in items(tree))


def unflatten(template: T, leaves: Mapping[str, Tensor], prefix: str) -> T:
    """Return a tree in the shape of a template, from leaves by their paths: the inverse of `items`."""
    paths = iter([path for path, _ in items(template, prefix)])
    return map_leaves(lambda _: leaves[next(paths)], template)


def arranged(tree: object, template: T) -> T:
    """Return a tree, which must have the leaves of a template, with dictionaries in the template's order."""
    leaves, expected = dict(items(tree)), dict(items(template))
    if leaves.keys() != expected.keys():
        raise ValueError(f"a tree has other leaves than expected: {', '.join(sorted(leaves.keys() ^ expected.keys()))}")
    return unflatten(template, leaves, "")


def choose(condition: Tensor, yes: Callable[[], T], no: Callable[[], T]) -> T:
    """Return one of two trees; where clients are stacked, each client's own, since no value can be asked for."""
    if not transformed():
        return yes() if condition else no()
    return map_leaves(lambda a, b: torch.where(condition, a, b), yes(), no())


def add_scaled(a: Params, b: Params, scale: float) -> Params:
    """Return a + scale * b."""
    return {k: plus(v, b[k], scale) for k, v in a.items()}


def difference(a: Params, b: Params) -> Params:
    """Return a - b."""
    return {k: v - b[k] for k, v in a.items()}


def norm(a: Params) -> float:
    """Return the length of `a` as one vector."""
    return math.sqrt(sum(float(v.double().square().sum()) for v in a.values()))


def zeros_like(a: Params) -> Params:
    """Return zeros in the shape of `a`."""
    return {k: torch.zeros_like(v) for k, v in a.items()}


def floats(a: Params) -> Params:
    """Return the floating-point entries: what can be averaged (a BatchNorm batch counter cannot)."""
    return {k: v for k, v in a.items() if v.is_floating_point()}
