"""Bring a data set into the cache, from the first source that has it."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from quped.data.download import store
from quped.data.download.recipe import Layout, Recipe
from quped.data.download.sources import Download, Files, find
from quped.data.download.store import Tensors
from quped.errors import DataError

Say = Callable[[str], None]
"""Tells the user what is going on."""


def fetch(recipe: Recipe, folder: Path | None, say: Say) -> None:
    """Store the data set, unless it is stored already and whole.

    Sources, in order: the user's folder (in it, a subfolder with the data set's name goes first), then every route
    of every layout. Where the folder has only some of the files, a route adds the others.
    """
    if folder is not None and not folder.is_dir():
        raise DataError(f"There is no folder {folder}: name one that holds the raw files of '{recipe.name}'.")
    file = recipe.file
    there = f"{recipe.name}: already in {file}, checksum verified (delete it to fetch it again)"
    if store.intact(file):  # a folder that others keep may be read-only
        say(there)
        return
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with alone(file, say):
            if store.intact(file):
                say(there)
                return
            with scratch_folder(file.with_suffix(".partial")) as scratch:
                tensors, source = obtain(recipe, folder, scratch, say)
                store.write(file, tensors, source, scratch)
            say(f"{recipe.name}: stored in {file}, from {source}")
    except BrokenPipeError:  # nobody listens any more to what is said
        raise
    except OSError as error:
        raise DataError(
            f"The data set '{recipe.name}' cannot be stored in {file.parent} ({error}): make room there or give "
            "yourself permission, or name another folder in the environment variable QUPED_CACHE."
        ) from error


@contextmanager
def alone(file: Path, say: Say) -> Iterator[None]:
    """Let one process at a time fetch a data set; the others wait, and then find it stored."""
    lock = FileLock(file.with_suffix(".lock"))
    try:
        lock.acquire(blocking=False)
    except Timeout:
        say(f"{file.stem}: another process is fetching it, waiting")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextmanager
def scratch_folder(folder: Path) -> Iterator[Path]:
    """Make an empty folder, and remove it at the end. One that is there was left by a process that died."""
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def obtain(recipe: Recipe, folder: Path | None, scratch: Path, say: Say) -> tuple[Tensors, str]:
    """Try the sources in order; return the tensors, and where they came from."""
    failures = []
    placed: dict[Layout, Files] = {}
    if folder is not None:
        for layout in recipe.layouts:
            try:
                files = find_placed(folder, recipe.name, layout)
                if missing := absent(layout, files):
                    placed[layout] = files
                    raise DataError(f"{', '.join(missing)} not there")
                return decoded(layout, files), f"folder {folder}"
            except DataError as error:
                say(f"{recipe.name}: folder {folder}: {error}")
                failures.append(f"folder {folder}: {error}")
    # The layout of which the user has placed a part is the one that the user wants; unless that part is of no use.
    order = sorted(recipe.layouts, key=lambda layout: not placed.get(layout))
    attempts = [(layout, placed.get(layout, {})) for layout in order]
    for layout, files in attempts + [(layout, {}) for layout, files in attempts if files]:
        wanted = absent(layout, files)
        for route in layout.routes:
            needed = [download for download in route if any(name in wanted for name in download.holds)]
            source = " and ".join(dict.fromkeys([f"folder {folder}"] * bool(files) + [str(d) for d in needed]))
            say(f"{recipe.name}: trying {source}")
            try:
                return decoded(layout, files | downloaded(layout, needed, files, scratch)), source
            except DataError as error:
                say(f"{recipe.name}: {error}")
                failures.append(f"{source}: {error}")
    tried = "".join(f"\n  - {failure}" for failure in failures)
    raise DataError(f"The data set '{recipe.name}' could not be had. Tried:{tried}\n{by_hand(recipe)}")


def find_placed(folder: Path, name: str, layout: Layout) -> Files:
    """Return the files of a layout that the user has placed."""
    files = find(folder / name, layout.files, layout.archives)
    return files | find(folder, absent(layout, files), layout.archives)


def absent(layout: Layout, files: Files) -> list[str]:
    """Return the names of the files that a layout has and `files` has not."""
    return [name for name in layout.files if name not in files]


def downloaded(layout: Layout, downloads: list[Download], placed: Files, scratch: Path) -> Files:
    """Download the files of a layout that the user has not placed."""
    with scratch_folder(scratch / "downloads") as folder:
        for download in downloads:
            download.save(folder)
        files = find(folder, absent(layout, placed), layout.archives)
    if missing := absent(layout, placed | files):
        raise DataError(f"{', '.join(missing)} not in it")
    return files


def decoded(layout: Layout, files: Files) -> Tensors:
    """Read the raw files, and refuse data that differ from what everybody else has."""
    tensors = layout.decode(files)
    if layout.checksum not in (None, store.checksum(tensors)):
        raise DataError("the files can be read, but their content is not that of the published data set")
    return tensors


def by_hand(recipe: Recipe) -> str:
    """Say which files to place where."""
    choices = []
    for layout in recipe.layouts:
        choices += [route[0].file for route in layout.routes if len(route) == 1]
        choices.append(", ".join(layout.files))
    listed = "".join(f"\n  - {choice}" for choice in choices)
    return (
        f"To place it by hand, put one of these into a folder (each file may be gzipped) and run "
        f"`quped data fetch {recipe.name} --from FOLDER`:{listed}"
    )
