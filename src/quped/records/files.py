"""Files that are whole or absent, folders used by one process at a time, and JSON."""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from quped._files import is_locked, locked, remove_drafts
from quped._files import write_bytes as write_bytes
from quped.errors import RunError

PATIENCE = 10.0
"""Seconds to wait for a folder: the workers of a killed run need a few to notice."""


LOCK = ".lock"
"""The file whose lock a process holds that uses a folder."""

SEAL = "sha256"
"""The last key of a JSON file of ours: the digest of all others."""


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Write values as JSON, with their digest, to a file that is either there with all its content, or absent."""
    # As they will be read: JSON knows no tuples, and no keys but words.
    values = json.loads(json.dumps(plain(values), allow_nan=False))
    try:
        write_bytes(path, json.dumps({**values, SEAL: digest(values)}, indent=2).encode() + b"\n")
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror}.") from error


def read_json(path: Path, *keys: str, sealed: bool = False) -> dict[str, Any]:
    """Read a file of a record, which must have these keys.

    Its content must have the digest in the file, if there is one; with `sealed`, there must be one. Files that older
    versions wrote have none.
    """
    try:
        values = json.loads(path.read_text())
        found = values.pop(SEAL, None) if isinstance(values, dict) else None
        intact = not sealed if found is None else found == digest(values)
    except FileNotFoundError:
        raise RunError(f"{path.parent} holds no run: there is no {path.name}.") from None
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{path} cannot be read: {error}. If it is damaged, remove it and repeat the run.") from error
    if not intact or not isinstance(values, dict) or not values.keys() >= set(keys):
        raise RunError(f"{path} is damaged, or no part of a record: remove it and repeat the run.")
    return values


def digest(values: Mapping[str, Any]) -> str:
    """Return the SHA-256 of values as JSON, whatever the order of their keys."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def plain(value: Any) -> Any:
    """Return a value as JSON can hold it: infinity and NaN, for which it has no number, as the words that TOML uses."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return nested values one by one, each with its path, such as `training.lr`."""
    flat: dict[str, str] = {}
    for key, value in values.items():
        path = f"{prefix}{key}"
        flat |= flatten(value, f"{path}.") if isinstance(value, dict) else {path: repr(value)}
    return flat


def in_use(folder: Path) -> bool:
    """Say whether a process uses a folder now."""
    return is_locked(folder / LOCK)


@contextmanager
def exclusive(folder: Path, *, seconds: float = PATIENCE) -> Iterator[None]:
    """Let no other process use a folder within the block; make it if need be, and remove it if it ends up empty.

    Wait for another process up to `seconds`.
    """
    try:
        with ExitStack() as stack:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                stack.enter_context(locked(folder / LOCK, seconds=seconds))
                remove_drafts(folder)
            except TimeoutError:
                raise RunError(
                    f"{folder} is in use by another process: wait until that ends, or name another folder."
                ) from None
            except OSError as error:
                raise RunError(f"The folder {folder} cannot be used: {error.strerror}.") from error
            yield
    finally:
        with suppress(OSError):
            folder.rmdir()
