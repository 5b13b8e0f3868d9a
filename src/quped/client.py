"""A client as a user describes it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from torch import nn

from quped._rng import generator
from quped.algorithms import FULL_PRECISION
from quped.data import Data, as_samples, subset
from quped.data.partition import hold_out
from quped.errors import DataError
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
    validation: Data | None = field(default=None, repr=False)
    """Samples on which hyperparameters are chosen: see `on_validation`."""

    def on_validation(self, seed: int = 0) -> "Client":
        """Return the client as hyperparameters are chosen with it: it is tested on validation samples.

        Without `validation`, these are a fifth of its training samples, which are then not trained on.
        Its test samples are left out.
        """
        if self.validation is not None:
            return replace(self, test=self.validation, validation=None)
        samples = as_samples(self.train, f"training data of client '{self.name}'")
        if len(samples) < 2:
            raise DataError(f"Client '{self.name}' has one training sample, none to spare: give it validation=...")
        share = hold_out(np.arange(len(samples)), generator(seed, "validation", self.name))
        return replace(self, train=subset(samples, share.train), test=subset(samples, share.test))
