"""Files that are complete or absent, and locks between processes."""

import glob
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

DRAFT = re.compile(r"\..+\.(\d+)\.draft")
"""The name of a draft: that of its file, and the process that writes it."""


def write_bytes(path: Path, content: bytes, scratch: Path | None = None) -> None:
    """Write a draft in the folder `scratch`, by default beside the file, and move it into place when it is complete."""
    draft = (scratch or path.parent) / f".{path.name}.{os.getpid()}.draft"
    try:
        draft.unlink(missing_ok=True)
        with draft.open("xb") as file:  # a new file: a link of this name leads nowhere
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Bring the names in a folder to the disk, where the system can: a file that was moved there then stays."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def remove_drafts(folder: Path, name: str | None = None) -> None:
    """Remove what processes left that were killed while they wrote: all drafts in a folder and below, or one file's."""
    for draft in folder.glob("**/.*.draft" if name is None else f".{glob.escape(name)}.*.draft"):
        named = DRAFT.fullmatch(draft.name)
        if named and not is_running(int(named[1])):
            draft.unlink(missing_ok=True)


def is_running(process: int) -> bool:
    """Say whether another process with this number is running."""
    if process == os.getpid():
        return False
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # somebody else's
        return True
    return True


def is_locked(file: Path) -> bool:
    """Say whether a process holds a lock. Nothing is changed: a process that was killed leaves the file of its lock."""
    try:
        import fcntl
    except ImportError:  # Windows
        return file.exists()
    try:
        with file.open("rb") as opened:
            fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:  # it is held, or nobody can say
        return True
    return False


@contextmanager
def locked(file: Path, *, seconds: float = -1, on_wait: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold a lock between processes within the block, and remove its file at the end.

    If another process holds the lock, call `on_wait`, then wait up to `seconds` (-1: without limit) and raise
    TimeoutError.
    """
    lock = FileLock(file)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        if on_wait is not None:
            on_wait()
        lock.acquire(timeout=seconds)
    try:
        yield
    finally:
        with suppress(OSError):  # while the lock is held: a process that waits checks that the file still exists
            file.unlink()
        lock.release()
