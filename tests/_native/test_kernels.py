"""The compiled kernels against NumPy and against PyTorch, and what happens where nothing can be compiled."""

import logging
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from quped import Client, Federation, QuPeD
from quped._native import build, codebook, conv_pool, reusing
from quped._native.conv_pool import compiled
from quped.data import Subset
from quped.data.datasets.digits import digits
from quped.models import cnn1

Array = NDArray[np.float64]

LAYERS = [(1, 6, 8, 8, 5, 2), (3, 6, 32, 32, 5, 0), (6, 16, 14, 14, 5, 0), (2, 9, 11, 8, 3, 1), (5, 17, 7, 10, 4, 0)]
"""Channels, filters, height, width, kernel, padding."""


needs_compiler = pytest.mark.skipif(build.find_compiler() is None, reason="there is no C++ compiler")


@needs_compiler
@pytest.mark.filterwarnings("ignore:`torch.jit.trace:DeprecationWarning")
def test_networks_with_kernels_can_be_exported() -> None:
    """What is traced or exported has PyTorch's operations, and the same results."""
    module, images = cnn1((1, 8, 8), 10).eval(), torch.randn(3, 1, 8, 8)
    expected = module(images)
    trace: Callable[..., torch.nn.Module] = torch.jit.trace
    for found in (trace(module, images), torch.export.export(module, (images,)).module()):
        torch.testing.assert_close(found(images), expected)


@pytest.fixture
def fresh() -> Iterator[None]:
    """Forget which kernels were compiled, before and after."""
    caches = (build.library, build.find_compiler, compiled)
    for forget in caches:
        forget.cache_clear()
    yield
    for forget in caches:
        forget.cache_clear()


def by_hand(layer: tuple[Tensor, Tensor, Tensor], padding: int) -> Array:
    """Convolution, pooling and ReLU, pixel by pixel."""
    x, weight, bias = (tensor.double().numpy() for tensor in layer)
    x = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    size = weight.shape[2]
    rows, columns = ((side - size + 1) // 2 for side in x.shape[2:])
    y = np.zeros((len(x), len(weight), rows, columns))
    for r in range(rows):
        for q in range(columns):
            four = [
                np.einsum("nchw,fchw->nf", x[:, :, i : i + size, j : j + size], weight) + bias
                for i in (2 * r, 2 * r + 1)
                for j in (2 * q, 2 * q + 1)
            ]
            y[:, :, r, q] = np.maximum(np.max(four, axis=0), 0)
    return y


def layer(shape: tuple[int, ...], samples: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    """Return inputs, weights and biases."""
    channels, filters, height, width, size, _ = shape
    rng = torch.Generator().manual_seed(sum(shape))
    sides = ((samples, channels, height, width), (filters, channels, size, size), (filters,))
    x, weight, bias = (torch.randn(side, generator=rng) for side in sides)
    return x, weight, bias


@needs_compiler
@pytest.mark.parametrize("shape", LAYERS)
@pytest.mark.parametrize("last", [False, True])
def test_forward_is_the_operation_by_hand(shape: tuple[int, ...], last: bool) -> None:
    """In either memory layout, with and without padding, for sides and filters that fill no vector."""
    x, weight, bias = layer(shape)
    x = x.contiguous(memory_format=torch.channels_last) if last else x
    assert compiled(tuple(x.shape[1:]), tuple(weight.shape), shape[-1]) is not None
    expected = by_hand((x, weight, bias), shape[-1])
    np.testing.assert_allclose(conv_pool(x, weight, bias, shape[-1]).numpy(), expected, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("shape", LAYERS)
@pytest.mark.parametrize("by_x", [False, True])
def test_gradients_are_those_of_pytorch_in_double_precision(shape: tuple[int, ...], by_x: bool) -> None:
    """By inputs, weights and biases; and the fallback has them, too."""
    x, weight, bias = layer(shape)

    def gradients(dtype: torch.dtype, native: bool) -> list[Tensor]:
        leaves = [t.to(dtype).requires_grad_() for t in (x, weight, bias)][0 if by_x else 1 :]
        inputs = leaves[0] if by_x else x.to(dtype)
        if native:
            y = conv_pool(inputs, leaves[-2], leaves[-1], shape[-1])
        else:
            y = functional.max_pool2d(functional.conv2d(inputs, leaves[-2], leaves[-1], padding=shape[-1]).relu(), 2)
        towards = torch.randn(y.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        return list(torch.autograd.grad(y, leaves, towards.to(dtype)))

    expected = gradients(torch.float64, native=False)
    for dtype in (torch.float32, torch.float64):
        for found, reference in zip(gradients(dtype, native=True), expected, strict=True):
            np.testing.assert_allclose(found.double().numpy(), reference.numpy(), rtol=1e-4, atol=1e-4)


def test_of_equal_pixels_the_first_gets_the_gradient_and_zero_gets_none() -> None:
    """As in PyTorch: an image of one value, with a weight of 1 (positive everywhere) and of 0 (zero everywhere)."""
    x = torch.ones(1, 1, 4, 4, requires_grad=True)
    weight = torch.tensor([1.0, 0.0]).reshape(2, 1, 1, 1)
    (found,) = torch.autograd.grad(conv_pool(x, weight, torch.zeros(2)).sum(), x)
    assert found[0, 0].tolist() == [[1, 0, 1, 0], [0, 0, 0, 0], [1, 0, 1, 0], [0, 0, 0, 0]]


def test_nan_is_seen() -> None:
    """One bad pixel spoils the outputs that it belongs to, and only these."""
    x = torch.ones(1, 1, 6, 6)
    x[0, 0, 0, 1] = torch.nan
    y = conv_pool(x, torch.ones(1, 1, 3, 3), torch.zeros(1))
    assert y.isnan().tolist() == [[[[True, False], [False, False]]]]


@needs_compiler
def test_within_a_step_the_same_arguments_give_the_same_result_until_one_is_changed() -> None:
    """A result is kept for the next call; a weight that was changed in place is noticed."""
    x, weight, bias = layer(LAYERS[1])
    with reusing():
        first = conv_pool(x, weight, bias)
        assert conv_pool(x, weight, bias) is first
        weight.mul_(2)
        second = conv_pool(x, weight, bias)
        np.testing.assert_allclose(second.numpy(), by_hand((x, weight, bias), 0), rtol=1e-5, atol=2e-5)
        assert not torch.equal(first, second)
        kept = second.clone()
        second.zero_()  # by a layer that works in place
        assert torch.equal(conv_pool(x, weight, bias), kept)
        with torch.inference_mode():
            assert torch.equal(conv_pool(x.clone(), weight, bias), kept)
            inference = weight.clone()
        assert torch.equal(conv_pool(x, inference, bias), kept)


@needs_compiler
def test_elsewhere_nothing_is_kept() -> None:
    """An ordinary module sees what PyTorch cannot notice: a camera's buffer that is filled anew, weights by .data."""
    x, weight, bias = layer(LAYERS[1])
    frame = x.numpy()
    for change in (lambda: np.negative(frame, out=frame), lambda: weight.data.mul_(-2)):
        result = conv_pool(x, weight, bias)
        result.numpy()[:] = 0
        change()
        found = conv_pool(x, weight, bias).numpy()
        np.testing.assert_allclose(found, by_hand((x, weight, bias), 0), rtol=1e-5, atol=2e-5)


def test_assignments_of_other_types_are_as_good() -> None:
    """Numbers of centers as int64, centers in float64: the kernels are for neither."""
    weights, centers = torch.tensor([[-1.0, -0.2, 0.3, 2.0]]), torch.tensor([[-1.0, 1.0]])
    assert codebook.nearest(weights, centers.double()).tolist() == [[0, 0, 1, 1]]
    numbers = torch.tensor([[0, 0, 1, 1]])
    assert codebook.place(centers, numbers).tolist() == [[-1.0, -1.0, 1.0, 1.0]]
    assert codebook.collect(weights, numbers, 2).tolist() == [pytest.approx([-1.2, 2.3])]


def test_the_default_type_does_not_matter() -> None:
    """float32 in, float32 out."""
    x, weight, bias = layer(LAYERS[1])
    expected = conv_pool(x, weight, bias)
    torch.set_default_dtype(torch.float64)
    try:
        assert torch.equal(conv_pool(x.clone(), weight, bias), expected)
    finally:
        torch.set_default_dtype(torch.float32)


def test_shapes_that_do_not_match_are_refused_by_name() -> None:
    """Wrong inputs reach PyTorch, which says what is wrong."""
    with pytest.raises(RuntimeError, match="channels"):
        conv_pool(torch.ones(1, 2, 8, 8), torch.ones(4, 3, 5, 5), torch.zeros(4))
    with pytest.raises(RuntimeError, match="bias"):
        conv_pool(torch.ones(1, 3, 8, 8), torch.ones(4, 3, 5, 5), torch.zeros(3))


@pytest.mark.parametrize("m", [2, 3, 4, 16])
@pytest.mark.parametrize(("groups", "size"), [(1, 1), (1, 1003), (7, 24), (3, 5)])
def test_codebook(m: int, groups: int, size: int) -> None:
    """Assignment, placement and sums by center, against NumPy; float64 takes the way without kernels."""
    rng = np.random.default_rng(m)
    weights = rng.normal(size=(groups, size)).astype(np.float32)
    centers = np.sort(rng.normal(size=(groups, m)).astype(np.float32))
    weights[0, 0] = (centers[0, 0] + centers[0, 1]) / np.float32(2)  # a tie goes to the lower one
    borders = (centers[:, 1:] + centers[:, :-1]) / np.float32(2)
    expected = (weights[:, :, None] > borders[:, None]).sum(-1)
    x, c = torch.from_numpy(weights), torch.from_numpy(centers)
    found = codebook.nearest(x, c)
    assert found.dtype == torch.uint8
    np.testing.assert_array_equal(found.numpy(), expected)
    np.testing.assert_array_equal(codebook.place(c, found).numpy(), np.take_along_axis(centers, expected, 1))
    sums = np.array([np.bincount(e, w, m) for e, w in zip(expected, weights.astype(np.float64), strict=True)])
    leaf = c.clone().requires_grad_()
    (by_centers,) = torch.autograd.grad(codebook.place(leaf, found), leaf, x)
    for mine in (codebook.collect(x, found, m), by_centers, codebook.collect(x.double(), found, m)):
        np.testing.assert_allclose(mine.numpy(), sums, rtol=1e-5, atol=1e-4)
    np.testing.assert_array_equal(codebook.nearest(x.double(), c.double())[:, 1:].numpy(), expected[:, 1:])


def test_many_centers() -> None:
    """Up to 8 bits an assignment is bytes; beyond, it is not."""
    x = torch.linspace(-1, 1, 1000)[None]
    for m in (17, 256, 300):
        c = torch.linspace(-1, 1, m)[None]
        found = codebook.nearest(x, c)
        assert found.dtype == (torch.uint8 if m <= 256 else torch.long)
        assert torch.equal(codebook.place(c, found), c[0, (x[0, :, None] - c).abs().argmin(1)][None])


@pytest.mark.usefixtures("fresh")
def test_without_a_compiler_pytorch_does_it(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """It is said once, and the numbers are the same."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    x, weight, bias = layer(LAYERS[1])
    with caplog.at_level(logging.WARNING, "quped"):
        y = conv_pool(x, weight, bias)
        conv_pool(*layer(LAYERS[2]))
        found = codebook.nearest(weight.reshape(1, -1), bias.sort().values[None])
    assert [record.message for record in caplog.records] == [
        "There is no C++ compiler: PyTorch's own, slower kernels are used. Install g++ or clang++, or set CXX."
    ]
    np.testing.assert_allclose(y.numpy(), by_hand((x, weight, bias), 0), rtol=1e-5, atol=2e-5)
    assert found.dtype == torch.uint8


@pytest.mark.usefixtures("fresh")
def test_a_compiler_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its own words are in the log, nothing stays behind, and PyTorch does the work."""
    compiler = tmp_path / "bad-compiler"
    compiler.write_text("#!/bin/sh\necho the reason >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("QUPED_CACHE", str(tmp_path / "cache"))
    with caplog.at_level(logging.WARNING, "quped"):
        assert conv_pool(*layer(LAYERS[1])).shape == (3, 6, 14, 14)
    assert "the reason" in caplog.text
    assert list((tmp_path / "cache").rglob("*.so")) == []


@pytest.mark.usefixtures("fresh")
def test_a_compiler_with_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CXX may be a command with words after it, such as that of a compiler cache."""
    compiler = tmp_path / "a cache"
    compiler.write_text("#!/bin/sh\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", f"'{compiler}' g++ -pipe")
    assert build.find_compiler() == (str(compiler), "g++", "-pipe")
    build.find_compiler.cache_clear()
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CXX", "half a 'quote")
    compiler.rename(tmp_path / "clang++")
    assert build.find_compiler() == (str(tmp_path / "clang++"),)


@needs_compiler
@pytest.mark.usefixtures("fresh")
def test_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library is found again without a compiler run; the switch turns all of it off."""
    monkeypatch.setenv("QUPED_CACHE", str(tmp_path))
    conv_pool(*layer(LAYERS[1]))
    (file,) = tmp_path.rglob("*.so")
    written = file.stat().st_mtime_ns
    build.library.cache_clear()
    compiled.cache_clear()
    conv_pool(*layer(LAYERS[1]))
    assert [f.stat().st_mtime_ns for f in tmp_path.rglob("*.so")] == [written]
    monkeypatch.setenv(build.SWITCH, "0")
    build.library.cache_clear()
    assert build.library("codebook", (("CENTERS", 2),), codebook.SIGNATURES) is None


@needs_compiler
@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "no digest", "other digest", "writable", "foreign"])
def test_a_library_that_cannot_be_trusted_is_compiled_again(
    damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loading it would kill the process, or run a stranger's code."""
    if damage == "foreign" and os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    monkeypatch.setenv("QUPED_CACHE", str(tmp_path / "whole"))
    constants = (("CENTERS", 13),)
    assert build.library("codebook", constants, codebook.SIGNATURES) is not None
    (whole,) = tmp_path.rglob("*.so")
    # In another folder: a library that is loaded must not be changed.
    shutil.copytree(tmp_path / "whole", tmp_path / "damaged")
    monkeypatch.setenv("QUPED_CACHE", str(tmp_path / "damaged"))
    file = tmp_path / "damaged" / "native" / whole.name
    content = whole.read_bytes()
    match damage:
        case "cut":
            file.write_bytes(content[: len(content) // 2])
        case "flipped":
            file.write_bytes(content[:5000] + bytes([content[5000] ^ 1]) + content[5001:])
        case "empty":
            file.write_bytes(b"")
        case "no digest":
            build.digest_file(file).unlink()
        case "other digest":
            build.digest_file(file).write_bytes(b"\xff" * 64)
        case "writable":
            file.chmod(0o777)
        case "foreign":
            os.chown(file, 65534, 65534)
    assert not build.is_trusted(file)
    build.library.cache_clear()
    assert build.library("codebook", constants, codebook.SIGNATURES) is not None
    assert build.is_trusted(file)
    assert {path.suffix for path in file.parent.iterdir()} == {".so", ".sha256"}


@needs_compiler
@pytest.mark.usefixtures("fresh")
def test_a_cache_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Kernels are compiled for this process, and nothing is left behind."""
    (tmp_path / "cache").write_text("a file, where a folder should be")
    (tmp_path / "scratch").mkdir()
    monkeypatch.setenv("QUPED_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    with caplog.at_level(logging.WARNING, "quped"):
        found = build.library("codebook", (("CENTERS", 11),), codebook.SIGNATURES)
    assert found is not None
    assert found.nearest is not None
    assert caplog.records == []
    assert list((tmp_path / "scratch").iterdir()) == []


@pytest.mark.slow
@needs_compiler
def test_kernels_do_not_touch_memory_outside(tmp_path: Path) -> None:
    """Compiled with the address sanitizer, forward and backward passes run clean."""
    main = tmp_path / "main.cpp"
    main.write_text("""
#include "conv_pool.cpp"
int main() {
  const int n = 2;
  const int64_t strides[4] = {CHANNELS * HEIGHT * WIDTH, HEIGHT * WIDTH, WIDTH, 1};
  const int64_t out_strides[4] = {FILTERS * OUT, OUT, OUT_COLUMNS, 1};
  std::vector<float> x(n * strides[0], 1.0f), w(FILTERS * CHANNELS * KERNEL * KERNEL, 1.0f), b(FILTERS, 1.0f);
  std::vector<float> y(n * FILTERS * OUT), dy(y.size(), 1.0f), dx(x.size()), dw(w.size()), db(FILTERS);
  std::vector<uint8_t> which(y.size());
  forward(n, x.data(), strides, w.data(), b.data(), y.data(), which.data());
  backward(n, x.data(), strides, w.data(), which.data(), dy.data(), out_strides, dx.data(), dw.data(), db.data());
  return db[0] == n * OUT ? 0 : 1;
}
""")
    for channels, filters, side, size, padding in ((3, 6, 9, 5, 0), (6, 16, 8, 3, 1), (2, 9, 7, 4, 2)):
        constants = {
            "CHANNELS": channels,
            "FILTERS": filters,
            "HEIGHT": side,
            "WIDTH": side,
            "KERNEL": size,
            "PADDING": padding,
        }
        command = [
            *(build.find_compiler() or ()),
            "-std=c++17",
            "-g",
            "-O1",
            "-march=native",
            "-fsanitize=address,undefined",
        ]
        command += [
            "-fno-sanitize-recover",
            f"-I{Path(build.__file__).parent}",
            str(main),
            "-o",
            str(tmp_path / "main"),
        ]
        subprocess.run([*command, *(f"-D{k}={v}" for k, v in constants.items())], check=True, capture_output=True)
        subprocess.run([tmp_path / "main"], check=True, capture_output=True)


@pytest.mark.slow
@pytest.mark.usefixtures("fresh")
def test_a_round_of_quped_is_the_same_without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two epochs on digits at 2 bits: the deployed weights agree to a few digits."""
    data = digits()

    def models() -> dict[str, Tensor]:
        clients = [
            Client(
                f"c{i}", Subset(data.train, torch.arange(60) + 60 * i), data.test, partial(cnn1, (1, 8, 8), 10), bits=2
            )
            for i in range(2)
        ]
        fit = Federation(clients, QuPeD(), seed=1).fit(epochs=2, finetune_epochs=0, workers=0, batch_size=20)
        return {
            f"{name} {key}": value for name, model in fit.models.items() for key, value in model.state.params.items()
        }

    with_kernels = models()
    monkeypatch.setenv(build.SWITCH, "0")
    build.library.cache_clear()
    compiled.cache_clear()
    without = models()
    assert compiled((1, 8, 8), (6, 1, 5, 5), 2) is None
    for key, value in with_kernels.items():
        # A weight at the border of two centers may go to the other one; hardly any does.
        far = (value - without[key]).abs() > 1e-4
        assert far.float().mean() < 0.01, key
