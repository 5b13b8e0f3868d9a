"""The container of a model file: a gzip stream of a safetensors file, written here and read strictly.

A safetensors file is 8 bytes with the length of a JSON header, the header, and the bytes of the tensors.
Nothing that a file says is believed before it is checked, and memory is allocated for checked sizes only.
"""

import json
import math
import struct
import zlib
from collections.abc import Mapping
from itertools import groupby
from typing import Any, BinaryIO, NamedTuple

import torch
from torch import Tensor

DTYPES = {
    "C64": torch.complex64,
    "F64": torch.float64,
    "I64": torch.int64,
    "U64": torch.uint64,
    "F32": torch.float32,
    "I32": torch.int32,
    "U32": torch.uint32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I16": torch.int16,
    "U16": torch.uint16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""The types of safetensors. Tensors are stored in this order: the largest numbers first, so that all are aligned."""

METADATA = "__metadata__"
MAGIC = b"\x1f\x8b"
"""Of a gzip stream. As the length of a header these bytes would be followed by zeros, so the two cannot be confused."""
MOST_HEADER = 4_000_000
"""Bytes of a header: enough for 30,000 tensors."""
MOST_DIMENSIONS = 64
CHUNK = 65_536
"""Bytes that are read at once."""
STORED, STORED_BLOCK = 5, 16_383
"""Data that cannot be compressed are stored as they are, in blocks of at least so many bytes with 5 more for each."""
MOST_MEMORY, MOST_GROWTH = 64_000_000, 256
"""A file may take so many bytes in memory, and as many times its own. At 1 bit, float32 weights are 32 times as large;
a stream that is made to exhaust memory can be 1000 times as large."""


class UnreadableError(Exception):
    """A file that is not what it should be: the cause, and what to do about it."""

    def __init__(self, cause: str, remedy: str = "It is damaged, or no model file: copy it or save it again.") -> None:
        super().__init__(f"{cause}. {remedy}")


class Entry(NamedTuple):
    """A tensor as a header describes it."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int
    end: int


def encode(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    """Return the file of these tensors. Equal tensors and metadata give equal bytes with one version of zlib."""
    header, sections = arrange(tensors, metadata)
    return compress([header, *(b"".join(map(content, section)) for section in sections)])


def most_bytes(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> int:
    """Return how large the file of tensors with these shapes and dtypes can be, whatever their values."""
    header, sections = arrange(tensors, metadata)
    sizes = [sum(tensor.numel() * tensor.element_size() for tensor in section) for section in sections]
    return len(compress([header])) + sum(size + STORED * (size // STORED_BLOCK + 2) for size in sizes)


def arrange(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> tuple[bytes, list[list[Tensor]]]:
    """Return the header of a file with its length, and the tensors of each dtype."""
    names = {dtype: name for name, dtype in DTYPES.items()}
    order = list(names)
    header: dict[str, Any] = {METADATA: dict(metadata)}
    sections, end = list[list[Tensor]](), 0
    arranged = sorted(tensors.items(), key=lambda item: (order.index(item[1].dtype), item[0]))
    for dtype, group in groupby(arranged, key=lambda item: item[1].dtype):
        sections.append([])
        for name, tensor in group:
            sections[-1].append(tensor)
            begin, end = end, end + tensor.numel() * tensor.element_size()
            header[name] = {"dtype": names[dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text, sections


def content(tensor: Tensor) -> bytes:
    """Return the bytes of a tensor in row-major order."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def compress(sections: list[bytes]) -> bytes:
    """Return sections as one gzip stream without a date; each section gets a Huffman code that suits it."""
    stream = zlib.compressobj(9, wbits=31, memLevel=9)
    parts = [part for section in sections for part in (stream.compress(section), stream.flush(zlib.Z_BLOCK))]
    return b"".join([*parts, stream.flush()])


class Reader:
    """A file of which the header is read and checked, and then, if it is wanted, the tensors."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self.limit = MOST_MEMORY + MOST_GROWTH * size
        """Bytes that this file may take in memory."""
        self._stream = Stream(file)
        (length,) = struct.unpack("<Q", self._stream.take(8))
        if length > MOST_HEADER:
            raise UnreadableError(f"its header has {length:,} bytes, of at most {MOST_HEADER:,}")
        header = strict_json(self._stream.take(length))
        if not isinstance(header, dict):
            raise UnreadableError("its header is no JSON object")
        metadata = header.pop(METADATA, {})
        if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
            raise UnreadableError("its metadata are no words")
        self.metadata: dict[str, str] = metadata
        self.entries = {name: entry(name, values) for name, values in header.items()}
        self._end = 0
        for name, held in sorted(self.entries.items(), key=lambda item: item[1][2:]):
            if held.begin != self._end:
                raise UnreadableError(f"the bytes of '{name}' do not begin where others end")
            self._end = held.end
        if self._end > self.limit:
            raise UnreadableError(f"its tensors have {self._end:,} bytes, far more than the file")

    def tensors(self) -> dict[str, Tensor]:
        """Read the tensors; the file must end with them."""
        data = self._stream.take(self._end)
        self._stream.finish()
        return {name: tensor(name, held, data) for name, held in self.entries.items()}


def entry(name: str, values: object) -> Entry:
    """Check how a header describes a tensor."""
    if not isinstance(values, dict) or values.keys() != {"dtype", "shape", "data_offsets"}:
        raise UnreadableError(f"its header does not describe '{name}' by dtype, shape and data_offsets")
    dtype = DTYPES.get(values["dtype"]) if isinstance(values["dtype"], str) else None
    if dtype is None:
        raise UnreadableError(f"'{name}' has no dtype that is known")
    shape, offsets = sizes(values["shape"]), sizes(values["data_offsets"])
    if shape is None or offsets is None or len(offsets) != 2:
        raise UnreadableError(f"the shape or the offsets of '{name}' are no sizes")
    if offsets[1] - offsets[0] != math.prod(shape) * dtype.itemsize:
        raise UnreadableError(f"the bytes of '{name}' do not match its shape")
    return Entry(dtype, shape, *offsets)


def sizes(values: object) -> tuple[int, ...] | None:
    """Return a list of sizes, or None if one of them is none."""
    if not isinstance(values, list) or len(values) > MOST_DIMENSIONS:
        return None
    return tuple(values) if all(type(value) is int and 0 <= value < 2**48 for value in values) else None


def tensor(name: str, held: Entry, data: bytes) -> Tensor:
    """Return a tensor with memory of its own."""
    if held.begin == held.end:
        return torch.empty(held.shape, dtype=held.dtype)
    raw = torch.frombuffer(bytearray(data[held.begin : held.end]), dtype=torch.uint8)
    if held.dtype == torch.bool and bool((raw > 1).any()):
        raise UnreadableError(f"'{name}' holds other values than True and False")
    return raw.view(held.dtype).reshape(held.shape)


def strict_json(text: bytes) -> Any:
    """Return the value of a JSON text in which no key is there twice, and every number and character is a real one."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(found := dict(pairs)) < len(pairs):
            raise ValueError("a key is there twice")
        return found

    def no_number(word: str) -> None:
        raise ValueError(f"{word} is no number")

    try:
        value = json.loads(text.decode(), object_pairs_hook=once, parse_constant=no_number)
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()  # fails for half of a surrogate pair
    except (ValueError, RecursionError) as error:
        raise UnreadableError(f"its header is not valid JSON: {error}") from None
    return value


class Stream:
    """The bytes of a file, read and decompressed as far as they are asked for."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        compressed = file.read(len(MAGIC)) == MAGIC
        file.seek(0)
        self._gzip = zlib.decompressobj(31) if compressed else None

    def take(self, count: int) -> bytes:
        """Return the next `count` bytes."""
        parts = []
        while count and (part := self._next(count)):
            parts.append(part)
            count -= len(part)
        if count:
            raise UnreadableError("it is cut off")
        return b"".join(parts)

    def finish(self) -> None:
        """Raise unless all has been read, and the checksum of a gzip stream is right."""
        if self._next(1) or (self._gzip is not None and self._gzip.unused_data) or self._file.read(1):
            raise UnreadableError("it does not end with its last tensor")
        if self._gzip is not None and not self._gzip.eof:
            raise UnreadableError("it is cut off")

    def _next(self, most: int) -> bytes:
        """Return some of the next bytes, none at the end."""
        if self._gzip is None:
            return self._file.read(min(most, CHUNK))
        try:
            while not self._gzip.eof:
                held = self._gzip.unconsumed_tail or self._file.read(CHUNK)
                part = self._gzip.decompress(held, most)
                if part or not held:
                    return part
        except zlib.error as error:
            raise UnreadableError(f"it cannot be decompressed ({error})") from None
        return b""
