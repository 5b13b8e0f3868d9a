"""A data set that can be downloaded: its description, the forms in which it is published, and how it is loaded."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from quped.data.download import store
from quped.data.download.sources import Download, Files
from quped.data.download.store import Tensors, stored_file
from quped.data.samples import Dataset
from quped.errors import DataError

Route = tuple[Download, ...]
"""Downloads that together hold all files of a layout."""


class DatasetInfo(NamedTuple):
    """Facts for a user who decides whether to fetch a data set."""

    content: str
    samples: str
    megabytes: float
    """Size in the cache."""
    licence: str


@dataclass(frozen=True)
class Layout:
    """One form in which a data set is published: its files, their decoder, and the routes to them."""

    files: tuple[str, ...]
    decode: Callable[[Files], Tensors]
    """Raises DataError for files that are not in the expected format."""
    routes: tuple[Route, ...]
    checksum: str | None = None
    """The digest of the published data; None where the files may differ between users."""

    @property
    def archives(self) -> list[str]:
        """The downloads that are archives: a user may have placed one as it came."""
        return [d.file for route in self.routes for d in route if d.file.endswith((".tar.gz", ".tgz"))]


@dataclass(frozen=True)
class RemoteDataset:
    """A data set that is fetched once and stored in the cache."""

    name: str
    info: DatasetInfo
    layouts: tuple[Layout, ...]
    build: Callable[[Path], Dataset]
    """Makes the data set from its stored file."""
    origin: str = ""
    """The origin of the raw files, where no download has them in this form."""

    @property
    def file(self) -> Path:
        """The stored file."""
        return stored_file(self.name)

    def load(self) -> Dataset:
        """Return the data set from the cache; its samples are mapped, not copied, into memory."""
        try:
            return self.build(self.file)
        except KeyError as error:
            raise DataError(
                f"{self.file} lacks {error}, and is not of '{self.name}': get it with `quped data fetch {self.name}`."
            ) from error

    def is_stored(self) -> bool:
        """Say whether the cache holds the data set undamaged. All of it is read."""
        store.VERIFIED.clear()
        try:
            self.load()
        except DataError:
            return False
        return True
