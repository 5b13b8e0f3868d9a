"""Which parameters of a client's network are quantized, and with how many bits."""

from collections.abc import Mapping
from typing import NamedTuple, cast

from torch import Tensor, nn

from quped.client import Client
from quped.data import Samples
from quped.errors import NetworkError, check, check_whole, is_whole
from quped.models import FunctionalNetwork, end_weights, quantizable
from quped.quant import FULL_PRECISION, MAX_BITS
from quped.quant.sizes import FLOAT_BYTES, affordable_bits, tensor_bytes
from quped.simulation.budget import Plan, parse_bytes, plan_bits
from quped.simulation.files import file_info
from quped.simulation.setup import SimClient

SMALL_FILE = 5_000
"""Bytes, below which it does not matter what is quantized."""
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


def budget_plan(
    client: Client, who: str, network: FunctionalNetwork, weights: Weights, samples: Samples, method: str, seed: int
) -> Plan:
    """Return the bits of each parameter with which a client's file stays within its budget."""
    alone = client.bits == FULL_PRECISION and client.end_bits is None
    check(alone, f"'budget' of {who}", "without 'bits' and 'end_bits', which follow from it", client.budget)
    budget = parse_bytes(client.budget, f"'budget' of {who}")
    names = (*weights.inner, *weights.ends) if client.quantize is None else tuple(client.quantize)
    info = file_info(client.name, method, network, samples, seed)
    return plan_bits(network, names, samples, budget, info, per_channel=client.per_channel, seed=seed, what=who)


def unquantized(client: Client, made: SimClient, weights: Weights) -> str | None:
    """Say how a client's file becomes smaller, if it is quantized and yet mostly float32 weights."""
    network, spec = made.network, made.spec
    params = network.initial.params
    floats = {name: FLOAT_BYTES * tensor.numel() for name, tensor in params.items() if name not in spec.bits}
    others = sum(tensor.numel() for tensor in (*network.frozen.values(), *network.initial.buffers.values()))
    plain = sum(floats.values()) + FLOAT_BYTES * others
    whole = plain + sum(packed_bytes(params[name], bits, spec.per_channel) for name, bits in spec.bits.items())
    if not spec.bits or not floats or whole < SMALL_FILE or plain <= whole / 2:
        return None
    largest = max(floats, key=lambda name: floats[name])
    size = f"The parameter '{largest}' of '{made.name}' takes {floats[largest]:,} of {whole:,} bytes"
    if largest in weights.ends and client.end_bits is None and client.budget is None:
        return f"{size}: pass end_bits=8 to store the first and the last layer with 8 bits."
    return f"{size}: add it to the parameters that are quantized." if largest in weights.inner else None


def packed_bytes(weights: Tensor, bits: int, per_channel: bool) -> int:
    """Return the bytes of packed weights."""
    return tensor_bytes(weights.numel(), len(weights) if per_channel else 1, bits)


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
