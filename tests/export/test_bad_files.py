"""Files that are damaged or made to harm: a clear error or a correct read, and little memory."""

import gzip
import json
import random
import struct
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.mutations import mutated
from helpers.quantized_nets import Everything, quantize_at_random, same_bits

from quped.errors import ModelFileError, QupedError
from quped.export import PackedModel, from_bytes, read, to_bytes

MUTATIONS = 300


def example() -> PackedModel:
    """Return a small model with all kinds of tensors."""
    module = Everything()
    books = quantize_at_random(module, {"conv.weight": 3, "middle.weight": 16}, per_channel=True, seed=0)
    return PackedModel.of(module, books, client="phone", accuracy=0.5)


def parts(raw: bytes) -> tuple[dict[str, Any], bytes]:
    """Return the header and the data of a file."""
    plain = gzip.decompress(raw)
    (length,) = struct.unpack("<Q", plain[:8])
    return json.loads(plain[8 : 8 + length]), plain[8 + length :]


def joined(header: dict[str, Any] | str, data: bytes) -> bytes:
    """Return the file of a header and data."""
    text = (header if isinstance(header, str) else json.dumps(header)).encode("utf-8", "surrogatepass")
    return gzip.compress(struct.pack("<Q", len(text)) + text + data)


def test_a_damaged_file_is_refused_or_read_correctly() -> None:
    model, rng = example(), random.Random(0)
    raw, state = to_bytes(model), model.state()
    refused = 0
    for _ in range(MUTATIONS):
        try:
            again = from_bytes(mutated(raw, rng), "it")
        except QupedError:
            refused += 1
        else:  # a byte of gzip's header that says nothing
            assert again.info == model.info
            assert all(same_bits(tensor, state[name]) for name, tensor in again.state().items())
    assert refused > 0.9 * MUTATIONS


def test_a_damaged_file_without_checksum_gives_an_error_or_a_sound_model() -> None:
    """Other values cannot be noticed there, but whatever is read can be used and written."""
    plain, rng = gzip.decompress(to_bytes(example())), random.Random(1)
    header = 8 + struct.unpack("<Q", plain[:8])[0]
    for i in range(MUTATIONS):
        part = mutated(plain[:header], rng) + plain[header:] if i % 2 else plain[:header] + mutated(plain[header:], rng)
        try:
            again = from_bytes(part, "it")
        except QupedError:
            continue
        for name, tensor in from_bytes(to_bytes(again), "it").state().items():
            assert same_bits(tensor, again.state()[name])


def edited(change: Callable[[dict[str, Any], dict[str, Any]], None]) -> bytes:
    """Return a file with another header and metadata."""
    header, data = parts(to_bytes(example()))
    about = json.loads(header["__metadata__"]["quped"])
    change(header, about)
    if "__metadata__" in header and "quped" in header["__metadata__"]:
        header["__metadata__"]["quped"] = json.dumps(about)
    return joined(header, data)


def put(*path: str | int, value: object) -> Callable[[dict[str, Any], dict[str, Any]], None]:
    """Return a change of one value in the header; with `quped` first, in the metadata."""

    def change(header: dict[str, Any], about: dict[str, Any]) -> None:
        here: Any = about if path[0] == "quped" else header
        keys = path[1:] if path[0] == "quped" else path
        for key in keys[:-1]:
            here = here[key]
        here[keys[-1]] = value

    return change


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (put("__metadata__", value={}), "no metadata"),
        (put("__metadata__", value=[]), "metadata are no words"),
        (put("__metadata__", "other", value=1), "metadata are no words"),
        (put("quped", "version", value=2), "version 2 .* Use the quped"),
        (put("quped", "version", value=True), "version True"),
        (put("quped", "packed", value=[]), "what is packed"),
        (put("quped", "float16", value=1), "what is packed"),
        (put("quped", "packed", "gone", value=[1, 2]), "packed 'gone'"),
        (put("quped", "packed", "conv.weight", value=[0, 5, 2, 3, 3]), "packed 'conv.weight'"),
        (put("quped", "packed", "conv.weight", value=[9, 5, 2, 3, 3]), "packed 'conv.weight'"),
        (put("quped", "packed", "conv.weight", value=[2, 5, -2, 3, 3]), "packed 'conv.weight'"),
        (put("quped", "packed", "conv.weight", value=[2, 5, 2, 3, 3.0]), "packed 'conv.weight'"),
        (put("quped", "packed", "conv.weight", value=[2, 5, 2, 3, 0]), "packed 'conv.weight'"),
        (put("quped", "packed", "conv.weight", value=[2] + [2**47] * 64), "packed 'conv.weight'"),
        (put("quped", "packed", "conv.weight", value=[2] + [2**47] * 60), "packed bytes of 'conv.weight'"),
        (put("quped", "packed", "conv.weight", value=[2, 6, 2, 3, 3]), "packed bytes of 'conv.weight'"),
        (put("quped", "packed", "conv.weight", value=[1, 10, 2, 3, 3]), "centers of 'conv.weight'"),
        (put("quped", "packed", "conv.weight", value=[2, 10, 9]), "5 groups of centers"),
        (put("quped", "packed", "mask", value=[8, 3]), "packed 'mask'"),
        (put("mask", "dtype", value="F8"), "no dtype"),
        (put("mask", "dtype", value=["U8"]), "no dtype"),
        (put("mask", "shape", value=[4]), "bytes of 'mask'"),
        (put("mask", "shape", value=3), "no sizes"),
        (put("mask", "shape", value=[-3]), "no sizes"),
        (put("mask", "shape", value=[True, 3]), "no sizes"),
        (put("mask", "shape", value=[2**60, 2**60]), "no sizes"),
        (put("mask", "data_offsets", value=[0, 3]), "where others end"),
        (put("mask", "data_offsets", value=[0, 3, 6]), "no sizes"),
        (put("mask", "data_offsets", value=[10**9, 10**9 + 3]), "where others end"),
        (put("mask", "more", value=1), "describe 'mask'"),
        (put("mask", value=7), "describe 'mask'"),
    ],
)
def test_headers_that_lie(change: Callable[[dict[str, Any], dict[str, Any]], None], reason: str) -> None:
    with pytest.raises(ModelFileError, match=f"it cannot be read: .*{reason}"):
        from_bytes(edited(change), "it")


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        ("[1, 2]", "no JSON object"),
        ('{"a": 1, "a": 2}', "there twice"),
        ('{"__metadata__": {"quped": "{\\"version\\": 1, \\"version\\": 1}"}}', "there twice"),
        ('{"a": NaN}', "no number"),
        ('{"a": 1e999}', "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ('{"\\ud800": 1}', "not valid JSON"),
        ("{", "not valid JSON"),
        ("\ud800", "not valid JSON"),
        ('{"a": ' + "9" * 10_000 + "}", "not valid JSON"),
    ],
)
def test_headers_that_are_no_json(header: str, reason: str) -> None:
    with pytest.raises(ModelFileError, match=f"it cannot be read: .*{reason}"):
        from_bytes(joined(header, b""), "it")


@pytest.mark.parametrize("name", ["conv.weight", "conv.weight.centers"])
def test_data_that_lie(name: str) -> None:
    header, data = parts(to_bytes(example()))
    begin, end = header[name]["data_offsets"]
    bad = b"\xff" * (end - begin)  # the index 3 of 3 centers, NaN
    with pytest.raises(ModelFileError, match=r"'conv\.weight' is damaged"):
        from_bytes(joined(header, data[:begin] + bad + data[end:]), "it")
    begin, end = header["mask"]["data_offsets"]
    with pytest.raises(ModelFileError, match="True and False"):
        from_bytes(joined(header, data[:begin] + b"\x02" * 3 + data[end:]), "it")


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "cut off"),
        (b"\x1f\x8b", "cut off"),
        (b"hello, world", "header has"),
        (gzip.compress(b""), "cut off"),
        (to_bytes(example())[:-1], "cut off"),
        (to_bytes(example()) + b"\0", "does not end"),
        (to_bytes(example()) * 2, "does not end"),
        (gzip.compress(gzip.decompress(to_bytes(example())) + b"\0"), "does not end"),
        (gzip.decompress(to_bytes(example())) + b"\0", "does not end"),
        (gzip.decompress(to_bytes(example()))[:-1], "cut off"),
        (to_bytes(example())[:-8] + bytes(8), "decompressed"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_files_that_are_not_whole(raw: bytes, reason: str) -> None:
    with pytest.raises(ModelFileError, match=f"it cannot be read: .*{reason}"):
        from_bytes(raw, "it")


def test_a_large_file_is_refused_by_its_beginning(tmp_path: Path) -> None:
    """A gigabyte that is no model takes no memory."""
    with (tmp_path / "a.quped").open("wb") as file:
        file.write(b"no model")
        file.truncate(10**9)
    tracemalloc.start()
    try:
        with pytest.raises(ModelFileError, match=r"a\.quped cannot be read"):
            read(tmp_path / "a.quped")
        assert tracemalloc.get_traced_memory()[1] < 10**6
    finally:
        tracemalloc.stop()


def bomb(header: dict[str, Any], size: int) -> bytes:
    """Return a small file that decompresses to a header and `size` zeros."""
    text = json.dumps(header).encode()
    stream = zlib.compressobj(9, wbits=31)
    packed = [stream.compress(struct.pack("<Q", len(text)) + text)]
    packed += [stream.compress(bytes(10**6)) for _ in range(size // 10**6)]
    return b"".join([*packed, stream.flush()])


def test_bombs_take_little_memory() -> None:
    """100 MB of zeros in 100 kB, as a header, as a tensor, and as 1-bit indices of 800 million weights."""
    size = 10**8
    whole = {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}
    about = json.dumps({"version": 1, "packed": {"w": [1, 8, size]}})
    centers = {"dtype": "F32", "shape": [1, 1], "data_offsets": [size, size + 4]}
    bombs = [
        gzip.compress(bytes(10**6)) * 20,
        bomb({"w": whole}, size),
        bomb({"__metadata__": {"quped": about}, "w": whole, "w.centers": centers}, size),
    ]
    tracemalloc.start()  # it sees all that is decompressed
    try:
        for raw in bombs:
            with pytest.raises(ModelFileError, match="it cannot be read"):
                from_bytes(raw, "it")
        assert tracemalloc.get_traced_memory()[1] < 2 * 10**6
    finally:
        tracemalloc.stop()
