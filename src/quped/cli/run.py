"""`quped run`: train a federation."""

import shlex
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from quped.cli._shared import make_console, notes, single_command
from quped.errors import InterruptedRunError, InvalidValueError, RunError
from quped.experiments import Experiment, find, load, run_experiment, validate
from quped.experiments.run import Result
from quped.observers import LOGS, open_log
from quped.progress import progress_bars
from quped.records import CONFIG, MODELS, REPORT, RESULT, RunRecord
from quped.report.page import write_report
from quped.report.terminal import client_table, comparison_table, verdict
from quped.simulation.engines import ENGINES, EngineChoice

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
Seed = Annotated[int | None, typer.Option(min=0, help="Random seed.", show_default="0")]
Out = Annotated[
    Path | None,
    typer.Option(help="Directory for the run's record.", show_default="runs/PRESET-DATE-TIME", file_okay=False),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace a run that is already in --out.")]
Resume = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Resume the interrupted run in DIR.", file_okay=False, show_default=False),
]
CheckpointEvery = Annotated[int, typer.Option(min=1, metavar="N", help="Write a checkpoint every N rounds.")]
EngineName = Annotated[
    str | None,
    typer.Option(
        "--engine", metavar="|".join(ENGINES), help="Where clients are computed.", show_default="by --workers"
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="Worker processes; 0 runs in this process. Does not affect results.",
        show_default="all cores on Linux, else 0",
    ),
]
Address = Annotated[
    str | None,
    typer.Option(help="Of the cluster, for --engine ray.", show_default="Ray is started on this machine"),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
Json = Annotated[bool, typer.Option("--json", help="Print result.json, and nothing else, on standard output.")]
NoReport = Annotated[bool, typer.Option("--no-report", help="Do not write report.html into the record.")]
Log = Annotated[
    str | None,
    typer.Option(
        metavar="TOOL:DIR",
        help=f"Also log to one of {', '.join(LOGS)}, in files below DIR: needs the extra of that name.",
        show_default=False,
    ),
]


def run_command(
    preset: Preset = None,
    change: Change = None,
    seed: Seed = None,
    out: Out = None,
    overwrite: Overwrite = False,
    resume: Resume = None,
    checkpoint_every: CheckpointEvery = 25,
    engine: EngineName = None,
    workers: Workers = None,
    address: Address = None,
    quiet: Quiet = False,
    as_json: Json = False,
    no_report: NoReport = False,
    log: Log = None,
) -> None:
    """Train a federation and show what every client got.

    Without arguments, runs the preset *quickstart*. Ctrl-C stops after the round, with a checkpoint; again, at once.
    """
    where = EngineChoice(engine, workers, address=address)
    if resume is not None:
        if preset or change or seed is not None or out or overwrite:
            raise InvalidValueError("--resume takes the experiment from the record: give no other options of it.")
        name, number, experiment = recorded(resume)
        folder = resume
    else:
        path = find(preset or "quickstart")
        experiment = load(path, change or ())
        name, number = path.stem, seed or 0
        folder = out or Path("runs") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}"
    console = make_console(quiet=quiet or as_json)
    if experiment.description:
        console.print(f"[bold]{escape(name)}[/]: {escape(experiment.description)}")
    logs = open_log(log, name) if log is not None else lambda _: []
    again = f"quped run --resume {shlex.quote(str(folder))}"
    try:
        with notes(console), progress_bars(console) as follow:
            if resume is not None:
                console.print(f"Resuming {escape(str(folder))}, {position(folder)}.", soft_wrap=True)
            results = run_experiment(
                experiment,
                preset=name,
                seed=number,
                out=folder,
                overwrite=overwrite,
                resume=resume is not None,
                where=where,
                checkpoint_every=checkpoint_every,
                follow=lambda title: [follow(title), *logs(title)],
            )
    except InterruptedRunError as stop:
        typer.echo(f"{stop} Continue with:\n  {again}", err=True)
        raise typer.Exit(128 + stop.signal_number) from stop
    except KeyboardInterrupt:
        typer.echo(f"Interrupted. Continue from the last checkpoint, if there is one, with:\n  {again}", err=True)
        raise
    show(console, results, folder)
    if not no_report:
        write_report([folder], folder / REPORT)
        console.print(f"Report: {escape(str(folder / REPORT))}", soft_wrap=True)
    if as_json:
        print((folder / RESULT).read_text(), end="")


def recorded(folder: Path) -> tuple[str, int, Experiment]:
    """Return the preset, the seed and the experiment of the run in a folder."""
    config = RunRecord(folder).read_config()
    if not config.keys() >= {"preset", "seed", "config"}:
        raise RunError(f"{folder} holds no run of `quped run`: continue it with the command that began it.")
    return config["preset"], config["seed"], validate(config["config"], str(folder / CONFIG))


def position(folder: Path) -> str:
    """Say where the run in a folder continues."""
    record = RunRecord(folder)
    rounds = record.checkpoints.rounds()
    if record.finished() is not None:
        return "whose first method is finished"
    return f"after round {rounds}" if rounds else "from the beginning, since it has no checkpoint"


def show(console: Console, results: list[Result], folder: Path) -> None:
    """Print what came out, and where it is."""
    console.print(client_table(results[0], console.width))
    if len(results) > 1:
        console.print(comparison_table(results, console.width))
        console.print(verdict(results))
    path, client = shlex.quote(str(folder)), shlex.quote(results[0]["clients"][0]["name"])
    console.print(f"Models: {escape(str(folder / MODELS))}", soft_wrap=True)
    console.print(f"Record: {escape(str(folder))}", soft_wrap=True)
    console.print("Next:", soft_wrap=True)
    console.print(f"  quped inspect {escape(path)}/{MODELS}/{escape(client)}.quped", soft_wrap=True)
    console.print(f"  quped export {escape(path)} --client {escape(client)} --format html", soft_wrap=True)


app = single_command(run_command)
