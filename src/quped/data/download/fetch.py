"""Bring a data set into the cache, from the first source that has it."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from quped._digest import tensor_digest
from quped._files import locked
from quped.data.download import store
from quped.data.download.remote import Layout, RemoteDataset
from quped.data.download.sources import Download, Files, Progress, read_files
from quped.data.download.store import Tensors
from quped.errors import DataError

Say = Callable[[str], None]
"""Receives lines of text for the user."""


def ignore_progress(file: str, received: int, expected: int) -> None:
    """Show nothing."""


def fetch(dataset: RemoteDataset, folder: Path | None, say: Say, progress: Progress = ignore_progress) -> None:
    """Store the data set, unless it is stored already and intact.

    Sources, in order: the user's folder (in it, a subfolder with the data set's name goes first), then every route
    of every layout. Where the folder has only some of the files, a route adds the others.
    """
    if folder is not None and not folder.is_dir():
        raise DataError(f"There is no folder {folder}: name one that holds the raw files of '{dataset.name}'.")
    file = dataset.file
    already = f"{dataset.name}: already in {file}, checksum verified (delete it to fetch it again)"
    if dataset.is_stored():  # without a lock: a cache that users share may be read-only
        say(already)
        return
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        waiting = f"{dataset.name}: another process is fetching it, waiting"
        with locked(file.with_suffix(".lock"), on_wait=lambda: say(waiting)):
            if dataset.is_stored():
                say(already)
                return
            with scratch_folder(file.with_suffix(".partial")) as scratch:
                tensors, source = obtain(dataset, folder, scratch, say, progress)
                store.write(file, tensors, source, scratch)
            say(f"{dataset.name}: stored in {file}, from {source}")
    except BrokenPipeError:  # the reader of our messages has gone
        raise
    except OSError as error:
        raise DataError(
            f"The data set '{dataset.name}' cannot be stored in {file.parent} ({error}): free some space, change the "
            "permissions, or name another folder in the environment variable QUPED_CACHE."
        ) from error


@contextmanager
def scratch_folder(folder: Path) -> Iterator[Path]:
    """Make an empty folder, and remove it at the end. One that exists was left by a process that died."""
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def obtain(
    dataset: RemoteDataset, folder: Path | None, scratch: Path, say: Say, progress: Progress
) -> tuple[Tensors, str]:
    """Try the sources in order; return the tensors, and the name of the source that worked."""
    failures = []
    placed: dict[Layout, Files] = {}
    if folder is not None:
        for layout in dataset.layouts:
            try:
                files = read_placed(folder, dataset.name, layout)
                if missing := absent(layout, files):
                    placed[layout] = files
                    raise DataError(f"{', '.join(missing)} not there")
                return decoded(layout, files), f"folder {folder}"
            except DataError as error:
                say(f"{dataset.name}: folder {folder}: {error}")
                failures.append(f"folder {folder}: {error}")
    # The user wants the layout of which the folder has a part, so it goes first. If that part turns out to be
    # useless, the layout is tried once more without it.
    order = sorted(dataset.layouts, key=lambda layout: not placed.get(layout))
    attempts = [(layout, placed.get(layout, {})) for layout in order]
    for layout, files in attempts + [(layout, {}) for layout, files in attempts if files]:
        wanted = absent(layout, files)
        for route in layout.routes:
            needed = [download for download in route if any(name in wanted for name in download.holds)]
            sources = [f"folder {folder}"] if files else []
            source = " and ".join(dict.fromkeys([*sources, *map(str, needed)]))
            say(f"{dataset.name}: trying {source}")
            try:
                return decoded(layout, files | downloaded(layout, needed, files, scratch, progress)), source
            except DataError as error:
                say(f"{dataset.name}: {error}")
                failures.append(f"{source}: {error}")
    tried = "".join(f"\n  - {failure}" for failure in failures)
    attempts_told = f" Tried:{tried}" if failures else ""
    raise DataError(f"The data set '{dataset.name}' could not be fetched.{attempts_told}\n{by_hand(dataset)}")


def read_placed(folder: Path, name: str, layout: Layout) -> Files:
    """Return the files of a layout that the user has placed."""
    files = read_files(folder / name, layout.files, layout.archives)
    return files | read_files(folder, absent(layout, files), layout.archives)


def absent(layout: Layout, files: Files) -> list[str]:
    """Return the names of the layout's files that are not among `files`."""
    return [name for name in layout.files if name not in files]


def downloaded(layout: Layout, downloads: list[Download], placed: Files, scratch: Path, progress: Progress) -> Files:
    """Download the files of a layout that the user has not placed."""
    with scratch_folder(scratch / "downloads") as folder:
        for download in downloads:
            download.save(folder, progress)
        files = read_files(folder, absent(layout, placed), layout.archives)
    if missing := absent(layout, placed | files):
        raise DataError(f"{', '.join(missing)} not in it")
    return files


def decoded(layout: Layout, files: Files) -> Tensors:
    """Read the raw files, and refuse data that differ from the published data set."""
    tensors = layout.decode(files)
    if layout.checksum not in (None, tensor_digest(tensors)):
        raise DataError("the files can be read, but their content differs from the published data set")
    return tensors


def by_hand(dataset: RemoteDataset) -> str:
    """Explain which files to place where."""
    choices = []
    for layout in dataset.layouts:
        choices += [route[0].file for route in layout.routes if len(route) == 1]
        choices.append(", ".join(layout.files))
    listed = "".join(f"\n  - {choice}" for choice in choices)
    origin = f"It is made from {dataset.origin}, and there is no download. " if dataset.origin else ""
    return (
        f"{origin}To place it by hand, put one of these into a folder (each file may be gzipped) and run "
        f"`quped data fetch {dataset.name} --from FOLDER`:{listed}"
    )
