"""`quped flower`: federations on machines of their own.

Flower is imported when a command is used: help is shown without it.
"""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from quped.cli._shared import make_console, notes
from quped.errors import InvalidValueError, RunError
from quped.experiments.schema import apply
from quped.export import SUFFIX, write_file
from quped.report.terminal import bits_label, percent, size

app = typer.Typer(
    help="Federations whose clients are on machines of their own, on Flower.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
)

App = Annotated[Path, typer.Argument(metavar="APP", help="The folder of the app.", file_okay=False)]
Command = Annotated[
    list[str], typer.Argument(metavar="COMMAND...", help="`flower-superlink` or `flower-supernode`, with its options.")
]
Nodes = Annotated[list[str], typer.Argument(metavar="NODE...", help="Names of the nodes.")]
Hosts = Annotated[
    list[str] | None,
    typer.Option("--host", help="Address or name by which nodes reach the server. May be repeated."),
]
State = Annotated[
    Path, typer.Argument(metavar="FOLDER", help="The node's folder: `state` in --node-config.", file_okay=False)
]
Change = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change an option, such as epochs=2. May be repeated."),
]
Models = Annotated[Path | None, typer.Option(help="Folder for the clients' models.", file_okay=False)]
Out = Annotated[Path | None, typer.Option(help="The file to write.", show_default="CLIENT.quped", dir_okay=False)]
Moved = Annotated[Path | None, typer.Option("--app", help="The folder of the app, if it has moved.", file_okay=False)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, on standard output.")]


@app.command("new")
def new_command(folder: App) -> None:
    """Write a small app, and print the commands that run it."""
    from quped.flower.new import commands, new_app

    for path in new_app(folder):
        print(f"Written: {path}")
    for title, lines in commands(folder).items():
        print(f"\n# {title}")
        for line in lines:
            print(line)


@app.command("keys")
def keys_command(folder: App, nodes: Nodes, host: Hosts = None) -> None:
    """Make certificates and keys: an authority, the server's certificate, and a key pair for each node.

    Nothing that exists is changed. Private keys can be read by their owner only.
    """
    from quped.flower.keys import KEYS, make_keys

    if not folder.is_dir():
        raise InvalidValueError(f"There is no folder {folder}: make an app with `quped flower new`.")
    made = make_keys(folder, nodes, host or ())
    for path in made:
        print(f"Written: {path}")
    if not made:
        print(f"Nothing is missing in {folder / KEYS}.")


@app.command("check", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def check_command(command: Command) -> None:
    """Look at what a command of Flower needs, before it is run: files, ports, the server and its clock.

    Write this in front of the command. Nothing is started or changed.
    """
    from quped.flower.check import check_command

    good, bad = check_command(command)
    for line in good:
        print(f"ok: {line}")
    if bad:
        raise RunError("\n".join(bad))


@app.command("simulate")
def simulate_command(folder: App, change: Change = None, out: Models = None, as_json: Json = False) -> None:
    """Train the app's clients in this process, without servers, with the same numbers."""
    from quped.flower.simulate import simulate_app

    console = make_console(quiet=as_json)
    changes: dict[str, object] = {}
    for one in change or ():
        apply(changes, one)
    with notes(console):
        result = simulate_app(folder, changes, progress=not as_json)
    if out is not None:
        result.save_all(out)
    if as_json:
        print(json.dumps(result.to_dict(), indent=2))
        return
    table = Table("client", "network", "bits", "accuracy", "size")
    for client in result.to_dict()["clients"]:
        cells = (client["network"], bits_label(client), percent(client["accuracy"]), size(client["bytes_file"]))
        table.add_row(escape(client["name"]), *cells)
    console.print(table)
    if out is not None:
        console.print(f"Models: {escape(str(out))}", soft_wrap=True)


@app.command("deploy")
def deploy_command(folder: State, out: Out = None, moved: Moved = None, as_json: Json = False) -> None:
    """Write the packed file of a node's client from its own state, without a server.

    This works while a run is under way, and after it.
    """
    from quped.flower.deploy import deployed_client

    console = make_console(quiet=as_json)
    with notes(console):
        found = deployed_client(folder, moved)
    path = out or Path(f"{found.client}{SUFFIX}")
    write_file(path, found.content)
    accuracy = None if found.score is None else found.score.accuracy
    told = {"client": found.client, "file": str(path), "bytes": len(found.content)}
    told |= {"round": found.round + 1, "rounds": found.rounds, "accuracy": accuracy}
    if as_json:
        print(json.dumps(told, indent=2))
        return
    known = "has no test samples here" if accuracy is None else f"{percent(accuracy)} of its test samples are correct"
    console.print(f"'{escape(found.client)}' after round {found.round + 1} of {found.rounds}: {known}.")
    console.print(f"Written: {escape(str(path))}, {size(len(found.content))}", soft_wrap=True)
