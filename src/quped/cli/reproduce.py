"""`quped reproduce`: the old name of `quped paper`."""

import typer

from quped.cli.paper import app as paper_app

app = typer.Typer(add_completion=False)

FLAGS = {"--list": "list", "--status": "status", "--claims": "claims", "--check": "docs", "--update": "docs"}
"""The command that has taken the place of a flag."""


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def reproduce_command(context: typer.Context) -> None:
    """Call `quped paper`."""
    flag = next((word for word in context.args if word in FLAGS), None)
    command = FLAGS[flag] if flag else "run" if context.args else "list"
    words = [word for word in context.args if word != flag or flag == "--update"]
    typer.echo(f"note: `quped reproduce` is now `quped paper {command}`.", err=True)
    raise typer.Exit(paper_app([command, *words], prog_name="quped paper", standalone_mode=False) or 0)
