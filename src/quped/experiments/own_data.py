"""A user's own data in an experiment: what a function returns, CSV files, folders of images."""

import importlib.util
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from quped.client import Client
from quped.data.by_client import ByClient, by_name
from quped.data.csv_files import Columns, load_csv
from quped.data.image_folders import load_images
from quped.errors import DataError, QupedError, did_you_mean
from quped.experiments.schema import CSVData, FolderData, Group, ModuleData, TableData


class Own(NamedTuple):
    """What a user's own data are."""

    samples: ByClient
    clients: Mapping[str, Client] = {}
    """With networks and bits, if a function returns these too."""


def load_own(data: ModuleData | CSVData | FolderData) -> Own:
    """Load a user's own data."""
    match data:
        case ModuleData():
            return call(*data.module.rsplit(":", 1))
        case CSVData():
            return Own(load_csv([Path(data.csv)], columns_of(data), Path(data.csv)))
        case FolderData():
            return Own(load_folder(data))


def columns_of(data: TableData) -> Columns:
    """Return which column of CSV files is what."""
    return Columns(data.label, data.by, data.split, data.columns)


def load_folder(data: FolderData) -> ByClient:
    """Read a folder of CSV files, or else of images."""
    folder = Path(data.folder)
    files = sorted(folder.glob("*.csv"))
    wrong = ("size", "color") if files else ("by", "split", "columns")
    for key in wrong:
        if getattr(data, key) is not None:
            kind = "CSV files, which have no" if files else "images in CLIENT/CLASS/FILE, which have no"
            raise DataError(f"data.{key}: {folder} holds {kind} {key}: leave the key out.")
    if files:
        return load_csv(files, columns_of(data), folder)
    size = (data.size, data.size) if isinstance(data.size, int) else data.size
    return load_images(folder, size, data.color or "rgb")


def call(file: str, function: str) -> Own:
    """Import a user's file, call a function in it, and check what it returns."""
    path = Path(file)
    if not path.is_file():
        raise DataError(f"There is no file {path}, which data.module names.")
    with users_code(path):
        spec = importlib.util.spec_from_file_location(f"quped_data_{path.stem}", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # classes of the file can then be pickled
        spec.loader.exec_module(module)
        known = {name: value for name, value in vars(module).items() if callable(value) and not name.startswith("_")}
        if function not in known:
            raise DataError(f"{path} has no function '{function}'. {did_you_mean(function, known)}")
        made = known[function]()
    source = f"{path}:{function}"
    if isinstance(made, Mapping):
        return Own(by_name(made, source))
    if isinstance(made, Sequence) and made and all(isinstance(client, Client) for client in made):
        clients = {client.name: client for client in made}
        if len(clients) < len(made):
            raise DataError(f"{source} returns two clients of one name: the names must be distinct.")
        return Own(by_name({name: (c.train, c.test, c.validation) for name, c in clients.items()}, source), clients)
    raise DataError(
        f"{source} must return pairs (train, test) by name, as in {{'phone': (train, test)}}, or a list of "
        f"Client(...), got {made!r:.80}."
    )


@contextmanager
def users_code(path: Path) -> Iterator[None]:
    """Run code of a user's file, which may import its neighbours; name the line of an error in it."""
    sys.path.insert(0, str(path.parent))
    try:
        yield
    except QupedError:
        raise
    except Exception as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        number = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else None
        where = "" if number is None else f", line {number}"
        raise DataError(f"{path}{where}: {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove(str(path.parent))


def assign(names: Sequence[str], groups: Sequence[Group]) -> dict[str, Group]:
    """Return the group of each client: groups with members choose first, the others take from the rest in turn."""
    taken: dict[str, Group] = {}
    for number, group in sorted(enumerate(groups), key=lambda item: item[1].members is None):
        left = [name for name in names if name not in taken]
        if group.members is None:
            chosen = left[: group.count]
            if not chosen or len(chosen) < (group.count or 0):
                raise DataError(
                    f"clients[{number}]: there are {len(left)} clients left for {group.count or 'this group'}: "
                    "lower the count, or remove the group."
                )
        else:
            for pattern in group.members:
                if not any(fnmatchcase(name, pattern) for name in names):
                    raise DataError(
                        f"clients[{number}].members: no client is '{pattern}'. {did_you_mean(pattern, names)}"
                    )
            chosen = [name for name in left if any(fnmatchcase(name, pattern) for pattern in group.members)]
        taken |= dict.fromkeys(chosen, group)
    if missed := [name for name in names if name not in taken]:
        raise DataError(
            f"{len(missed)} clients are in no group, such as '{missed[0]}': add a [[clients]] group without count and "
            "members, which takes all that are left."
        )
    return {name: taken[name] for name in names}
