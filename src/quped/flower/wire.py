"""What server and nodes send each other: one record of plain values, and all tensors as one flat array of bytes.

A request holds the server's shared state, which both sides know the form of.
A reply holds a client's payload with its form, and metrics. Nothing else of a node is ever sent.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

from quped import _tree
from quped.errors import BadUpdateError, RunError

VALUES, TENSORS, FLAT = "values", "tensors", "flat"
"""The records of a message, and the only key of the second."""

DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.bool)
}
FORM_BYTES = 200
"""What the form of a tensor may take at most, beside its name."""

Flat = np.ndarray[Any, np.dtype[np.uint8]]


class Request(NamedTuple):
    """What a server asks of a node."""

    run: str
    """The run's own number: Flower's changes when a run is continued."""
    round: int
    seed: int
    options: dict[str, Any]
    """The training options, from which the node makes its schedule."""
    shared: Flat

    @property
    def digest(self) -> str:
        """Equal for two requests if they ask for the same."""
        words = json.dumps([self.run, self.round, self.seed, self.options], sort_keys=True).encode()
        return hashlib.sha256(words + self.shared.tobytes()).hexdigest()


class Reply(NamedTuple):
    """What a node answers."""

    values: dict[str, Any]
    """Who answers, and metrics."""
    flat: Flat
    """The payload of a round; empty in answers to other questions."""


def flatten(tree: object) -> Flat:
    """Return the bytes of all tensors of a tree, in its order."""
    parts = [leaf.detach().contiguous().flatten().view(torch.uint8) for _, leaf in _tree.items(tree)]
    return np.asarray(torch.cat(parts).numpy() if parts else np.zeros(0, np.uint8))


def form_of(tree: object) -> str:
    """Return the name, type and shape of every tensor of a tree, as JSON."""
    rows = [[path, str(leaf.dtype).removeprefix("torch."), *leaf.shape] for path, leaf in _tree.items(tree)]
    return json.dumps(rows, separators=(",", ":"))


def leaves_of(flat: Flat, form: str) -> dict[str, Tensor]:
    """Return the tensors of a flat array by their names. Raise a ValueError if array and form do not fit."""
    rows = json.loads(form)
    leaves, first = {}, 0
    for path, kind, *shape in rows:
        sized = all(type(size) is int and size >= 0 for size in shape)
        if not isinstance(path, str) or kind not in DTYPES or not sized:
            raise ValueError(f"'{path!s:.80}' has no known type and shape")
        end = first + math.prod(shape) * DTYPES[kind].itemsize
        if path in leaves or end > len(flat):
            raise ValueError(f"'{path:.80}' is there twice, or goes beyond the end")
        leaves[path] = torch.tensor(flat[first:end]).view(DTYPES[kind]).reshape(shape)
        first = end
    if first != len(flat):
        raise ValueError(f"{len(flat) - first} bytes are left over")
    return leaves


def unflatten(flat: Flat, template: Any, what: str) -> Any:
    """Return a tree in the form of a template, which the sender has, too."""
    try:
        return _tree.unflatten(template, leaves_of(flat, form_of(template)), "")
    except ValueError as error:
        raise RunError(
            f"The {what} has another form than expected ({error}): server and nodes must run the same app."
        ) from error


def read_payload(reply: Reply, template: Any) -> dict[str, Tensor]:
    """Return the tensors of a reply, if it is not larger than a payload can be."""
    expected, form = dict(_tree.items(template)), reply.values.get("form")
    size = sum(leaf.numel() * leaf.element_size() for leaf in expected.values())
    longest = sum(len(path.encode()) + FORM_BYTES for path in expected) + FORM_BYTES
    if len(reply.flat) != size:
        raise BadUpdateError(f"it has {len(reply.flat)} bytes of tensors, not {size}")
    if not isinstance(form, str) or len(form) > longest:
        raise BadUpdateError("it does not say which tensors it holds")
    try:
        return leaves_of(reply.flat, form)
    except (ValueError, TypeError, RuntimeError) as error:
        raise BadUpdateError(f"its tensors cannot be read: {error}") from error


def pack(values: Mapping[str, Any], flat: Flat) -> RecordDict:
    """Return the content of a message."""
    return RecordDict({VALUES: ConfigRecord(dict(values)), TENSORS: ArrayRecord({FLAT: Array(flat)})})


def unpack(content: RecordDict) -> Reply:
    """Return the values and the array of a message's content. Raise a ValueError if it is no message of ours."""
    if set(content) != {VALUES, TENSORS}:
        raise ValueError(f"it has the records {sorted(map(str, content))!s:.200}")
    values, tensors = content[VALUES], content[TENSORS]
    if not isinstance(values, ConfigRecord) or not isinstance(tensors, ArrayRecord) or set(tensors) != {FLAT}:
        raise ValueError("its records are of another kind")
    try:
        flat = np.asarray(tensors[FLAT].numpy())
    except Exception as error:  # NumPy's reader of files raises many kinds
        raise ValueError(f"its array cannot be read: {error}") from error
    if flat.dtype != np.uint8 or flat.ndim != 1:  # of the array itself: a sender may say something else of it
        raise ValueError(f"its array is {flat.dtype!s:.80} of shape {flat.shape!s:.80}, not flat bytes")
    return Reply(dict(values), flat)


def request_content(request: Request) -> RecordDict:
    """Return a request as the content of a message."""
    values = {
        "run": request.run,
        "round": request.round,
        "seed": request.seed,
        "options": json.dumps(request.options),
    }
    return pack(values, request.shared)


def read_request(content: RecordDict) -> Request:
    """Return the request in a message."""
    try:
        values, flat = unpack(content)
        options = json.loads(values["options"])
        return Request(str(values["run"]), int(values["round"]), int(values["seed"]), dict(options), flat)
    except (ValueError, KeyError, TypeError) as error:
        raise RunError(f"The server's message is not of quped's protocol ({error}): update both sides.") from error
