"""A client as a user describes it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from torch import nn

from quped.algorithms import FULL_PRECISION
from quped.data import Data
from quped.quant import CenterInit

ModelSource = nn.Module | Callable[[], nn.Module]
"""A module, whose weights are where training starts, or a function that makes one."""


@dataclass(frozen=True)
class Client:
    """A device: its data, its network, its bit-width. Every client may have its own.

    `Client("phone", train=(inputs, labels), test=(inputs, labels), model=make_network, bits=2)`
    """

    name: str
    train: Data = field(repr=False)
    """Training samples: (inputs, labels) as tensors or arrays, or a PyTorch data set."""
    test: Data | None = field(repr=False)
    """Samples on which the client's model is evaluated; None if it has none."""
    model: ModelSource
    """A network, or a function that makes one.
    Functions are called with the same random seed, so clients with the same network start from the same weights."""
    bits: int | Mapping[str, int] = FULL_PRECISION
    """Bits per quantized weight: 1 to 8, or 32 for full precision.
    A mapping from parameter names to bits quantizes just these parameters, each with its own bits."""
    quantize: Sequence[str] | None = None
    """Names of the parameters to quantize; by default all weights except those of the first and the last layer."""
    end_bits: int | None = None
    """Bits of the first and the last layer, 1 to 8; by default they are not quantized.
    A layer so small that its centers would take more space than its weights gets fewer bits."""
    budget: int | str | None = None
    """Bytes that the file of the client's model may have, such as "8 kB" (8000 bytes).
    The bits of each weight, those of the first and the last layer included, are then chosen from the client's data:
    leave out `bits` and `end_bits`. `quantize` restricts the choice to some weights."""
    per_channel: bool = False
    """Give every output channel its own centers, instead of one set to the layer."""
    init_centers: CenterInit = "range"
    """Where centers start: "range" in the paper; "kmeans" at the means of their weights; "unit" from -1 to 1."""
