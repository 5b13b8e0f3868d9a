"""A model comes back from its file bit for bit."""

import gzip
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from helpers.quantized_nets import Everything, quantize_at_random, same_bits, same_states
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import quped
from quped.errors import InvalidValueError, ModelFileError
from quped.export import PackedModel, from_bytes, read, to_bytes, write_file
from quped.export._container import encode, most_bytes
from quped.models import build, quantizable
from quped.quant import Codebook, hard, initial_centers


def packed_cnn(bits: int = 2, *, per_channel: bool = False) -> nn.Module:
    """Return CNN1 with quantized weights between its first and last layer."""
    torch.manual_seed(0)
    network = build("cnn1", (1, 8, 8), 10)
    with torch.no_grad():
        for name in quantizable(network):
            weight = network.get_parameter(name)
            weight.copy_(hard(weight, initial_centers(weight, 2**bits, "kmeans", per_channel=per_channel)))
    return network


@settings(max_examples=60, deadline=None)
@given(
    m=st.one_of(st.just(3), st.integers(1, 8).map(lambda bits: 2**bits), st.integers(1, 256)),
    names=st.sets(st.sampled_from(["conv.weight", "middle.weight", "frozen.weight", "norm.weight"])),
    per_channel=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_every_kind_of_tensor_comes_back(m: int, names: set[str], per_channel: bool, seed: int) -> None:
    module = Everything()
    module(torch.randn(4, 2, 8, 8))  # the counter of BatchNorm is now 1
    books = quantize_at_random(module, dict.fromkeys(names, m), per_channel=per_channel, seed=seed)
    model = from_bytes(to_bytes(PackedModel.of(module, books, client="phone")), "it")
    assert model.info["client"] == "phone"
    assert model.packed.keys() == names
    for name, book in books.items():
        assert same_bits(model.packed[name].centers, book.centers)
        assert same_bits(model.packed[name].indices, book.indices)
    again = model.fill(Everything())
    assert same_states(module, again)
    assert again.twin.weight is again.middle.weight
    assert again.get_buffer("norm.num_batches_tracked").shape == ()
    assert not again.training
    assert "scratch" not in model.tensors
    assert "twin.weight" not in model.state()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_networks_of_other_types_come_back(dtype: torch.dtype) -> None:
    module, other = nn.Linear(4, 2).to(dtype), nn.Linear(4, 2).to(dtype)
    centers = torch.tensor([[-0.1, 0.3]]).to(dtype)
    with torch.no_grad():
        module.weight.copy_(centers.repeat(2, 2))
    books = {"weight": Codebook(centers, torch.tensor([[0, 1] * 4]))}
    model = from_bytes(to_bytes(PackedModel.of(module, books)), "it")
    assert same_states(module, model.fill(other))


@pytest.mark.parametrize("per_channel", [False, True])
def test_a_network_of_this_package_is_rebuilt(per_channel: bool, tmp_path: Path) -> None:
    network = packed_cnn(per_channel=per_channel)
    before = torch.random.get_rng_state()
    quped.save(network, tmp_path / "a.quped", bits=2)
    again = quped.load(tmp_path / "a.quped")
    assert torch.equal(before, torch.random.get_rng_state())
    assert isinstance(again, nn.Module)
    assert same_states(network, again)
    assert not again.training
    assert again.built_from == {"name": "cnn1", "input_shape": [1, 8, 8], "classes": 10}
    model = read(tmp_path / "a.quped")
    assert {name: (t.bits, len(t.centers)) for name, t in model.packed.items()} == {
        name: (2, len(network.get_parameter(name)) if per_channel else 1) for name in quantizable(network)
    }
    assert (tmp_path / "a.quped").stat().st_size <= 1.03 * model.floor
    assert model.float_bytes == 4 * sum(p.numel() for p in network.parameters())


def test_other_networks_come_back_as_tensors_or_into_a_module(tmp_path: Path) -> None:
    module = Everything()
    books = quantize_at_random(module, {"middle.weight": 4}, per_channel=False, seed=0)
    quped.save(module, tmp_path / "a.quped", codebooks=books)
    tensors = quped.load(tmp_path / "a.quped")
    assert isinstance(tensors, dict)
    assert same_bits(tensors["middle.weight"], module.middle.weight)
    assert same_states(module, quped.load(tmp_path / "a.quped", Everything()))


def test_plain_safetensors_are_read_as_well() -> None:
    """The container is the usual one: its library reads it, and the file without compression is read here."""
    raw = to_bytes(PackedModel.of(network := packed_cnn(), {}))
    plain = gzip.decompress(raw)
    assert same_states(network, from_bytes(plain, "it").module())
    tensors = safetensors.torch.load(plain)
    assert all(same_bits(tensors[name], tensor) for name, tensor in network.state_dict().items())
    assert raw[4:8] == bytes(4), "no date"


def test_the_specification() -> None:
    """Written by hand from docs/guide/files.md: 2-bit indices 0, 1, 2, 0, 1 of a tensor [5] with three centers."""
    about = {"version": 1, "packed": {"w": [2, 5]}, "client": "me"}
    header = {
        "__metadata__": {"quped": json.dumps(about)},
        "w.centers": {"dtype": "F32", "shape": [1, 3], "data_offsets": [0, 12]},
        "w": {"dtype": "U8", "shape": [2], "data_offsets": [12, 14]},
    }
    text = json.dumps(header).encode()
    centers = torch.tensor([[-1.0, 0.0, 2.0]]).numpy().tobytes()
    plain = len(text).to_bytes(8, "little") + text + centers + bytes([0b00_10_01_00, 0b01])
    model = from_bytes(gzip.compress(plain), "it")
    assert model.state()["w"].tolist() == [-1.0, 0.0, 2.0, -1.0, 0.0]
    assert model.info == {"client": "me"}


def test_more_values_than_bits_allow_is_an_error(tmp_path: Path) -> None:
    network = build("cnn1", (1, 8, 8), 10)
    with pytest.raises(ModelFileError, match=r"'features.1.weight' of cnn1 .*different values, and 2 bits allow 4"):
        quped.save(network, tmp_path / "a.quped", bits=2)
    assert not list(tmp_path.iterdir())
    quped.save(network, tmp_path / "a.quped", bits=32)
    assert read(tmp_path / "a.quped").packed == {}


def test_codebooks_that_do_not_belong_to_the_module() -> None:
    network, books = packed_cnn(), {}
    centers, indices = torch.tensor([[-1.0, 1.0]]), torch.zeros(1, 2400, dtype=torch.uint8)
    for book, reason in [
        (Codebook(centers, indices), "not those of its centers"),
        (Codebook(centers, indices[:, 1:]), "number of its indices"),
        (Codebook(centers, indices + 2), "index above its 2 centers"),
        (Codebook(centers, indices.long() + 256), "index above its 2 centers"),
        (Codebook(centers.flip(1), indices), "ascending"),
        (Codebook(centers * float("inf"), indices), "not finite"),
        (Codebook(centers[0], indices), "rows of numbers"),
        (Codebook(centers.repeat(3, 1), indices.reshape(3, -1)), "3 groups of centers"),
    ]:
        books["features.1.weight"] = book
        with pytest.raises(ModelFileError, match=f"'features.1.weight' of cnn1 cannot be packed: .*{reason}"):
            PackedModel.of(network, books)
    with pytest.raises(ModelFileError, match=r"no parameter 'feature.1.weight'. Did you mean 'features.1.weight'"):
        PackedModel.of(network, {"feature.1.weight": book})


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({}, "either bits"),
        ({"bits": 1, "codebooks": {}}, "either bits"),
        ({"bits": 0}, "from 1 to 8"),
        ({"bits": {"classifier.0.weight": 9}}, "from 1 to 8"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], reason: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match=reason):
        quped.save(packed_cnn(), tmp_path / "a.quped", **arguments)


def test_a_network_with_nothing_between_first_and_last(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="name parameters"):
        quped.save(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), tmp_path / "a.quped", bits=1)
    with pytest.raises(ModelFileError, match="lazy layers"):
        quped.save(nn.Sequential(nn.LazyLinear(2)), tmp_path / "a.quped", bits=32)


def test_another_network_is_refused(tmp_path: Path) -> None:
    quped.save(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 4)), tmp_path / "a.quped", bits=32)
    for module, reason in [
        (nn.Sequential(nn.Linear(2, 3)), "holds '1.bias', which Sequential has not"),
        (nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 4), nn.BatchNorm1d(4)), "lacks '2.weight' of Sequential"),
        (nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 4)), r"'0.weight' has the shape \(3, 2\), .* has \(3, 3\)"),
        (nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 4)).double(), "'0.weight' has the dtype torch.float32"),
    ]:
        before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
        with pytest.raises(ModelFileError, match=rf"a\.quped cannot be loaded: .*{reason}.*another network"):
            quped.load(tmp_path / "a.quped", module)
        assert all(same_bits(before[name], tensor) for name, tensor in module.state_dict().items())


@pytest.mark.parametrize(
    ("network", "reason"),
    [
        ({"name": "cnn3", "input_shape": [1, 8, 8], "classes": 10}, "Did you mean 'cnn"),
        ({"name": "cnn1", "input_shape": [1, 8, 8], "classes": 9}, "another network"),
        ({"name": "mlp", "input_shape": [10**9], "classes": 10, "hidden": [10**9]}, "another network"),
        ({"name": "cnn1", "input_shape": "8x8", "classes": 10}, "cannot be built"),
        ({"name": "resnet20", "input_shape": [1, 8, 8], "classes": 10, "depth": 10**9 + 4}, "cannot be built"),
        ({"name": ["cnn1"]}, "cannot be built"),
        ({"name": "cnn1", "hidden": [1] * 10_000}, "names no network"),
        ("cnn1", "names no network"),
    ],
)
def test_a_file_that_names_another_network(network: object, reason: str) -> None:
    model = from_bytes(to_bytes(PackedModel.of(packed_cnn(), {}, network=network)), "it")
    with pytest.raises(ModelFileError, match=reason):
        model.module()


def test_float16_rounds_the_rest_only() -> None:
    module = Everything()
    books = quantize_at_random(module, {"middle.weight": 4}, per_channel=False, seed=1)
    model = PackedModel.of(module, books)
    whole, half = to_bytes(model), to_bytes(model, float16=True)
    assert len(half) < len(whole)
    again = from_bytes(half, "it").fill(Everything())
    assert same_bits(again.middle.weight, module.middle.weight)
    assert same_bits(again.get_buffer("exact"), module.get_buffer("exact"))
    assert same_bits(again.conv.weight, module.conv.weight.half().float())
    with torch.no_grad():
        module.get_parameter("conv.bias")[0] = 1e5
    with pytest.raises(ModelFileError, match=r"'conv\.bias' are too large"):
        to_bytes(PackedModel.of(module, books), float16=True)
    with pytest.raises(ModelFileError, match="float16 already"):
        to_bytes(PackedModel.of(nn.Linear(2, 2).half(), {}), float16=True)


def test_a_type_that_no_file_can_hold() -> None:
    module = nn.Linear(1, 1)
    module.register_buffer("strange", torch.zeros(1, dtype=torch.complex128))
    with pytest.raises(ModelFileError, match=r"'strange' is torch\.complex128"):
        to_bytes(PackedModel.of(module, {}))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 60_000), st.sampled_from([2, 3, 16, 200, 256])), min_size=1, max_size=4),
    st.integers(0, 2**31),
)
def test_no_content_exceeds_the_bound(sections: list[tuple[int, int]], seed: int) -> None:
    """Of random bytes with few or many values, in sections of every type."""
    rng = np.random.default_rng(seed)
    tensors = {}
    for (count, values), dtype in zip(sections, (torch.uint8, torch.int16, torch.int32, torch.float64), strict=False):
        raw = rng.integers(values, size=count * dtype.itemsize).astype(np.uint8)
        tensors[str(dtype)] = torch.from_numpy(raw).view(dtype)
    assert len(encode(tensors, {"quped": "x" * 100})) <= most_bytes(tensors, {"quped": "x" * 100})


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.quped"
    quped.save(network := packed_cnn(), path, bits=2)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ModelFileError, match=r"a\.quped cannot be written: No space left"):
        quped.save(packed_cnn(1), path, bits=1)
    assert same_states(network, quped.load(path, build("cnn1", (1, 8, 8), 10)))
    assert [file.name for file in tmp_path.iterdir()] == ["a.quped"]


def test_a_draft_of_a_killed_process_goes_with_the_next_file(tmp_path: Path) -> None:
    """That of this file; others may belong to anybody."""
    mine, other = (tmp_path / f".{name}.quped.999999999.draft" for name in ("a[1]", "b"))
    mine.touch()
    other.touch()
    write_file(tmp_path / "a[1].quped", b"content")
    assert sorted(path.name for path in tmp_path.iterdir()) == [other.name, "a[1].quped"]


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"none\.quped cannot be read: No such file"):
        quped.load(tmp_path / "none.quped")
    with pytest.raises(ModelFileError, match="cannot be read: Is a directory"):
        quped.load(tmp_path)
