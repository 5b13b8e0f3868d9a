"""The formats that a model can be exported to."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from quped.data import Samples
from quped.errors import InvalidValueError, ModelFileError
from quped.export._container import content
from quped.export.c import write_c
from quped.export.html import write_html
from quped.export.onnx import write_onnx
from quped.export.packed import SUFFIX, PackedModel, from_bytes, to_bytes, write_file
from quped.typing import Batch

ONNX_SAMPLES = 256
"""Samples on which an ONNX file is verified, if there are that many."""


@dataclass(frozen=True)
class Source:
    """A model to export."""

    name: str
    """Of its client."""
    model: PackedModel
    samples: Callable[[], Samples]
    """Returns samples to verify the export with: those that the model was evaluated on."""
    class_names: Callable[[], Sequence[str]] = tuple
    """Returns the names of the classes, if they are known."""
    module: nn.Module | None = None
    """The network with the model's weights; None if it is one of this package."""

    def network(self) -> nn.Module:
        """Return the network in evaluation mode."""
        return self.model.module() if self.module is None else self.module.eval()

    def batch(self, most: int | None = None) -> Batch:
        """Return all samples, or the first ones."""
        samples = self.samples()
        return samples.batch(torch.arange(len(samples))[:most])

    def single_input(self, batch: Batch) -> Tensor:
        """Return the inputs of a batch for formats that have one input."""
        if len(batch.inputs) != 1 or not batch.inputs[0].is_floating_point():
            raise ModelFileError(
                f"The network of '{self.name}' cannot be written as C or as a page: both take one input of float "
                "numbers. ONNX takes every network."
            )
        return batch.inputs[0]


class Format(NamedTuple):
    """A format by the ending of its files and the function that writes one."""

    suffix: str
    write: Callable[[Source, Path, bool], str]
    """Writes a model to a path; True rounds unquantized numbers to float16. Returns how the file was verified.

    A file that fails the verification is not written.
    """


def write_packed(source: Source, path: Path, float16: bool) -> str:
    """Write the native file."""
    raw = to_bytes(source.model, float16=float16)
    again, rounded = from_bytes(raw, str(path)).state(), source.model.state()
    if float16:
        rounded |= {name: again[name] for name in source.model.tensors}
    for name, tensor in rounded.items():
        if content(tensor) != content(again[name]):
            raise ModelFileError(f"The tensor '{name}' of '{source.name}' differs in the file: it is not written.")
    write_file(path, raw)
    return "read again: quantized weights equal" if float16 else "read again: every bit equal"


def write_onnx_file(source: Source, path: Path, float16: bool) -> str:
    """Write an ONNX file."""
    refuse_rounding(float16, "ONNX")
    return write_onnx(source.network(), source.model, source.batch(ONNX_SAMPLES).inputs, path)


def write_c_file(source: Source, path: Path, float16: bool) -> str:
    """Write a C file."""
    refuse_rounding(float16, "C")
    inputs = source.single_input(source.batch())
    return write_c(source.network(), source.model, inputs, path, source.class_names())


def write_html_file(source: Source, path: Path, float16: bool) -> str:
    """Write a page."""
    batch = source.batch()
    inputs, names = source.single_input(batch), source.class_names()
    return write_html(source.network(), source.model, inputs, batch.labels, path, names, float16=float16)


def refuse_rounding(float16: bool, kind: str) -> None:
    """Raise if float16 is wanted of a format that cannot hold it."""
    if float16:
        raise InvalidValueError(f"{kind} files hold float32: leave out --float16, or choose --format quped or html.")


FORMATS: dict[str, Format] = {
    "quped": Format(SUFFIX, write_packed),
    "onnx": Format(".onnx", write_onnx_file),
    "c": Format(".c", write_c_file),
    "html": Format(".html", write_html_file),
}
"""By the names that `quped export --format` takes."""
