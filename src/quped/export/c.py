"""A network as one C99 file: for microcontrollers, and for programs without PyTorch."""

import ctypes
import math
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from quped.errors import ModelFileError
from quped.export.chain import Conv, Pool, Stage, chain
from quped.export.facts import facts
from quped.export.packed import PackedModel, write_file
from quped.export.verify import check_scores, enough
from quped.quant.packing import pack
from quped.quant.sizes import FLOAT_BYTES

TEMPLATE = Path(__file__).parent / "templates" / "predict.c"
FLAGS = ("-std=c99", "-Os", "-shared", "-fPIC")


def write_c(module: nn.Module, model: PackedModel, inputs: Tensor, path: Path, class_names: Sequence[str] = ()) -> str:
    """Write a network as `path`, whose name without `.c` names the function; return how it was verified.

    `model` holds the weights of `module`, with which the compiled file must agree on `inputs`, some samples.
    Without a C compiler nothing is run.
    """
    inputs = enough(inputs)
    name = identifier(path.stem)
    source = c_source(module, model, tuple(inputs.shape[1:]), name, class_names)
    compiler = find_compiler()
    if compiler is not None:
        with torch.no_grad():
            expected = module(inputs)
        check_scores(str(path), compute(source.text, name, inputs, expected.shape[1], compiler), expected)
    write_file(path, source.text.encode())
    run = f"compiled and run on {len(inputs):,} inputs: same classes" if compiler else "not run: no C compiler here"
    return f"{run}; {source.constants:,} bytes of constants, {source.memory:,} of working memory"


class CFile(NamedTuple):
    """A C file."""

    text: str
    constants: int
    """Bytes of its constant arrays."""
    memory: int
    """Bytes that it works in."""


def identifier(name: str) -> str:
    """Return a name as C allows it."""
    plain = re.sub(r"\W", "_", name, flags=re.ASCII)
    return plain if plain[:1].isalpha() else f"model_{plain}"


def c_source(
    module: nn.Module, model: PackedModel, input_shape: tuple[int, ...], name: str, class_names: Sequence[str] = ()
) -> CFile:
    """Return the file."""
    stages = chain(module, input_shape)
    arrays = Arrays()
    rows = [numbers(stage) | pointers(stage, model, arrays) for stage in stages]
    same = {key for key in rows[0] if len({row[key] for row in rows}) == 1 and isinstance(rows[0][key], int)}
    common = same - ALWAYS
    types = {key: POINTERS.get(key) or smallest([int(row[key]) for row in rows]) for key in rows[0]}
    fields = sorted((key for key in rows[0] if key not in common), key=lambda key: ORDER.index(types[key]))
    sizes = [math.prod(stage.output) for stage in stages]
    packed = [fan_in(stage) for stage in stages if stage.conv is not None and stage.conv.weight in model.packed]
    buffers = {
        "even": max(sizes[:-1:2], default=1),
        "odd": max(sizes[1:-1:2], default=1),
        "unpacked": max(packed, default=1),
    }
    memory = FLOAT_BYTES * sum(buffers.values())
    words = {
        "ABOUT": comment(f"{', '.join(facts(module, model))}."),
        "NAME": name,
        "INPUTS": f"{math.prod(input_shape):,}",
        "SHAPE": f"{' x '.join(map(str, input_shape))}, the last index fastest, normalised as for training",
        "SCORES": str(sizes[-1]),
        "CLASSES": comment(f": {', '.join(class_names)}" if class_names else ""),
        "FLASH": f"{arrays.bytes:,}",
        "RAM": f"{memory:,}",
        "ARRAYS": "\n".join(arrays.lines),
        "FIELDS": "\n".join(f"    {types[key]} {key};" for key in fields),
        "COUNT": str(len(stages)),
        "STAGES": "\n".join(initializer({key: row[key] for key in fields}) for row in rows),
        "MACROS": "\n".join(
            f"#define {key.upper()} (({POINTERS.get(key, 'uint32_t')}){value if key in common else f's->{key}'})"
            for key, value in rows[0].items()
        ),
        "BUFFERS": "\n".join(f"static float {key}[{count}];" for key, count in buffers.items()),
    }
    text = re.sub(r"@([A-Z]+)@", lambda found: words[found[1]], TEMPLATE.read_text())
    return CFile(text, arrays.bytes, memory)


Number = int | str
"""A number, or the name of an array."""

POINTERS = {"weights": "const void *", **dict.fromkeys(("centers", "scale", "shift"), "const float *")}
ALWAYS = {"weights", "channels", "height", "width"}
"""Fields that the table has even if all stages have them in common: it is never empty."""
ORDER = ["const void *", "const float *", "uint32_t", "uint16_t", "uint8_t"]
"""Of fields, by their types: with the widest first there are no gaps between them."""


def smallest(values: Sequence[int]) -> str:
    """Return the smallest type that holds all values."""
    return "uint8_t" if max(values) < 2**8 else "uint16_t" if max(values) < 2**16 else "uint32_t"


def comment(text: str) -> str:
    """Return a user's words in one line that neither ends nor begins a comment."""
    return " ".join(text.split()).replace("*/", "* /").replace("/*", "/ *")


@dataclass
class Arrays:
    """The constant arrays of a file."""

    lines: list[str] = field(default_factory=list)
    bytes: int = 0
    names: dict[str, str] = field(default_factory=dict)

    def add(self, label: str, values: Tensor) -> str:
        """Add floats or bytes, unless they are there already; return the name of their array."""
        if label not in self.names:
            self.names[label] = f"a{len(self.names)}"
            floats = values.dtype != torch.uint8
            texts = [hexadecimal(v) if floats else str(v) for v in values.flatten().tolist()]
            kind = "float" if floats else "uint8_t"
            self.lines += [f"/* {comment(label)} */", f"static const {kind} {self.names[label]}[] = {{"]
            self.lines += [f"    {line}" for line in wrapped(texts)]
            self.lines += ["};"]
            self.bytes += len(texts) * (FLOAT_BYTES if floats else 1)
        return self.names[label]


def pointers(stage: Stage, model: PackedModel, arrays: Arrays) -> dict[str, Number]:
    """Return the arrays of a stage, and how its weights are stored."""
    fields: dict[str, Number] = dict.fromkeys((*POINTERS, "bits", "centers_per_filter"), 0)
    if stage.conv is not None:
        name = stage.conv.weight
        packed = model.packed.get(name)
        if packed is None:
            fields["weights"] = arrays.add(name, model.tensors[name])
        else:
            # Two bytes are read at a time: one more than there are codes for.
            codes = functional.pad(pack(packed.indices, packed.bits), (0, 1))
            fields["weights"] = arrays.add(f"{name}, packed", codes)
            fields["centers"] = arrays.add(f"{name}, centers", packed.centers)
            fields["bits"] = packed.bits
            fields["centers_per_filter"] = packed.centers.shape[1] if len(packed.centers) > 1 else 0
    scale, shift = stage.affine(model.tensors)
    if scale is not None and stage.norm is not None:
        fields["scale"] = arrays.add(f"{stage.norm.mean}, scale", scale)
    if shift is not None:
        fields["shift"] = arrays.add(stage.bias or f"{stage.norm and stage.norm.mean}, shift", shift)
    return fields


def numbers(stage: Stage) -> dict[str, Number]:
    """Return the sizes of a stage."""
    conv = stage.conv or Conv("", (1, 1))
    pool = stage.pool or Pool("max", (1, 1), (1, 1))
    pairs = {
        "kernel": conv.kernel,
        "stride": conv.stride,
        "padding": conv.padding,
        "dilation": conv.dilation,
        "window": pool.size,
        "step": pool.stride,
        "margin": pool.padding,
    }
    return {
        **dict(zip(("channels", "height", "width"), stage.input, strict=True)),
        **dict(zip(("filters", "rows", "columns"), stage.between, strict=True)),
        **dict(zip(("out_rows", "out_columns"), stage.output[1:], strict=True)),
        **{f"{key}_{axis}": side for key, pair in pairs.items() for axis, side in zip("yx", pair, strict=True)},
        "groups": conv.groups,
        "convolves": int(stage.conv is not None),
        "padded": int(max(conv.padding) > 0),
        "margins": int(max(pool.padding) > 0),
        "relu": int(stage.relu),
        "mean": int(pool.kind == "mean"),
    }


def initializer(fields: Mapping[str, Number]) -> str:
    """Return a stage as a row of the C file's table."""
    lines = wrapped([f".{key} = {value}" for key, value in fields.items() if value != 0])
    return "\n".join(("    {", *(f"        {line}" for line in lines), "    },"))


def fan_in(stage: Stage) -> int:
    """Return the weights of one filter."""
    return 0 if stage.conv is None else stage.input[0] // stage.conv.groups * math.prod(stage.conv.kernel)


def hexadecimal(value: float) -> str:
    """Return a float32 as a C literal that has just its bits."""
    if not math.isfinite(value):
        raise ModelFileError(f"The network holds {value}, which C has no number for: train it again.")
    mantissa, exponent = value.hex().split("p")
    return f"{mantissa.rstrip('0').rstrip('.')}p{exponent}f" if "." in mantissa else f"{mantissa}p{exponent}f"


def wrapped(texts: Sequence[str], width: int = 112) -> list[str]:
    """Return words with commas between them in lines of a width."""
    lines, line = [], ""
    for text in texts:
        if line and len(line) + len(text) + 2 > width:
            lines.append(line)
            line = ""
        line += f"{text}, "
    return [entry.rstrip(" ") for entry in (*lines, line)]


def find_compiler() -> list[str] | None:
    """Return the command of this machine's C compiler: `CC`, or the one with the usual name."""
    words = os.environ.get("CC", "").split() or ["cc"]
    return words if shutil.which(words[0]) else None


def compute(source: str, name: str, inputs: Tensor, classes: int, compiler: Sequence[str]) -> Tensor:
    """Compile a file, and return the scores that it gives to samples."""
    with tempfile.TemporaryDirectory() as folder:
        file, library = Path(folder) / "model.c", Path(folder) / "model.so"
        file.write_text(source)
        try:
            subprocess.run(
                [*compiler, *FLAGS, str(file), "-o", str(library)], check=True, capture_output=True, text=True
            )
            predict = ctypes.CDLL(str(library))[f"{name}_predict"]
        except subprocess.CalledProcessError as error:
            raise ModelFileError(f"The C compiler refuses the network's file: {error.stderr.strip()[:500]}") from error
        except OSError as error:
            raise ModelFileError(f"The network's C file cannot be compiled and run: {error}.") from error
        samples = inputs.contiguous().float()
        scores = torch.zeros(len(samples), classes)
        for sample, row in zip(samples, scores, strict=True):
            predict(ctypes.c_void_p(sample.data_ptr()), ctypes.c_void_p(row.data_ptr()))
    return scores
