"""Samples of clients from CSV files: a row is a sample, a column its class, another one its client."""

import csv
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from quped.data.by_client import (
    PARTS,
    ByClient,
    Row,
    check_name,
    indices_by_client,
    numbered,
    shared_out,
    training_rows,
)
from quped.data.samples import TensorSamples
from quped.errors import DataError, did_you_mean


class Columns(NamedTuple):
    """Which column of a file is what."""

    label: str = "label"
    by: str | None = None
    """The client; None if every file is a client of its own."""
    split: str | None = None
    """The part: train, test or validation; None if there is no such column."""
    inputs: tuple[str, ...] | None = None
    """None: all others."""


class Sample(NamedTuple):
    """A row of a file."""

    row: Row
    inputs: list[float]


def load_csv(files: Sequence[Path], columns: Columns, source: Path) -> ByClient:
    """Read CSV files with the same columns. Inputs are standardized by the training samples of all clients."""
    if columns.by is None and len(files) == 1:
        raise DataError(f'{source}: name the column of the client, as in by = "user", or give a folder of files.')
    used = columns if columns.inputs is not None else columns._replace(inputs=input_columns(files[0], columns))
    samples = [sample for file in files for sample in read_rows(file, used)]
    if not samples:
        raise DataError(f"{source} has a header but no rows.")
    rows = [sample.row for sample in samples]
    indices = indices_by_client(rows, source)
    labels, class_names = numbered([row.label for row in rows], source)
    values = torch.tensor([sample.inputs for sample in samples], dtype=torch.float64)
    trained = values[training_rows(indices)]
    mean, std = trained.mean(0), trained.std(0, correction=0)
    std[std == 0] = 1  # a column that never changes
    whole = TensorSamples(((values - mean) / std).to(torch.get_default_dtype()), labels)
    preparation = {"columns": list(used.inputs or ()), "mean": mean.tolist(), "std": std.tolist()}
    return ByClient(shared_out(whole, indices), (values.shape[1],), len(class_names), class_names, preparation)


def input_columns(file: Path, columns: Columns) -> tuple[str, ...]:
    """Return the columns of a file that are neither class nor client nor part."""
    _, header = next(lines(file), (0, []))
    inputs = tuple(name for name in header if name not in (columns.label, columns.by, columns.split))
    if header and not inputs:
        raise DataError(f"{file} has no column of inputs beside {', '.join(header)}.")
    return inputs


def lines(file: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of a file that are not empty, each with the number of its line."""
    try:
        with file.open(encoding="utf-8-sig", newline="") as text:
            reader = csv.reader(text, strict=True)
            for cells in reader:
                if cells:
                    yield reader.line_num, cells
    except csv.Error as error:
        raise DataError(f"{file}, line {reader.line_num}: {error}.") from error
    except UnicodeDecodeError as error:
        raise DataError(
            f"{file} is no text in UTF-8 ({error.reason} at byte {error.start}): save it as UTF-8."
        ) from error
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error.strerror}.") from error


def read_rows(file: Path, columns: Columns) -> Iterator[Sample]:
    """Yield the samples of a file."""
    rows = lines(file)
    _, header = next(rows, (0, []))
    place = places(file, header, columns)
    for line, cells in rows:
        where = f"{file}, line {line}"
        if len(cells) != len(header):
            raise DataError(f"{where} has {len(cells)} cells, but the header has {len(header)}.")
        client = file.stem if columns.by is None else cells[place[columns.by]].strip()
        check_name(client, where)
        label = cells[place[columns.label]].strip()
        if not label:
            raise DataError(f"{where}, column '{columns.label}': the class is empty.")
        part = None if columns.split is None else cells[place[columns.split]].strip()
        if part is not None and part not in PARTS:
            raise DataError(f"{where}, column '{columns.split}': {part!r} must be one of {', '.join(PARTS)}.")
        yield Sample(
            Row(client, label, part), [number(cells[place[name]], where, name) for name in columns.inputs or ()]
        )


def places(file: Path, header: list[str], columns: Columns) -> dict[str, int]:
    """Return where each column of a file is."""
    if not header:
        raise DataError(f"{file} is empty: its first line must name the columns.")
    if twice := [name for name in header if header.count(name) > 1]:
        raise DataError(f"{file} has two columns '{twice[0]}': rename one.")
    for name in (columns.label, columns.by, columns.split, *(columns.inputs or ())):
        if name is not None and name not in header:
            hint = " Cells are separated by commas." if len(header) == 1 else ""
            raise DataError(f"{file} has no column '{name}'. {did_you_mean(name, header)}{hint}")
    return {name: index for index, name in enumerate(header)}


def number(cell: str, where: str, column: str) -> float:
    """Return the number in a cell."""
    try:
        value = float(cell)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        found = "is empty" if not cell.strip() else f"has {cell.strip()!r:.40}"
        raise DataError(
            f"{where}, column '{column}' {found} where a number belongs: correct it, leave out the row, or list the "
            "columns of numbers in data.columns."
        )
    return value
