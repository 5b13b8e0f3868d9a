"""`quped presets`: the experiments that come with the package."""

from rich.markup import escape

from quped.cli._shared import make_console, single_command
from quped.experiments import load, presets
from quped.experiments.presets import FOLDER


def presets_command() -> None:
    """List the experiments that come with the package."""
    console = make_console()
    for name, path in presets().items():
        console.print(f"[bold]{name:<16}[/] {escape(load(path).description)}", soft_wrap=True)
    console.print("\nRun one with [bold]quped run NAME[/]. To change more than --set does, copy its file from")
    console.print(escape(str(FOLDER)), soft_wrap=True)


app = single_command(presets_command)
