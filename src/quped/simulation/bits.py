"""Which parameters of a client's network are quantized, and with how many bits."""

from collections.abc import Mapping
from typing import NamedTuple, cast

from torch import nn

from quped.client import Client
from quped.errors import NetworkError, check, check_whole, is_whole
from quped.models import FunctionalNetwork, end_weights, quantizable
from quped.quant import FULL_PRECISION, MAX_BITS
from quped.quant.sizes import affordable_bits

BITS = (*range(1, MAX_BITS + 1), FULL_PRECISION)


class Weights(NamedTuple):
    """The names of weights that can be quantized."""

    inner: tuple[str, ...]
    """Those that are quantized by default."""
    ends: tuple[str, ...]
    """The first and the last."""

    @classmethod
    def of(cls, module: nn.Module) -> "Weights":
        """Return the weights of a module."""
        return cls(quantizable(module), end_weights(module))


def client_bits(client: Client, who: str, network: FunctionalNetwork, weights: Weights) -> dict[str, int]:
    """Return the bits of each parameter that a client quantizes."""
    if isinstance(client.bits, Mapping):
        check(client.quantize is None, f"'quantize' of {who}", "left out: 'bits' names the tensors", client.quantize)
        chosen = {name: width(bits, f"'bits' of '{name}' of {who}") for name, bits in client.bits.items()}
    else:
        listed = client.quantize is None or isinstance(client.quantize, list | tuple)
        check(listed, f"'quantize' of {who}", "a list of names of parameters", client.quantize)
        names = weights.inner if client.quantize is None else tuple(client.quantize)
        chosen = dict.fromkeys(names, width(client.bits, f"'bits' of {who}"))
    if client.end_bits is not None:
        check(client.bits != FULL_PRECISION, f"'end_bits' of {who}", "left out with bits=32", client.end_bits)
        chosen = end_bits(client, who, network, weights) | chosen
    quantized = {name: bits for name, bits in chosen.items() if bits < FULL_PRECISION}
    if not quantized and client.bits != FULL_PRECISION:
        raise NetworkError(
            f"The network of {who}, {network.name}, has nothing to quantize (it may have no layer between the "
            f"first and the last): name parameters with quantize=[...]. It has {', '.join(network.initial.params)}."
        )
    # A list of names is checked at 32 bits as well.
    named = quantized if client.quantize is None else chosen
    try:
        network.check_quantizable(tuple(named))
    except NetworkError as error:
        raise NetworkError(f"The network of {who} cannot be quantized: {error}") from error
    return quantized


def end_bits(client: Client, who: str, network: FunctionalNetwork, weights: Weights) -> dict[str, int]:
    """Return the bits of the first and the last weight."""
    check_whole(f"'end_bits' of {who}", client.end_bits, 1, MAX_BITS)
    most = int(client.end_bits or 0)
    tensors = {name: network.initial.params[name] for name in weights.ends}
    return {
        name: affordable_bits(tensor.numel(), len(tensor) if client.per_channel else 1, most)
        for name, tensor in tensors.items()
    }


def width(bits: object, what: str) -> int:
    """Return a bit-width, if it is one."""
    check(is_whole(bits) and bits in BITS, what, "one of 1..8 or 32", bits)
    return int(cast(int, bits))
