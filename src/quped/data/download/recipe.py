"""What is known of a data set that can be fetched."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from quped.data.download.sources import Download, Files
from quped.data.download.store import Tensors, stored_file
from quped.data.samples import Dataset

Route = tuple[Download, ...]
"""Downloads that together hold all files of a layout."""


class About(NamedTuple):
    """What a user wants to know before fetching."""

    what: str
    samples: str
    megabytes: float
    """Size in the cache."""
    licence: str


@dataclass(frozen=True)
class Layout:
    """One form in which a data set is published: its files, how they are read, and where they can be had."""

    files: tuple[str, ...]
    decode: Callable[[Files], Tensors]
    """Raises DataError for files that are not what they should be."""
    routes: tuple[Route, ...]
    checksum: str | None = None
    """What `store.checksum` must give, where everybody has the same data."""

    @property
    def archives(self) -> list[str]:
        """The downloads that are archives: a user may have placed one as it came."""
        return [d.file for route in self.routes for d in route if d.file.endswith((".tar.gz", ".tgz"))]


@dataclass(frozen=True)
class Recipe:
    """A data set that is fetched once and stored."""

    name: str
    about: About
    layouts: tuple[Layout, ...]
    build: Callable[[Path], Dataset]
    """Makes the data set from its stored file."""

    @property
    def file(self) -> Path:
        """The stored file."""
        return stored_file(self.name)

    def load(self) -> Dataset:
        """Return the data set from the cache; its samples are mapped, not copied, into memory."""
        return self.build(self.file)
