"""The C file computes what the network computes."""

import re
import subprocess
from pathlib import Path

import pytest
import torch
from helpers.chains import NETWORKS, network
from helpers.exported import quantized
from torch import Tensor, nn

from quped._rng import torch_seeded
from quped.errors import QupedError
from quped.export import PackedModel, c
from quped.export.chain import chain, run
from quped.models import build, quantizable

pytestmark = pytest.mark.slow

needs_compiler = pytest.mark.skipif(c.find_compiler() is None, reason="there is no C compiler")

STRICT = "-std=c99", "-pedantic", "-Wall", "-Wextra", "-Wconversion", "-Wmissing-prototypes", "-Werror"


@pytest.mark.parametrize("name", NETWORKS)
def test_a_chain_computes_what_its_network_does(name: str) -> None:
    """The stages in PyTorch, which the C file and the page translate."""
    module, inputs = network(name)
    with torch.no_grad():
        expected = module(inputs)
        got = run(chain(module, inputs.shape[1:]), module.state_dict(), inputs)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


@needs_compiler
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize(("bits", "per_channel"), [(1, False), (3, True), (8, False)])
def test_the_file_computes_what_the_network_does(name: str, bits: int, per_channel: bool) -> None:
    """Compiled without a warning."""
    module, inputs = network(name)
    model = quantized(module, dict.fromkeys(quantizable(module), (bits, per_channel)))
    assert model.packed or name in ("one layer", "no weights")
    source = c.c_source(module, model, tuple(inputs.shape[1:]), "net", ["cat", "*/ /* dog"])
    with torch.no_grad():
        expected = module(inputs)
    got = c.compute(source.text, "net", inputs, expected.shape[1], ["cc", *STRICT])
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
    assert torch.equal(got.argmax(1), expected.argmax(1))


@needs_compiler
def test_the_file_needs_no_library(tmp_path: Path) -> None:
    """It has one function to call, and calls none but those that compilers put in by themselves."""
    module, inputs = network("varied")
    path, made = tmp_path / "my-net.c", tmp_path / "net.o"
    assert "64 inputs" in c.write_c(module, quantized(module, 2), inputs, path)
    subprocess.run(["cc", *STRICT, "-Os", "-ffreestanding", "-c", path, "-o", made], check=True)
    symbols = subprocess.run(["nm", made], check=True, capture_output=True, text=True).stdout
    assert re.findall(r" T (\w+)", symbols) == ["my_net_predict"]
    assert set(re.findall(r" U (\w+)", symbols)) <= {"memset", "memcpy"}


@needs_compiler
def test_weights_are_stored_at_their_bits(tmp_path: Path) -> None:
    """A file's constants are those of the packed model, and a byte per tensor."""
    module, inputs = network("cnn1")
    model = quantized(module, 2)
    size = f"{model.floor + len(model.packed):,} bytes"
    assert f"{size} of constants" in c.write_c(module, model, inputs, tmp_path / "net.c")
    assert f"Constant data: {size}." in (tmp_path / "net.c").read_text()


@needs_compiler
def test_a_file_that_computes_something_else_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the file that was there stays."""
    module, inputs = network("cnn1")
    model = quantized(module, 1)
    path = tmp_path / "net.c"
    path.write_text("before")
    broken = tmp_path / "predict.c"
    broken.write_text(c.TEMPLATE.read_text().replace("sum < 0 ? 0", "sum < 0 ? 1"))
    monkeypatch.setattr(c, "TEMPLATE", broken)
    with pytest.raises(QupedError, match=r"net\.c does not compute"):
        c.write_c(module, model, inputs, path)
    broken.write_text("no C")
    with pytest.raises(QupedError, match="compiler refuses"):
        c.write_c(module, model, inputs, path)
    assert path.read_text() == "before"


def test_without_a_compiler_the_file_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the report says that it was not run."""
    monkeypatch.setenv("CC", "no-such-compiler")
    module, inputs = network("one layer")
    assert "no C compiler" in c.write_c(module, PackedModel.of(module, {}), inputs, tmp_path / "1 net.c")
    assert "void model_1_net_predict(" in (tmp_path / "1 net.c").read_text()


class Doubled(nn.Sequential):
    """A subclass with a forward pass of its own."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Return twice the layers' output."""
        for layer in self:
            inputs = layer(inputs)
        return 2 * inputs


@pytest.mark.parametrize(
    ("module", "shape", "words"),
    [
        (build("resnet8", (3, 32, 32), 10), (3, 32, 32), "network resnet8"),
        (nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.GELU())), (4,), r"layer '1\.0' \(GELU\)"),
        (nn.Sequential(nn.Linear(4, 4), Doubled(nn.Linear(4, 4))), (4,), r"'1' \(Doubled\)"),
        (nn.Sequential(nn.Linear(4, 4)), (2, 4), r"'0' \(Linear\).*shape \(2, 4\)"),
        (nn.Sequential(nn.Conv2d(1, 1, 3, padding_mode="reflect", padding=1)), (1, 5, 5), "'0'.*reflect"),
        (nn.Sequential(nn.Conv2d(1, 1, 2, padding="same")), (1, 5, 5), "'0'.*one side"),
        (nn.Sequential(nn.Conv2d(1, 1, 3)), (1, 2, 5), "'0'.*kernel"),
        (nn.Sequential(nn.Conv2d(1, 1, 3)), (2, 5, 5), "'0'.*shape"),
        (nn.Sequential(nn.Conv2d(1, 1, 3)), (5,), "'0'.*images"),
        (nn.Sequential(nn.MaxPool2d(2, ceil_mode=True)), (1, 5, 5), "'0'.*ceil_mode"),
        (nn.Sequential(nn.MaxPool2d(6)), (1, 5, 5), "'0'.*window"),
        (nn.Sequential(nn.MaxPool2d(2, dilation=2)), (1, 5, 5), "'0'.*dilates"),
        (nn.Sequential(nn.AvgPool2d(2, padding=1)), (1, 4, 4), "'0'.*padded"),
        (nn.Sequential(nn.AvgPool2d(2, divisor_override=3)), (1, 4, 4), "'0'.*divisor"),
        (nn.Sequential(nn.AdaptiveAvgPool2d(2)), (1, 5, 5), "'0'.*differ"),
        (nn.Sequential(nn.BatchNorm2d(1, track_running_stats=False)), (1, 5, 5), "'0'.*statistics"),
        (nn.Sequential(nn.BatchNorm1d(5)), (1, 5, 5), "'0'.*shape"),
        (nn.Sequential(nn.Flatten(2)), (1, 5, 5), "'0'.*flattens"),
        (nn.Sequential(nn.Dropout()), (4,), "no layers"),
    ],
)
def test_a_layer_that_cannot_be_is_named(module: nn.Module, shape: tuple[int, ...], words: str) -> None:
    """With the reason."""
    with pytest.raises(QupedError, match=words):
        chain(module, shape)


def test_numbers_that_are_none_are_refused() -> None:
    """C has no literal for them."""
    layer = nn.Linear(4, 3)
    with torch.no_grad():
        layer.bias[1] = torch.nan
    module = nn.Sequential(layer)
    with pytest.raises(QupedError, match="holds nan"):
        c.c_source(module, PackedModel.of(module, {}), (4,), "net")


def test_literals_have_the_bits_of_their_floats() -> None:
    """Read by Python's own reader of such numbers."""
    with torch_seeded(0, "floats"):
        values = torch.cat([torch.randn(1000), torch.tensor([0.0, -0.0, 1.0, 1e-45, 3.4e38])])
    texts = [c.hexadecimal(value) for value in values.tolist()]
    assert all(re.fullmatch(r"-?0x[01](\.[0-9a-f]+)?p[+-]\d+f", text) for text in texts)
    again = torch.tensor([float.fromhex(text[:-1]) for text in texts])
    assert torch.equal(again.view(torch.int32), values.view(torch.int32))
