"""Which parameters of a network are quantized, and to how many values."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Required, TypedDict

from torch import nn

from quped.errors import InvalidValueError, NetworkError, check, check_number, check_whole, did_you_mean
from quped.models import quantizable as chosen_by_default
from quped.models.select import check_quantizable
from quped.quant import MAX_BITS


@dataclass(frozen=True)
class Selection:
    """Parameters of a network by name. The network comes along for its BatchNorm statistics: x and Q_c(x) differ."""

    model: nn.Module
    names: tuple[str, ...]


class GroupSpec(TypedDict, total=False):
    """A group as a user writes it: what it leaves out is as for the whole optimizer."""

    params: Required[Selection]
    bits: int
    levels: int
    eta2: float


class Group(TypedDict):
    """Parameters with the same hyperparameters.

    `eta2` may be changed while training; methods whose centers do not learn ignore it.
    """

    names: list[str]
    levels: int
    """m, the number of values that a weight may have: 2^bits, or as it was given."""
    eta2: float


def quantizable(model: nn.Module, names: Sequence[str] | None = None) -> Selection:
    """Select the named parameters; by default all weights with two or more dimensions but the first and the last.

    Give the whole network: BatchNorm statistics of what is not in it are not kept apart for x and Q_c(x). A network may
    choose otherwise by an attribute `quantized`, a tuple of names.
    """
    chosen = check_quantizable(model, chosen_by_default(model) if names is None else names)
    if not chosen:
        raise NetworkError(
            f"{type(model).__name__} has no layer to quantize: the first and the last one are left as they are. Name "
            "the parameters, as in quantizable(model, ['1.weight'])."
        )
    return Selection(model, chosen)


def groups_of(
    params: Selection | Sequence[GroupSpec], bits: int | None, levels: int | None, eta2: float
) -> tuple[nn.Module, list[Group]]:
    """Return the network, and its groups with nothing left out, checked."""
    given = [GroupSpec(params=params)] if isinstance(params, Selection) else params
    rule = "quantizable(model), or a list of groups such as {'params': quantizable(model, [...]), 'bits': 2}"
    check(isinstance(given, Iterable), "parameters to quantize", rule, params)
    specs = list(given)
    well_formed = all(isinstance(spec, dict) and isinstance(spec.get("params"), Selection) for spec in specs)
    check(len(specs) > 0 and well_formed, "parameters to quantize", rule, params)
    model, seen, groups = specs[0]["params"].model, set[str](), list[Group]()
    for spec in specs:
        if unknown := spec.keys() - GroupSpec.__annotations__:
            raise InvalidValueError(
                f"A group has no '{min(unknown)}'. {did_you_mean(min(unknown), GroupSpec.__annotations__)}"
            )
        if spec["params"].model is not model:
            raise InvalidValueError("All groups must select from one network: make one optimizer for each network.")
        names = list(spec["params"].names)
        own = "bits" in spec or "levels" in spec
        width, count = (spec.get("bits"), spec.get("levels")) if own else (bits, levels)
        group = Group(names=names, levels=levels_of(width, count, f" of '{names[0]}'"), eta2=spec.get("eta2", eta2))
        check_number(f"eta2 of '{names[0]}'", group["eta2"], 0, 1e6)
        for name in names:
            if name in seen:
                raise InvalidValueError(f"'{name}' is selected twice: leave it in one group only.")
            seen.add(name)
        groups.append(group)
    return model, groups


def levels_of(bits: int | None, levels: int | None, where: str = "") -> int:
    """Return m, the number of values that a weight may have: 2^bits, or `levels`, of which 3 are ternary weights."""
    if levels is None:
        check_whole(f"bits{where}", bits, 1, MAX_BITS)
        return 1 << int(bits or 0)
    check(bits is None, f"bits{where}", "left out where levels are given", bits)
    check_whole(f"levels{where}", levels, 2, 2**MAX_BITS)
    return int(levels)
