"""`quped run` and `quped presets`."""

import json
import shlex
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from quped.errors import InterruptedRunError, InvalidValueError, RunError
from quped.experiments import find, load, presets, run_experiment, validate
from quped.experiments.presets import FOLDER
from quped.progress import progress_bars
from quped.records import CONFIG, read_json
from quped.report.terminal import client_table, comparison_table, verdict

Preset = Annotated[
    str | None,
    typer.Argument(
        metavar="[PRESET | FILE.toml]",
        help="A preset (see `quped presets`) or a file.",
        show_default="quickstart",
    ),
]
Change = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a value, such as training.epochs=5. May be repeated."),
]
Seed = Annotated[int | None, typer.Option(min=0, help="Everything random follows from it.", show_default="0")]
Out = Annotated[
    Path | None,
    typer.Option(help="Directory for the run's record.", show_default="runs/PRESET-DATE-TIME", file_okay=False),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace a run that is already in --out.")]
Resume = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Go on with the interrupted run in DIR.", file_okay=False, show_default=False),
]
CheckpointEvery = Annotated[int, typer.Option(min=1, metavar="N", help="Write a checkpoint every N rounds.")]
Workers = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="Processes that compute; 0: none but this one. The result is the same.",
        show_default="all cores; 0 but on Linux",
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
Json = Annotated[bool, typer.Option("--json", help="Print result.json, and nothing else, on standard output.")]


def run_command(
    preset: Preset = None,
    change: Change = None,
    seed: Seed = None,
    out: Out = None,
    overwrite: Overwrite = False,
    resume: Resume = None,
    checkpoint_every: CheckpointEvery = 25,
    workers: Workers = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Train a federation and show what every client got.

    Without arguments, runs the preset *quickstart*. Ctrl-C stops after the round, with a checkpoint.
    """
    if resume is not None:
        if preset or change or seed is not None or out or overwrite:
            raise InvalidValueError("--resume takes the experiment from the record: give no other options of it.")
        asked = read_json(resume / CONFIG)
        if not asked.keys() >= {"preset", "seed", "config"} or not isinstance(asked["config"], dict):
            raise RunError(f"{resume} holds no run of `quped run`: go on with it by the command that began it.")
        name, number, folder = asked["preset"], asked["seed"], resume
        experiment = validate(asked["config"], str(resume / CONFIG))
    else:
        path = find(preset or "quickstart")
        experiment = load(path, change or ())
        name, number = path.stem, seed or 0
        folder = out or Path("runs") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}"
    console = Console(quiet=quiet or as_json, highlight=False)
    if not console.is_terminal:
        console.width = 120
    if experiment.description:
        console.print(f"[bold]{escape(name)}[/]: {escape(experiment.description)}")
    try:
        with notes(console), progress_bars(console) as follow:
            results = run_experiment(
                experiment,
                preset=name,
                seed=number,
                out=folder,
                overwrite=overwrite,
                resume=resume is not None,
                workers=workers,
                checkpoint_every=checkpoint_every,
                follow=follow,
            )
    except InterruptedRunError as stop:
        typer.echo(f"{stop} Go on with:\n  quped run --resume {shlex.quote(str(folder))}", err=True)
        raise typer.Exit(128 + stop.signal_number) from stop
    console.print(client_table(results[0], console.width))
    if len(results) > 1:
        console.print(comparison_table(results))
        console.print(verdict(results))
    console.print(f"Record: {escape(str(folder))}", soft_wrap=True)
    if as_json:
        print(json.dumps(results[0], indent=2))


def presets_command() -> None:
    """List the experiments that come along."""
    console = Console(highlight=False)
    for name, path in presets().items():
        console.print(f"[bold]{name:<16}[/] {escape(load(path).description)}", soft_wrap=True)
    console.print("\nRun one with [bold]quped run NAME[/]; to change more than --set does, copy its file from")
    console.print(escape(str(FOLDER)), soft_wrap=True)


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
