"""What several commands share."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape

UNSEEN_WIDTH = 120
"""Columns of output that goes to a file or a pipe."""


def single_command(function: Callable[..., Any]) -> typer.Typer:
    """Return an application that is one command."""
    app = typer.Typer(add_completion=False, rich_markup_mode="markdown")
    app.command()(function)
    return app


def make_console(*, quiet: bool = False) -> Console:
    """Return a console for standard output."""
    console = Console(quiet=quiet, highlight=False)
    if not console.is_terminal:
        console.width = UNSEEN_WIDTH
    return console


@contextmanager
def notes(console: Console) -> Iterator[None]:
    """Show warnings as notes, each once, when they come: they may explain an error, or hours of silence."""
    shown: set[str] = set()

    def show(message: Warning | str, *_: object, **__: object) -> None:
        if str(message) not in shown:
            shown.add(str(message))
            console.print(f"[yellow]note:[/] {escape(str(message))}", soft_wrap=True)

    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = show
        yield
