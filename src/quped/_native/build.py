"""From a C++ file of this folder to a loaded library, compiled once for this machine and kept in the cache."""

import ctypes
import hashlib
import logging
import os
import platform
import shlex
import shutil
import stat
import subprocess
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TypeVar

from quped._cache import cache_folder
from quped._files import remove_drafts, write_bytes

FLAGS = ("-std=c++17", "-O3", "-march=native", "-fPIC", "-shared")
SWITCH = "QUPED_NATIVE"
"""The environment variable that turns compiled kernels off when it is 0."""

T = TypeVar("T")
Pairs = tuple[tuple[str, T], ...]

log = logging.getLogger("quped")


@cache
def library(name: str, constants: Pairs[int], signatures: Pairs[str]) -> ctypes.CDLL | None:
    """Return the library compiled from `<name>.cpp` with these constants; None, said in the log, where that fails.

    A function's signature has one letter for each argument: n for a number, p for an address.
    """
    if os.environ.get(SWITCH) == "0":
        return None
    compiler = find_compiler()
    if compiler is None:
        return None
    source = Path(__file__).with_name(f"{name}.cpp")
    command = [*compiler, *FLAGS, *(f"-D{key}={value}" for key, value in constants)]
    about = (source.read_text(), *command, processor())
    key = hashlib.sha256("\0".join(about).encode()).hexdigest()[:16]
    file = cache_folder() / "native" / f"{name}-{key}.so"
    try:
        found = load(command, source, file)
    except (OSError, subprocess.SubprocessError) as error:
        detail = error.stderr.strip() if isinstance(error, subprocess.CalledProcessError) else error
        log.warning("Compiling %s failed, PyTorch's own, slower kernels are used instead: %s", source.name, detail)
        return None
    for function, signature in signatures:
        symbol = getattr(found, function)
        symbol.argtypes = [ctypes.c_int64 if letter == "n" else ctypes.c_void_p for letter in signature]
        symbol.restype = None
    return found


def load(command: list[str], source: Path, file: Path) -> ctypes.CDLL:
    """Load a library, compiled if it is absent or cannot be trusted; for this process alone where the cache fails."""
    with suppress(OSError):
        if not is_trusted(file):
            compile_file(command, source, file)
        if is_trusted(file):
            return ctypes.CDLL(str(file))
    with tempfile.TemporaryDirectory() as scratch:  # a loaded library needs its file no longer
        made = Path(scratch) / file.name
        compile_file(command, source, made)
        return ctypes.CDLL(str(made))


def is_trusted(file: Path) -> bool:
    """Say whether a library is whole, and was put there by this user or root alone: a damaged one kills the process."""
    try:
        owner, mode = file.stat().st_uid, file.stat().st_mode
        expected = digest_file(file).read_bytes()
        content = file.read_bytes()
    except OSError:
        return False
    private = not hasattr(os, "geteuid") or (owner in (0, os.geteuid()) and not mode & (stat.S_IWGRP | stat.S_IWOTH))
    return private and hashlib.sha256(content).hexdigest().encode() == expected


def digest_file(library: Path) -> Path:
    """Return the file beside a library that holds its SHA-256."""
    return library.with_suffix(".sha256")


@cache
def find_compiler() -> tuple[str, ...] | None:
    """Return the command of this machine's C++ compiler: `CXX`, such as "ccache g++", or one with a usual name."""
    wanted = os.environ.get("CXX", "")
    try:
        words = shlex.split(wanted)
    except ValueError:  # a quote without its other half
        words = [wanted]
    for name, *options in filter(None, (words, ["c++"], ["g++"], ["clang++"])):
        if found := shutil.which(name):
            return found, *options
    log.warning("There is no C++ compiler: PyTorch's own, slower kernels are used. Install g++ or clang++, or set CXX.")
    return None


@cache
def processor() -> str:
    """Return what tells this kind of processor from others: a library is of no use on another one."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = cpuinfo.read_text().splitlines()
        return next((line for line in lines if line.startswith(("flags", "Features"))), platform.machine())
    return platform.machine() + platform.processor()


def compile_file(command: list[str], source: Path, file: Path) -> None:
    """Compile; files appear in one step, so that processes which compile the same do each other no harm."""
    file.parent.mkdir(parents=True, exist_ok=True)
    remove_drafts(file.parent)
    with tempfile.TemporaryDirectory() as scratch:
        made = Path(scratch) / file.name
        subprocess.run([*command, str(source), "-o", str(made)], check=True, capture_output=True, text=True)
        store(file, made.read_bytes())


def store(file: Path, content: bytes) -> None:
    """Write a library, and its digest."""
    # The library first: without its digest, or with an older one, it is compiled again.
    write_bytes(file, content)
    write_bytes(digest_file(file), hashlib.sha256(content).hexdigest().encode())
