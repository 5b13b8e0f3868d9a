"""The command line: parsing and printing."""

import errno
import io
import logging
import shlex
import sys
import tempfile
import traceback
from importlib import import_module, metadata
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.markup import escape
from typer.core import TyperGroup

from quped.errors import QupedError

COMMANDS = {
    "run": "quped.cli.run",
    "tune": "quped.cli.tune",
    "presets": "quped.cli.presets",
    "report": "quped.cli.report",
    "watch": "quped.cli.watch",
    "train": "quped.cli.train",
    "plan": "quped.cli.plan",
    "export": "quped.cli.export",
    "inspect": "quped.cli.inspect",
    "data": "quped.cli.data",
    "paper": "quped.cli.paper",
    "bench": "quped.cli.bench",
    "flower": "quped.cli.flower",
}
"""The module of each command, whose `app` it is."""

OLD_COMMANDS = {"reproduce": "quped.cli.reproduce"}
"""Old names, which help does not list. They go with the next release."""


class LazyCommands(TyperGroup):
    """Imports a command's module when the command is used: PyTorch takes a second to load."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the commands in the order in which help lists them."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command by its name."""
        modules = COMMANDS | OLD_COMMANDS
        if cmd_name not in modules:
            return None
        command = typer.main.get_command(import_module(modules[cmd_name]).app)
        command.name = cmd_name
        return command


app = typer.Typer(
    cls=LazyCommands,
    help="Personalized federated learning with learned low-bit weights.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
)


def print_version(wanted: bool) -> None:
    """Print the version and stop."""
    if wanted:
        print(f"quped {metadata.version('quped')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[bool, typer.Option("--version", help="Show the version.", callback=print_version)] = False,
) -> None:
    """Options of the program itself."""


def main() -> None:
    """Run the program. An error that a user can put right is one sentence, not a traceback."""
    logging.getLogger("quped").addHandler(logging.StreamHandler())
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")  # a path may hold what the terminal cannot show
    try:
        app()
    except QupedError as error:
        fail(str(error))
    except BrokenPipeError:  # nobody reads the output any more
        sys.stdout = None
        sys.exit(141)
    except OSError as error:
        if error.errno == errno.EMFILE:
            fail("This program may not open as many files as it needs: raise the limit, as by `ulimit -n 1024`.")
        fail(f"{error.filename or 'The output'} cannot be used: {error.strerror}.")
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception:
        fail(f"This is a bug of quped. Please report it, with the details in {write_details(traceback.format_exc())}.")


def write_details(text: str) -> str:
    """Write the traceback of a bug to a file, and return its path; the text itself if there is no place for a file."""
    try:
        with tempfile.NamedTemporaryFile(prefix="quped-bug-", suffix=".txt", delete=False) as file:
            file.write(f"{shlex.join(sys.argv)}\n{text}".encode(errors="backslashreplace"))
            return file.name
    except OSError:
        return text


def fail(error: str) -> NoReturn:
    """Print an error and stop."""
    Console(stderr=True, highlight=False, soft_wrap=True).print(f"[bold red]error:[/] {escape(error)}")
    sys.exit(2)
