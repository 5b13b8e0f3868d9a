"""`quped watch`: a run that is under way."""

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.live import Live

from quped.cli._shared import make_console, single_command
from quped.errors import RunError
from quped.records import holds_run
from quped.report.live import is_over, view
from quped.report.reading import read_family

Run = Annotated[Path, typer.Argument(help="The folder of a run.", file_okay=False, show_default=False)]
Every = Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="How often to look at the record.")]


def watch_command(run: Run, every: Every = 2.0) -> None:
    """Show how far a run is, how its accuracy develops, and which clients are behind the others or slow.

    Reads the record only, so it can be started and stopped at any time. Ends with the run; without a terminal, at once.
    """
    if not holds_run(run):
        raise RunError(f"{run} holds no run: name the folder that `quped run` or `quped train` writes to.")
    console = make_console()
    family = read_family(run)
    if not console.is_terminal:
        console.print(view(family, console.width))
        return
    with Live(view(family, console.width), console=console, auto_refresh=False) as display:
        while not is_over(family):
            time.sleep(every)
            family = read_family(run)
            display.update(view(family, console.width), refresh=True)


app = single_command(watch_command)
