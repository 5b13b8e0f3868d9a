"""Bits for each tensor, so that a model fits into a number of bytes.

All tensors get the same bits first. The bytes that are left go to the tensors that gain most per byte, one step at a
time. The gain is the decrease of the expected loss 1/2 sum_i F_i (w_i - Q(w_i))^2, with F the empirical Fisher
information of the weights w.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch import Tensor

from quped.errors import InvalidValueError
from quped.quant.centers import MAX_BITS, initial_centers
from quped.quant.quantizer import hard
from quped.quant.sizes import FULL_PRECISION, tensor_bytes

ITERATIONS = 20
"""Of k-means: enough to compare bit-widths."""


class Option(NamedTuple):
    """A bit-width that a tensor may have."""

    bits: int
    bytes: int
    """Of the packed weights and their centers."""
    loss: float
    """How much the loss is expected to rise by the rounding of this tensor."""


def options(weights: Tensor, fisher: Tensor, *, per_channel: bool = False) -> list[Option]:
    """Return the options of a tensor, the smallest first; each has a smaller loss than those before it."""
    count, groups = weights.numel(), len(weights) if per_channel else 1
    found = [Option(FULL_PRECISION, tensor_bytes(count, groups, FULL_PRECISION), 0.0)]
    for bits in range(1, MAX_BITS + 1):
        try:
            centers = initial_centers(weights, 2**bits, "kmeans", per_channel=per_channel, iterations=ITERATIONS)
        except InvalidValueError:  # all weights of a group are equal
            break
        loss = float((fisher * (weights - hard(weights, centers)).square()).sum()) / 2
        found.append(Option(bits, tensor_bytes(count, groups, bits), loss))
    found.sort(key=lambda option: (option.bytes, option.loss))
    return [option for i, option in enumerate(found) if all(option.loss < before.loss for before in found[:i])]


def allocate(choices: Mapping[str, Sequence[Option]], capacity: int) -> dict[str, Option]:
    """Return an option for each tensor, of at most so many bytes in all; if that cannot be, the smallest ones."""
    chosen = {name: listed[0] for name, listed in choices.items()}
    for bits in range(1, MAX_BITS + 1):
        same = {name: next((o for o in listed if o.bits >= bits), listed[-1]) for name, listed in choices.items()}
        if total_bytes(same) <= capacity:
            chosen = same
    while larger := [step for step in steps(chosen, choices) if step.bytes <= capacity - total_bytes(chosen)]:
        best = max(larger, key=lambda step: step.gain / step.bytes)
        chosen[best.name] = best.option
    return chosen


def total_bytes(chosen: Mapping[str, Option]) -> int:
    """Return the bytes of a choice."""
    return sum(option.bytes for option in chosen.values())


class Step(NamedTuple):
    """A tensor's next option, with the bytes that it costs and the loss that it saves."""

    name: str
    option: Option
    bytes: int
    gain: float


def steps(chosen: Mapping[str, Option], choices: Mapping[str, Sequence[Option]]) -> list[Step]:
    """Return the next option of each tensor that has one."""
    nexts = {name: choices[name][choices[name].index(now) + 1 :] for name, now in chosen.items()}
    return [
        Step(name, after[0], after[0].bytes - chosen[name].bytes, chosen[name].loss - after[0].loss)
        for name, after in nexts.items()
        if after
    ]
