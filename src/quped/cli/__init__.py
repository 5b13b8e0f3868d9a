"""The command line."""

import sys
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.markup import escape

from quped.cli.bench import app as bench_app
from quped.cli.data import app as data_app
from quped.cli.paper import reproduce_command
from quped.cli.run import presets_command, run_command
from quped.cli.train import train_command
from quped.errors import QupedError
from quped.records import versions

app = typer.Typer(
    help="Federated learning in which every device gets its own, compressed model.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
)
app.command("run")(run_command)
app.command("presets")(presets_command)
app.command("reproduce")(reproduce_command)
app.command("train")(train_command)
app.add_typer(data_app, name="data")
app.add_typer(bench_app, name="bench")


def print_version(wanted: bool) -> None:
    """Print the version and stop."""
    if wanted:
        print(f"quped {versions()['quped']}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[bool, typer.Option("--version", help="Show the version.", callback=print_version)] = False,
) -> None:
    """Options of the program itself."""


def main() -> None:
    """Run the program. What a user can put right is told in a sentence, not in a traceback."""
    try:
        app()
    except QupedError as error:
        tell(str(error))
    except OSError as error:
        if error.filename is None:
            raise
        tell(f"{error.filename} cannot be used: {error.strerror}.")
    except KeyboardInterrupt:
        sys.exit(130)


def tell(error: str) -> NoReturn:
    """Print an error and stop."""
    Console(stderr=True, highlight=False, soft_wrap=True).print(f"[bold red]error:[/] {escape(error)}")
    sys.exit(2)
