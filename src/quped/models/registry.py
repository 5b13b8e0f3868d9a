"""The networks of this package by name: for experiment files, the command line, and files that name their network."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn

from quped.errors import InvalidValueError, did_you_mean
from quped.models.cnn import cnn1, cnn2
from quped.models.mlp import mlp
from quped.models.resnet import resnet
from quped.models.signal import cnn1d
from quped.models.text import text


def _resnet_of(depth: int) -> Callable[[Sequence[int], int], nn.Module]:
    return lambda input_shape, classes: resnet(input_shape, classes, depth)


NETWORKS: Mapping[str, Callable[..., nn.Module]] = {
    "cnn1": cnn1,
    "cnn1d": cnn1d,
    "cnn2": cnn2,
    "mlp": mlp,
    "resnet8": _resnet_of(8),
    "resnet20": _resnet_of(20),
    "resnet32": _resnet_of(32),
    "text": text,
}
"""Each takes the shape of an input, the number of classes, and options of its own."""


def build(name: str, input_shape: Sequence[int], classes: int, **options: Any) -> nn.Module:
    """Return a network by its name; it keeps in `built_from` what it was built from."""
    if name not in NETWORKS:
        raise InvalidValueError(f"There is no network '{name}'. {did_you_mean(name, NETWORKS)}")
    network = NETWORKS[name](input_shape, classes, **options)
    vars(network)["built_from"] = {"name": name, "input_shape": list(input_shape), "classes": classes, **options}
    return network
