"""Files that are complete or absent, and locks between processes."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout


def write_bytes(path: Path, content: bytes, scratch: Path | None = None) -> None:
    """Write a draft in the folder `scratch`, by default beside the file, and move it into place when it is complete."""
    draft = (scratch or path.parent) / f".{path.name}.{os.getpid()}"
    try:
        with draft.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


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
