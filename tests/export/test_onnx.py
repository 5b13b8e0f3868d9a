"""The ONNX file computes what the network computes, and holds its packed weights."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from helpers.exported import Widths, quantized, settled
from torch import Tensor, nn

from quped._rng import torch_seeded
from quped.errors import QupedError
from quped.export import PackedModel
from quped.models import build

pytestmark = pytest.mark.slow

onnx = pytest.importorskip("onnx", reason="the extra quped[onnx] is not installed")
export = pytest.importorskip("quped.export.onnx")


class Recurrent(nn.Module):
    """An LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(5, 8, batch_first=True)
        self.linear = nn.Linear(8, 3)

    def forward(self, words: Tensor) -> Tensor:
        """Return the logits of the last step."""
        logits: Tensor = self.linear(self.lstm(words)[0][:, -1])
        return logits


class Attention(nn.Module):
    """A small transformer, whose embedding is also its last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 24, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.linear = nn.Linear(16, 20)
        self.linear.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the scores of the next word."""
        logits: Tensor = self.linear(self.encoder(self.embedding(tokens)).mean(1))
        return logits


def images() -> nn.Sequential:
    """Return a network of convolutions with BatchNorm, one of them depthwise."""
    return nn.Sequential(
        nn.Conv2d(1, 6, 3),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Conv2d(6, 6, 3, groups=6, bias=False),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Conv2d(6, 7, 1, bias=False),
        nn.BatchNorm2d(7),
        nn.Flatten(),
        nn.Linear(7 * 16, 9),
        nn.ReLU(),
        nn.Linear(9, 5),
    )


EMPTY = PackedModel({}, {})

Case = tuple[Callable[[], nn.Module], Callable[[], tuple[Tensor, ...]], Widths]

CASES: dict[str, Case] = {
    "convolutions": (
        images,
        lambda: (torch.randn(64, 1, 8, 8),),
        {"0.weight": (3, True), "3.weight": (1, True), "6.weight": (2, False), "9.weight": (7, False)},
    ),
    "lstm": (
        Recurrent,
        lambda: (torch.randn(64, 6, 5),),
        {"lstm.weight_ih_l0": (4, False), "lstm.weight_hh_l0": (2, True)},
    ),
    "attention": (
        Attention,
        lambda: (torch.randint(20, (64, 7)),),
        {
            "embedding.weight": (8, False),
            "encoder.layers.0.self_attn.in_proj_weight": (3, False),
            "encoder.layers.0.linear1.weight": (1, False),
        },
    ),
    "text": (
        lambda: build("text", (30,), 4),
        lambda: (torch.randint(30, (64 * 3,)), torch.arange(0, 64 * 3, 3)),
        {"embedding.weight": (1, False)},
    ),
    "full precision": (lambda: build("cnn1", (1, 8, 8), 10), lambda: (torch.randn(64, 1, 8, 8),), {}),
}


SLOW = {"lstm", "attention"}


def case(name: str) -> tuple[nn.Module, PackedModel, tuple[Tensor, ...]]:
    """Return a network, its codebooks and samples."""
    make, draw, widths = CASES[name]
    with torch_seeded(0, name):
        module, inputs = make(), draw()
    settled(module, *inputs)
    return module, quantized(module, widths), inputs


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in CASES]
)
def test_the_file_computes_what_the_network_does(name: str, tmp_path: Path) -> None:
    """In onnxruntime, for batches of any size; with nothing of this machine inside."""
    runtime = pytest.importorskip("onnxruntime")
    module, model, inputs = case(name)
    path = tmp_path / "net.onnx"
    assert "run on 64 inputs" in export.write_onnx(module, model, inputs, path)
    content = path.read_bytes()
    assert not re.search(rb"\.py|site-packages|/home|/tmp|/root", content)
    file = onnx.load(path)
    assert (file.ir_version, {entry.domain: entry.version for entry in file.opset_import}[""]) == (8, 18)
    assert {node.op_type for node in file.graph.node if node.domain} == {f.name for f in file.functions}
    assert [
        value.type.tensor_type.shape.dim[0].dim_param for value in (file.graph.input[-1], file.graph.output[0])
    ] == [
        "batch",
        "batch",
    ]
    packed = {tensor.name: len(tensor.raw_data) for tensor in file.graph.initializer}
    for name, weight in model.packed.items():
        assert name not in packed
        bits = next(bits for bits in (1, 2, 4, 8) if bits >= weight.bits)
        assert packed[f"{name}.packed"] == -(-weight.indices.numel() * bits // 8)
    fewer = inputs if len(inputs) > 1 else (inputs[0][:5],)
    session = runtime.InferenceSession(content, providers=["CPUExecutionProvider"])
    feeds = {slot.name: part.numpy() for slot, part in zip(session.get_inputs(), fewer, strict=True)}
    (got,) = session.run(None, feeds)
    with torch.no_grad():
        expected = module(*fewer)
    torch.testing.assert_close(torch.from_numpy(got), expected, rtol=1e-4, atol=1e-4)
    assert torch.equal(torch.from_numpy(got).argmax(1), expected.argmax(1))


def test_a_file_that_holds_or_computes_something_else_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of wrong weights, of wrong operators, and of other weights than the codebooks say."""
    module, model, inputs = case("text")
    path = tmp_path / "net.onnx"
    path.write_bytes(b"before")
    good = export.onnx_model(module, model.packed, inputs)
    monkeypatch.setattr(export, "onnx_model", lambda *_: good)
    with monkeypatch.context() as without:
        without.setattr(export, "compute", lambda *_: None)
        assert "no onnxruntime" in export.write_onnx(module, model, inputs, tmp_path / "other.onnx")
    good.graph.initializer[-2].raw_data = bytes(len(good.graph.initializer[-2].raw_data))
    with pytest.raises(QupedError, match=r"another embedding\.weight"):
        export.write_onnx(module, model, inputs, path)
    with pytest.raises(QupedError, match="other weights"):
        export.write_onnx(module, EMPTY, inputs, path)
    monkeypatch.setattr(export, "check_weights", lambda *_: None)
    with pytest.raises(QupedError, match=r"net\.onnx does not compute"):
        export.write_onnx(module, model, inputs, path)
    assert path.read_bytes() == b"before"


def test_a_network_that_cannot_be_traced_is_named(tmp_path: Path) -> None:
    """With PyTorch's reason."""

    class Moody(nn.Module):
        def forward(self, inputs: Tensor) -> Tensor:
            raise ValueError("not today")

    with pytest.raises(QupedError, match="cannot export Moody"):
        export.write_onnx(Moody(), EMPTY, (torch.randn(2, 3),), tmp_path / "net.onnx")
    assert not list(tmp_path.iterdir())


def test_without_the_packages_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is done."""
    monkeypatch.setattr(export, "find_spec", lambda name: None)
    with pytest.raises(QupedError, match=r"pip install 'quped\[onnx\]'"):
        export.write_onnx(nn.Linear(3, 2), EMPTY, (torch.randn(2, 3),), tmp_path / "net.onnx")
