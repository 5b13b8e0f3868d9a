"""A user's own samples by client: who has which, and what the networks must know of them."""

import hashlib
import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from quped._rng import generator, torch_seeded
from quped.data.from_user import Data, as_samples
from quped.data.partition import HELD_OUT_FRACTION, Indices, hold_out
from quped.data.samples import Samples, subset
from quped.errors import DataError

PARTS = ("train", "test", "validation")

CHUNK = 1024
"""Samples that are read at once."""

NAME = re.compile(r"[^/\\\x00-\x1f\x7f]{1,200}")
"""A client's name: it becomes the name of a file."""


class Shares(NamedTuple):
    """The samples of one client."""

    train: Samples
    test: Samples | None = None
    validation: Samples | None = None

    def present(self) -> Iterator[Samples]:
        """Yield the parts that there are."""
        yield from (part for part in self if part is not None)


@dataclass(frozen=True)
class ByClient:
    """Samples of clients with names of their own."""

    clients: Mapping[str, Shares]
    input_shape: tuple[int, ...]
    """Of a sample; the size of the vocabulary if inputs are whole numbers, such as words."""
    classes: int
    class_names: tuple[str, ...] = ()
    preparation: Mapping[str, Any] = field(default_factory=dict)
    """What was done to the inputs, and must be done to those of a device: columns, mean and standard deviation."""


def by_name(parts: Mapping[str, Sequence[Data | None]], source: str) -> ByClient:
    """Return samples that a user gives by name, as (train, test) or (train, test, validation); checked."""
    clients = {}
    for name, shares in parts.items():
        check_name(name, source)
        if not isinstance(shares, tuple | list) or not 2 <= len(shares) <= 3 or shares[0] is None:
            raise DataError(
                f"Client '{name}' of {source} must be a pair (train, test) or (train, test, validation), "
                f"got {shares!r:.80}."
            )
        train, *others = shares
        clients[name] = Shares(
            as_samples(train, f"training data of client '{name}'"),
            *(
                None if data is None else as_samples(data, f"{part} data of client '{name}'")
                for part, data in zip(PARTS[1:], others, strict=False)
            ),
        )
    if not clients:
        raise DataError(f"{source} has no clients.")
    every = [samples for shares in clients.values() for samples in shares.present()]
    classes = 1 + max(int(samples.labels.max()) for samples in every)
    return ByClient(clients, shape_of(every), classes)


def check_name(name: object, where: str) -> None:
    """Raise unless a name of a client can be the name of a file."""
    if not isinstance(name, str) or not NAME.fullmatch(name) or name.startswith(".") or name != name.strip():
        raise DataError(
            f"{where}: {name!r:.80} cannot be the name of a client, whose model gets a file of that name: use a word "
            "without slashes that does not begin with a dot."
        )


def shape_of(every: Sequence[Samples]) -> tuple[int, ...]:
    """Return the shape of an input; the size of the vocabulary if inputs are whole numbers."""
    first = next(read(every[0]))[0]
    if first.is_floating_point():
        return tuple(first.shape[1:])
    return (1 + max(int(inputs[0].max()) for samples in every for inputs in read(samples)),)


def read(samples: Samples) -> Iterator[tuple[Tensor, ...]]:
    """Yield the inputs of all samples, some at a time."""
    for start in range(0, len(samples), CHUNK):
        with torch_seeded(0, "read"):  # PyTorch data sets may be random
            yield samples.batch(torch.arange(start, min(start + CHUNK, len(samples)))).inputs


def content_digest(samples: Samples) -> str:
    """Return the SHA-256 of all inputs and labels."""
    sha = hashlib.sha256()
    for tensor in (samples.labels, *(part for inputs in read(samples) for part in inputs)):
        sha.update(f"{tensor.dtype} {list(tensor.shape)}\n".encode())
        sha.update(tensor.contiguous().flatten().view(torch.uint8).numpy().data)
    return sha.hexdigest()


class Row(NamedTuple):
    """What a file says of a sample, besides its input."""

    client: str
    label: str
    part: str | None
    """One of PARTS; None if the file does not say."""


def indices_by_client(rows: Sequence[Row], source: Path) -> dict[str, dict[str, Indices]]:
    """Return the samples of every part of every client; without parts, a fifth of a client's is for testing.

    Which fifth follows from the client's name and the number of its samples alone: it is the same for every seed.
    """
    found: dict[str, dict[Hashable, list[int]]] = {}
    for index, row in enumerate(rows):
        found.setdefault(row.client, {}).setdefault(row.part, []).append(index)
    clients = {}
    for name, parts in sorted(found.items()):
        indices = {part: np.array(parts[part], np.int64) for part in PARTS if part in parts}
        if None in parts:
            if len(parts[None]) < 2:
                raise DataError(f"{source}: client '{name}' has one sample, but needs one to train and one to test.")
            held = hold_out(np.array(parts[None], np.int64), generator(0, "test", name), HELD_OUT_FRACTION)
            indices = {"train": held.train, "test": held.test}
        if "train" not in indices:
            raise DataError(f"{source}: client '{name}' has no training samples.")
        clients[name] = indices
    return clients


def shared_out(whole: Samples, indices: Mapping[str, Mapping[str, Indices]]) -> dict[str, Shares]:
    """Return the samples of every client."""
    return {
        name: Shares(**{part: subset(whole, chosen) for part, chosen in parts.items()})
        for name, parts in indices.items()
    }


def training_rows(indices: Mapping[str, Mapping[str, Indices]]) -> Tensor:
    """Return the training samples of all clients, in the order of the file."""
    return torch.from_numpy(np.sort(np.concatenate([parts["train"] for parts in indices.values()])))


def numbered(labels: Sequence[str], source: Path) -> tuple[Tensor, tuple[str, ...]]:
    """Return the number of each label's class, and the names of the classes: in the order of numbers if they are."""
    names = set(labels)
    if len(names) < 2:
        raise DataError(f"{source} has one class, '{labels[0]}': there is nothing to tell apart.")
    whole = all(re.fullmatch(r"-?\d{1,18}", name) for name in names)
    ordered = sorted(names, key=lambda name: (int(name) if whole else 0, name))
    numbers = {name: number for number, name in enumerate(ordered)}
    return torch.tensor([numbers[label] for label in labels]), tuple(ordered)
