"""The formats that a model can be exported to."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from quped.data import Samples
from quped.errors import ModelFileError
from quped.export._container import content
from quped.export.packed import SUFFIX, PackedModel, from_bytes, to_bytes, write_file


@dataclass(frozen=True)
class Source:
    """A model to export."""

    name: str
    """Of its client."""
    model: PackedModel
    samples: Callable[[], Samples]
    """Returns samples to verify the export with: those that the model was evaluated on."""


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


FORMATS: dict[str, Format] = {"quped": Format(SUFFIX, write_packed)}
"""By the names that `quped export --format` takes."""
