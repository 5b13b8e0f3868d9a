"""A network whose quantized parameters can hold other values for a while."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from quped.errors import RunError
from quped.typing import Params


def clones(tensors: Mapping[str, Tensor]) -> Params:
    """Return copies."""
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


@torch.no_grad()
def write(live: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
    """Put values into tensors of a network, in place."""
    for name, value in values.items():
        live[name].copy_(value)


class SelectedNetwork:
    """A network, and those of its parameters that are quantized."""

    def __init__(self, model: nn.Module, names: Iterable[str]) -> None:
        named = dict(model.named_parameters())
        self.model = model
        self.x: Params = {name: named[name] for name in names}
        self.holds_x = True

    def buffers(self) -> Params:
        """Return the buffers themselves, most of them BatchNorm statistics.

        A module may replace a buffer while it runs: ask again after each pass.
        """
        return dict(self.model.named_buffers())

    def trained(self) -> Params:
        """Return the selected parameters without frozen ones, which stay as they are, with their centers."""
        return {name: x for name, x in self.x.items() if x.requires_grad}

    @contextmanager
    def holding(self, values: Params, buffers: Params | None = None) -> Iterator[None]:
        """Hold other values of x within the block, and x again afterwards.

        With `buffers`, the network also has these within the block, and afterwards all buffers are as they were before.
        """
        x, before = clones(self.x), None if buffers is None else clones(self.buffers())
        self.holds_x = False
        try:
            write(self.x, values)
            write(self.buffers(), buffers or {})
            yield
        finally:
            write(self.x, x)
            write(self.buffers(), before or {})
            self.holds_x = True

    def check_ready(self, purpose: str) -> None:
        """Raise an error within `holding`, and if a selected parameter was replaced."""
        if not self.holds_x:
            raise RunError(f"Within quantized() the network does not hold x: leave the block before you {purpose}.")
        named = dict(self.model.named_parameters())
        if lost := [name for name, x in self.x.items() if named.get(name) is not x]:
            raise RunError(
                f"The network's '{lost[0]}' is no longer the parameter that was selected: after a layer was replaced, "
                "make a new optimizer."
            )
