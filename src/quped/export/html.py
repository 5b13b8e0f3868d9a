"""A network as one HTML file, which holds the packed model and runs it in plain JavaScript."""

import base64
import copy
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor, nn

from quped.errors import InvalidValueError
from quped.export.chain import chain, run
from quped.export.facts import facts
from quped.export.packed import PackedModel, PackedTensor, from_bytes, to_bytes, write_file
from quped.export.verify import check_scores, enough
from quped.models.select import network_name
from quped.quant.packing import codebook_of

TEMPLATE = Path(__file__).parent / "templates" / "page.html"
DRAWN = (1, 28, 28), (1, 8, 8)
"""Shapes of images that a person can draw."""
MOST_SAMPLES = 20
MOST_BYTES = 30_000
"""Of the samples to choose from."""


def write_html(
    module: nn.Module,
    model: PackedModel,
    inputs: Tensor,
    labels: Tensor,
    path: Path,
    class_names: Sequence[str] = (),
    *,
    float16: bool = False,
    most_samples: int = MOST_SAMPLES,
) -> str:
    """Write a network as a page; return how it was verified.

    `model` holds the weights of `module`, with which the page's chain of stages must agree on `inputs`, some samples.
    A few of them become part of the page. When it is opened, it checks that it gives them PyTorch's classes.
    """
    stages = chain(module, inputs.shape[1:])
    file = to_bytes(model, float16=float16)
    stored = from_bytes(file, str(path))
    network = stored.fill(copy.deepcopy(module)) if float16 else module
    many = enough(inputs)
    with torch.no_grad():
        expected = network(many)
        changed = int((expected.argmax(1) != module(many).argmax(1)).sum())
        check_scores(str(path), run(stages, stored.state(), many), expected)
    chosen = choose(labels, most_samples)
    while len(samples := samples_file(inputs[chosen])) > MOST_BYTES and len(chosen) > 1:
        chosen = chosen[: len(chosen) // 2]
    data = {
        "name": str(model.info.get("client", network_name(module))),
        "about": " · ".join(facts(module, model)),
        "classes": list(class_names),
        "shape": list(inputs.shape[1:]),
        "scores": expected.shape[1],
        "draw": tuple(inputs.shape[1:]) in DRAWN,
        "levels": levels(inputs),
        "range": [float(inputs.min()), float(inputs.max())],
        "stages": [asdict(stage) for stage in stages],
        "bytes": len(file),
        "float32": model.float_bytes,
        "labels": labels[chosen].tolist(),
        "predicted": expected[chosen].argmax(1).tolist(),
        "model": base64.b64encode(file).decode(),
        "samples": base64.b64encode(samples).decode(),
    }
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    write_file(path, TEMPLATE.read_text().replace("@DATA@", text).encode())
    rounding = f", but for {changed:,} that float16 changes" if float16 else ""
    return f"stages run on {len(many):,} inputs: same classes{rounding}; the page holds {len(chosen)} samples"


def choose(labels: Tensor, most: int) -> list[int]:
    """Return the numbers of some samples: those of a class come in turn with others."""
    seen: dict[int, int] = {}
    turns = []
    for i, label in enumerate(labels.tolist()):
        seen[label] = seen.get(label, 0) + 1
        turns.append((seen[label], label, i))
    return [i for _, _, i in sorted(turns)[:most]]


def samples_file(inputs: Tensor) -> bytes:
    """Return samples as a model's file, packed if the values of each channel are few, as those of pixels are."""
    tensor = inputs.transpose(0, 1).contiguous().float()
    try:
        book = codebook_of(tensor, 8)
    except InvalidValueError:
        return to_bytes(PackedModel({}, {"samples": tensor}))
    return to_bytes(PackedModel({"samples": PackedTensor(book.centers, book.indices.byte(), tuple(tensor.shape))}, {}))


def levels(inputs: Tensor) -> tuple[float, float]:
    """Return the values of paper and ink in images: the most frequent one, and the one that is farthest from it."""
    paper, low, high = (float(value) for value in (inputs.flatten().mode().values, inputs.min(), inputs.max()))
    return paper, high if high - paper >= paper - low else low
