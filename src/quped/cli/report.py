"""`quped report`: runs as one page."""

import webbrowser
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from quped.cli._shared import make_console, single_command
from quped.errors import InvalidValueError
from quped.records import REPORT
from quped.report.page import write_report

Runs = Annotated[
    list[Path],
    typer.Argument(
        metavar="RUN_OR_FOLDER",
        help="The folder of a run, or one with several runs in it. Several are shown side by side.",
        show_default=False,
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(help="The file to write.", show_default=f"{REPORT} in the first folder", dir_okay=False),
]
Open = Annotated[bool, typer.Option("--open", help="Open the page in the browser.")]


def report_command(runs: Runs, out: Out = None, open_page: Open = False) -> None:
    """Show runs as one HTML page, made from their records alone.

    The page is complete: it needs no network, and may be sent to others. A run need not be finished.
    """
    file = runs[0] / REPORT if out is None else out
    if file.suffix not in (".html", ".htm"):
        raise InvalidValueError(f"The report is a page, and {file} is no name of one: let it end in .html.")
    write_report(runs, file)
    make_console().print(f"Report: {escape(str(file))}", soft_wrap=True)
    if open_page:
        webbrowser.open(file.resolve().as_uri())


app = single_command(report_command)
