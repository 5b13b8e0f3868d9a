"""The native model file, `NAME.quped`: quantized tensors as packed indices with their centers, all others as they are.

docs/guide/files.md has its specification.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar, overload

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from quped._files import remove_drafts, write_bytes
from quped.errors import InvalidValueError, ModelFileError, QupedError, check, check_whole, did_you_mean
from quped.export._container import DTYPES, Reader, UnreadableError, content, encode, most_bytes, sizes, strict_json
from quped.models import build, quantizable
from quped.models.select import network_name
from quped.quant import FULL_PRECISION, MAX_BITS, Codebook, place
from quped.quant.packing import codebook_of, pack, unpack
from quped.quant.sizes import FLOAT_BYTES, index_bits, index_bytes
from quped.records import plain, versions
from quped.typing import Params

SUFFIX = ".quped"
KEY = "quped"
"""Of the metadata."""
VERSION = 1
CENTERS = ".centers"
"""Added to the name of a quantized tensor, it is the name of the centers."""
MOST_WORDS = 10_000
"""Letters of the description of a network."""

Module = TypeVar("Module", bound=nn.Module)


class PackedTensor(NamedTuple):
    """A quantized tensor."""

    centers: Tensor
    """`[groups, m]`, ascending, with one group or one per output channel."""
    indices: Tensor
    """`[groups, n]`, uint8: for each weight the number of its center."""
    shape: tuple[int, ...]

    @property
    def bits(self) -> int:
        """Bits of an index."""
        return index_bits(self.centers)

    def values(self) -> Tensor:
        """Return the weights."""
        return place(self.centers, self.indices, torch.Size(self.shape))

    def fault(self) -> str | None:
        """Say what is wrong with it, if anything."""
        if self.centers.dim() != 2 or not self.centers.is_floating_point() or not self.indices.numel():
            return "it is empty, or its centers are no rows of numbers"
        groups, m = self.centers.shape
        if groups not in (1, *self.shape[:1]):
            return f"it has {groups} groups of centers, neither 1 nor one per output channel"
        if not 1 <= m <= 2**MAX_BITS:
            return f"it has {m} centers, of at most {2**MAX_BITS}"
        if self.indices.numel() != math.prod(self.shape) or self.indices.shape[0] != groups:
            return "the number of its indices does not match its shape"
        if int(self.indices.max()) >= m:
            return f"it has an index above its {m} centers"
        if not bool(self.centers.isfinite().all()):
            return "its centers are not finite"
        if bool((self.centers.diff(dim=1) < 0).any()):
            return "its centers are not in ascending order"
        return None


@dataclass(frozen=True)
class PackedModel:
    """A model as its file holds it."""

    packed: dict[str, PackedTensor]
    """The quantized tensors."""
    tensors: Params
    """All others: parameters, trained or frozen, and buffers."""
    info: dict[str, Any] = field(default_factory=dict)
    """Where it comes from, as plain values. All are optional: `network` (if it is one of this package, what it is built
    from), `input_shape`, `classes`, `client`, `method`, `accuracy`, `versions`."""

    @classmethod
    def of(cls, module: nn.Module, codebooks: Mapping[str, Codebook], /, **info: Any) -> "PackedModel":
        """Return the model of a module whose quantized parameters have these codebooks."""
        rest = stored(module)
        packed = {}
        for name, book in codebooks.items():
            if name not in rest:
                raise ModelFileError(f"{network_name(module)} has no parameter '{name}'. {did_you_mean(name, rest)}")
            tensor = rest.pop(name)
            whole = PackedTensor(book.centers.detach(), book.indices, tuple(tensor.shape))
            fault = whole.fault()
            if fault is None and content(whole.values()) != content(tensor):
                fault = "its values are not those of its centers: harden the network first"
            if fault is not None:
                raise ModelFileError(f"The parameter '{name}' of {network_name(module)} cannot be packed: {fault}.")
            packed[name] = whole._replace(indices=book.indices.byte())
        return cls(packed, rest, complete(module, info))

    @property
    def floor(self) -> int:
        """Bytes of packed indices and float32 numbers, without names, shapes and compression."""
        packed = sum(
            index_bytes(t.indices.numel(), t.bits) + FLOAT_BYTES * t.centers.numel() for t in self.packed.values()
        )
        return packed + FLOAT_BYTES * sum(tensor.numel() for tensor in self.tensors.values())

    @property
    def float_bytes(self) -> int:
        """Bytes of the same model in float32."""
        counts = [t.indices.numel() for t in self.packed.values()] + [t.numel() for t in self.tensors.values()]
        return FLOAT_BYTES * sum(counts)

    def state(self) -> Params:
        """Return all tensors by name, quantized ones with their values; a tied weight is there once."""
        return self.tensors | {name: tensor.values() for name, tensor in self.packed.items()}

    def fill(self, module: Module) -> Module:
        """Put the tensors into a module with just these names, shapes and dtypes, and into evaluation mode."""
        state, own = self.state(), stored(module)
        check_same(own, state, network_name(module))
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(state[name])
        return module.eval()

    def module(self) -> nn.Module:
        """Return the network of this package that the model is of, in evaluation mode."""
        values = self.info.get("network")
        if not isinstance(values, dict) or len(json.dumps(values)) > MOST_WORDS:
            raise ModelFileError("It names no network of this package: pass a module with quped.load(path, module).")
        # Without memory at first, since a damaged file can name a network of any size.
        try:
            with torch.device("meta"):
                network = build(**values)
        except QupedError as error:
            raise ModelFileError(f"It names a network that cannot be built: {error}") from error
        except Exception as error:  # whatever a constructor does with options of a wrong kind
            raise ModelFileError(f"It names a network that cannot be built from {values}: {error}") from error
        check_same(stored(network), self.state(), str(values["name"]))
        return self.fill(network.to_empty(device="cpu"))


def stored(module: nn.Module) -> Params:
    """Return the tensors of a module that its file holds: all parameters, and the buffers of its state dict.

    Unlike a state dict, a weight that several layers share is there once.
    """
    if any(is_lazy(parameter) for parameter in module.parameters()):
        raise ModelFileError(f"{network_name(module)} has lazy layers without weights: run one forward pass first.")
    persistent = module.state_dict().keys()
    buffers = {name: buffer for name, buffer in module.named_buffers() if name in persistent}
    return {name: tensor.detach() for name, tensor in (*module.named_parameters(), *buffers.items())}


def complete(module: nn.Module, info: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a file says of a module and its origin."""
    built_from = getattr(module, "built_from", None)
    network = {"network": built_from} if isinstance(built_from, dict) else {}
    return dict(plain({**network, **info, "versions": writers()}))


@cache
def writers() -> dict[str, str]:
    """Return the versions that a file names."""
    return {name: version for name, version in versions().items() if name in ("quped", "torch")}


def check_same(own: Params, state: Params, name: str) -> None:
    """Raise unless tensors have the names, shapes and dtypes of a network's own."""
    remedy = "It is the file of another network."
    if missing := [key for key in own if key not in state]:
        raise ModelFileError(f"It lacks '{missing[0]}' of {name}. {remedy}")
    if strange := [key for key in state if key not in own]:
        raise ModelFileError(f"It holds '{strange[0]}', which {name} has not. {remedy}")
    for key, tensor in own.items():
        for what in ("shape", "dtype"):
            mine, other = getattr(tensor, what), getattr(state[key], what)
            if mine != other:
                mine, other = (tuple(value) if what == "shape" else value for value in (mine, other))
                raise ModelFileError(f"Its '{key}' has the {what} {other}, that of {name} has {mine}. {remedy}")


def to_bytes(model: PackedModel, *, float16: bool = False) -> bytes:
    """Return the file of a model."""
    tensors = halved(model.tensors) if float16 else dict(model.tensors)
    for name, tensor in model.packed.items():
        tensors |= {name: pack(tensor.indices, tensor.bits), name + CENTERS: tensor.centers}
    for name, held in tensors.items():
        if held.dtype not in DTYPES.values():
            raise ModelFileError(f"The tensor '{name}' is {held.dtype}, which no file can hold.")
    raw = encode(tensors, metadata(model.info, {n: (t.bits, *t.shape) for n, t in model.packed.items()}, float16))
    from_bytes(raw, "The file of this model")  # nothing is written that could not be read
    return raw


def metadata(info: Mapping[str, Any], packed: Mapping[str, tuple[int, ...]], float16: bool = False) -> dict[str, str]:
    """Return the metadata of a file: `packed` holds the bits and the shape of each quantized tensor."""
    about = {**info, "version": VERSION, "packed": packed, **({"float16": True} if float16 else {})}
    return {KEY: json.dumps(about, separators=(",", ":"))}


def most_file_bytes(module: nn.Module, bits: Mapping[str, int], per_channel: bool, /, **info: Any) -> int:
    """Return how large the file of a module can be, whatever its values, with these bits for some parameters."""
    tensors, packed = stored(module), {}
    for name, width in bits.items():
        whole = tensors[name]
        packed[name] = (width, *whole.shape)
        centers = (len(whole) if per_channel else 1, 2**width)
        tensors[name] = torch.empty(index_bytes(whole.numel(), width), dtype=torch.uint8, device="meta")
        tensors[name + CENTERS] = torch.empty(centers, dtype=whole.dtype, device="meta")
    return most_bytes(tensors, metadata(complete(module, info), packed))


def halved(tensors: Params) -> Params:
    """Return tensors with float32 as float16."""
    if already := [name for name, tensor in tensors.items() if tensor.dtype == torch.float16]:
        raise ModelFileError(f"float16=True is for networks in float32, and '{already[0]}' is float16 already.")
    halves = {name: tensor.half() for name, tensor in tensors.items() if tensor.dtype == torch.float32}
    for name, half in halves.items():
        if not torch.equal(half.isfinite(), tensors[name].isfinite()):
            raise ModelFileError(f"The numbers of '{name}' are too large for float16: leave out float16=True.")
    return {**tensors, **halves}


def from_bytes(raw: bytes, name: str) -> PackedModel:
    """Return the model of a file; `name` is how errors call it."""
    return from_file(BytesIO(raw), len(raw), name)


def from_file(file: BinaryIO, size: int, name: str) -> PackedModel:
    """Return the model of an open file with so many bytes."""
    try:
        return decoded(Reader(file, size))
    except UnreadableError as error:
        raise ModelFileError(f"{name} cannot be read: {error}") from error


def decoded(reader: Reader) -> PackedModel:
    """Return the model of a file whose container is sound."""
    about = strict_json(reader.metadata.get(KEY, "null").encode())
    if not isinstance(about, dict):
        raise UnreadableError(f"it has no metadata '{KEY}'", "Only files that quped wrote can be read.")
    version = about.pop("version", None)
    if type(version) is not int or version != VERSION:
        raise UnreadableError(
            f"it has version {version!r} of the format, not {VERSION}", "Use the quped that wrote it."
        )
    float16, listed = about.pop("float16", False), about.pop("packed", None)
    if not isinstance(listed, dict) or not isinstance(float16, bool):
        raise UnreadableError("its metadata do not say what is packed")
    layouts = {name: layout(reader, name, values) for name, values in listed.items()}
    memory = sum(entry.end - entry.begin for entry in reader.entries.values())
    memory += sum(FLOAT_BYTES * math.prod(shape) for _, shape in layouts.values())
    if memory > reader.limit:
        raise UnreadableError(f"its weights would take {memory:,} bytes, far more than the file")
    rest = reader.tensors()
    packed = {name: unpacked(name, rest.pop(name), rest.pop(name + CENTERS), *how) for name, how in layouts.items()}
    if float16:
        rest = {name: tensor.float() if tensor.dtype == torch.float16 else tensor for name, tensor in rest.items()}
    return PackedModel(packed, rest, about)


def layout(reader: Reader, name: str, values: object) -> tuple[int, tuple[int, ...]]:
    """Check how a file describes a packed tensor; return its bits and its shape."""
    numbers, codes, centers = sizes(values), reader.entries.get(name), reader.entries.get(name + CENTERS)
    if not numbers or 0 in numbers or numbers[0] > MAX_BITS or codes is None or centers is None:
        raise UnreadableError(f"it does not describe the packed '{name}'")
    bits, shape = numbers[0], numbers[1:]
    if codes.dtype != torch.uint8 or codes.shape != (index_bytes(math.prod(shape), bits),):
        raise UnreadableError(f"the packed bytes of '{name}' do not match its shape")
    if not centers.dtype.is_floating_point or len(centers.shape) != 2 or not 1 <= centers.shape[1] <= 2**bits:
        raise UnreadableError(f"the centers of '{name}' do not match its bits")
    return bits, shape


def unpacked(name: str, codes: Tensor, centers: Tensor, bits: int, shape: tuple[int, ...]) -> PackedTensor:
    """Return a quantized tensor from its bytes and its centers."""
    try:
        indices = unpack(codes, bits, math.prod(shape))
    except InvalidValueError as error:
        raise UnreadableError(f"'{name}' is damaged: {error}") from None
    groups = len(centers) if shape and len(centers) == shape[0] else 1
    tensor = PackedTensor(centers, indices.reshape(groups, -1), shape)
    if fault := tensor.fault():
        raise UnreadableError(f"'{name}' is damaged: {fault}")
    return tensor


def write_file(path: Path | str, raw: bytes) -> None:
    """Write a file that is whole or not there, and the folder for it; a failure leaves an older file as it was."""
    try:
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_drafts(path.parent, path.name)
        write_bytes(path, raw)
    except OSError as error:
        raise ModelFileError(f"{path} cannot be written: {error.strerror}.") from error


def read(path: Path | str) -> PackedModel:
    """Return the model of a file."""
    try:
        with Path(path).open("rb") as file:
            return from_file(file, Path(path).stat().st_size, str(path))
    except OSError as error:
        raise ModelFileError(f"{path} cannot be read: {error.strerror}.") from error


def save(
    module: nn.Module,
    path: Path | str,
    *,
    bits: int | Mapping[str, int] | None = None,
    codebooks: Mapping[str, Codebook] | None = None,
    float16: bool = False,
) -> None:
    """Write a module to a packed file. Give either `bits` or `codebooks`.

    Arguments:
        module: A network whose weights are quantized already.
        path: The file, usually with the ending `.quped`.
        bits: 1 to 8: the weights between the first and the last layer have at most 2^bits values each.
            A mapping names the quantized parameters, each with its bits. 32 packs nothing.
        codebooks: The quantized parameters with their codebooks, such as `optimizer.codebooks()`.
        float16: Store all other float32 numbers as float16. This rounds them.
    """
    check((bits is None) != (codebooks is None), "arguments", "either bits=... or codebooks=...", (bits, codebooks))
    if codebooks is None:
        codebooks = exact_codebooks(module, bits)
    write_file(path, to_bytes(PackedModel.of(module, codebooks), float16=float16))


def exact_codebooks(module: nn.Module, bits: int | Mapping[str, int] | None) -> dict[str, Codebook]:
    """Return codebooks of the values that parameters have."""
    state = stored(module)
    if not isinstance(bits, Mapping):
        if bits == FULL_PRECISION:
            return {}
        check_whole("bits", bits, 1, MAX_BITS)
        bits = dict.fromkeys(quantizable(module), int(bits or 0))
        if not bits:
            raise ModelFileError(
                f"{network_name(module)} has no layer between the first and the last: name parameters, as in "
                "bits={'1.weight': 2}."
            )
    books = {}
    for name, width in bits.items():
        check_whole(f"bits of '{name}'", width, 1, MAX_BITS)
        if name not in state:
            raise ModelFileError(f"{network_name(module)} has no parameter '{name}'. {did_you_mean(name, state)}")
        try:
            books[name] = codebook_of(state[name], width)
        except InvalidValueError as error:
            raise ModelFileError(
                f"The parameter '{name}' of {network_name(module)} cannot be packed: {error}"
            ) from error
    return books


@overload
def load(path: Path | str) -> nn.Module | Params: ...


@overload
def load(path: Path | str, module: Module) -> Module: ...


def load(path: Path | str, module: Module | None = None) -> Module | nn.Module | Params:
    """Read a packed file.

    Arguments:
        path: The file.
        module: A network with the names, shapes and dtypes of the file, whose tensors are replaced.
            Without it, a network of this package is built, and of other networks the tensors are returned.

    Returns:
        The network in evaluation mode, or the tensors by name.
    """
    model = read(path)
    try:
        if module is not None:
            return model.fill(module)
        return model.module() if "network" in model.info else model.state()
    except ModelFileError as error:
        raise ModelFileError(f"{path} cannot be loaded: {error}") from error
