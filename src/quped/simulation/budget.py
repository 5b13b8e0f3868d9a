"""Bits for each parameter of a network, so that its file fits into a budget of bytes."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from quped._losses import cross_entropy
from quped._rng import generator, torch_seeded
from quped.algorithms._autodiff import gradient
from quped.data import Samples
from quped.errors import InvalidValueError, check, is_whole, number
from quped.export import most_file_bytes
from quped.models import FunctionalNetwork
from quped.quant import FULL_PRECISION
from quped.quant.allocation import Option, allocate, options
from quped.typing import Batch, Params

UNITS = {"": 1, "b": 1, "kb": 1_000, "mb": 1_000_000}
BATCHES, BATCH_SIZE = 8, 16
"""Of the client's samples, from which the sensitivity of its weights is estimated."""
ACCURACY = 0.123457
"""Stands for the accuracy that a file will name."""
MARGIN = 16
"""Bytes by which the description of a file may turn out longer than planned: an accuracy has other digits."""


class Plan(NamedTuple):
    """Which bits the parameters get."""

    choice: dict[str, Option]
    """For each parameter that can be quantized."""
    most_bytes: int
    """Of the file; it is smaller if its content can be compressed."""

    @property
    def bits(self) -> dict[str, int]:
        """The bits of the quantized parameters."""
        return {name: option.bits for name, option in self.choice.items() if option.bits < FULL_PRECISION}


def parse_bytes(text: object, what: str) -> int:
    """Return a number of bytes: a whole number, or words such as "8 kB". A kB has 1000 bytes."""
    size = number(text) if is_whole(text) else math.nan
    if isinstance(text, str) and (found := re.fullmatch(r"(\d+(?:\.\d+)?)\s*(|b|kb|mb)", text.strip().lower())):
        size = float(found[1]) * UNITS[found[2]]
    check(0 <= size < math.inf, what, "a number of bytes, such as 8000 or '8 kB'", text)
    return round(size)


def plan_bits(
    network: FunctionalNetwork,
    names: Sequence[str],
    samples: Samples,
    budget: int,
    info: Mapping[str, Any],
    *,
    per_channel: bool,
    seed: int,
    what: str,
) -> Plan:
    """Return bits for the named parameters with which the file is never above the budget."""
    fisher = fisher_information(network, samples, seed)
    params, module = network.initial.params, network.module(network.initial)
    choices = {name: options(params[name], fisher[name], per_channel=per_channel) for name in names}

    def plan(capacity: int) -> Plan:
        choice = allocate(choices, capacity)
        made = Plan(choice, 0)
        size = most_file_bytes(module, made.bits, per_channel, **info, accuracy=ACCURACY) + MARGIN
        return made._replace(most_bytes=size)

    found, capacity = plan(0), budget
    if found.most_bytes > budget:
        raise InvalidValueError(
            f"The budget of {what} is {budget:,} bytes, and the smallest possible file has {found.most_bytes:,}: allow "
            "as many, or use a smaller network."
        )
    # The parameters share what is left beside the description and the other tensors.
    while (found := plan(capacity)).most_bytes > budget:
        capacity -= max(found.most_bytes - budget, MARGIN)
    return found


def fisher_information(network: FunctionalNetwork, samples: Samples, seed: int) -> Params:
    """Return the empirical Fisher information of each weight: the mean square of the gradients of single samples.

    It is estimated from the gradients of a few small batches, whose squares are smaller by their size.
    """
    chosen = torch.from_numpy(generator(seed, "fisher").integers(len(samples), size=(BATCHES, BATCH_SIZE)))
    with torch_seeded(seed, "fisher"):  # PyTorch data sets, and networks, may be random
        grads = [loss_gradient(network, samples.batch(indices)) for indices in chosen]
    return {name: BATCH_SIZE * torch.stack([g[name] for g in grads]).square().mean(0) for name in grads[0]}


def loss_gradient(network: FunctionalNetwork, batch: Batch) -> Params:
    """Return the gradient of the loss on a batch, in evaluation mode, at the initial weights."""

    def loss(params: Params) -> tuple[Tensor, Params]:
        logits, _ = network(params, network.initial.buffers, batch.inputs, train=False)
        return cross_entropy(logits, batch.labels), {}

    return gradient(loss, network.initial.params)[0]
