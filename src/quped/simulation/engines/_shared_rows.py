"""Trees of tensors in flat memory-mapped files: shared between processes, spilled to the disk by the system."""

import os
import weakref
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from quped import _tree

ALIGNMENT = 64


class Place(NamedTuple):
    """Where in a row one tensor is."""

    offset: int
    size: int
    dtype: torch.dtype
    shape: torch.Size


class Rows:
    """A file with a row for each of `count` trees, all in the shape of a template.

    Untouched rows take no space on the disk. Reserve rows before they are written: a process that writes to a mapped
    file when the disk is full dies without a word.
    """

    def __init__(self, path: Path, template: Any, count: int) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        weakref.finalize(self, os.close, self._file)
        self._template = template
        self._places: list[Place] = []
        offset = 0
        for _, leaf in _tree.items(template):
            size = leaf.numel() * leaf.element_size()
            self._places.append(Place(offset, size, leaf.dtype, leaf.shape))
            offset += -(-size // ALIGNMENT) * ALIGNMENT
        self.stride = offset
        """Bytes of a row."""
        # An empty tree needs no file, and a file cannot be mapped without a byte.
        self._bytes = (
            torch.from_file(str(path), shared=True, size=offset * count, dtype=torch.uint8)
            if offset
            else torch.empty(0, dtype=torch.uint8)
        )

    def reserve(self, first: int, count: int) -> None:
        """Take the space of some rows, or raise an OSError."""
        if self.stride and count:
            os.posix_fallocate(self._file, first * self.stride, count * self.stride)

    def read(self, row: int) -> Any:
        """Return the tree of a row. Its tensors are views: what is written later is seen."""
        places = iter(self._places)
        return _tree.map_leaves(lambda _: self._view(row, next(places)), self._template)

    def write(self, row: int, value: Any) -> None:
        """Copy a tree into a row."""
        for place, (_, leaf) in zip(self._places, _tree.items(value), strict=True):
            self._view(row, place).copy_(leaf)

    def _view(self, row: int, place: Place) -> Tensor:
        begin = row * self.stride + place.offset
        return self._bytes[begin : begin + place.size].view(place.dtype).view(place.shape)
