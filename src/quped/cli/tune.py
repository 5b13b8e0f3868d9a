"""`quped tune`: choose hyperparameters on validation samples."""

import json
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from quped.cli._shared import make_console, notes, single_command
from quped.cli.run import Change, CheckpointEvery, Quiet, Seed, Workers
from quped.errors import InterruptedRunError
from quped.experiments import find
from quped.experiments.schema import read_values
from quped.experiments.tune import BEST, tune_experiment
from quped.records import plain
from quped.report.terminal import percent
from quped.tuning import Setting, Tuning, mean_accuracy

Preset = Annotated[str, typer.Argument(metavar="PRESET | FILE.toml", help="An experiment.", show_default=False)]
Trials = Annotated[int, typer.Option(min=2, help="Settings that are tried. 16 take as long as about 8 runs.")]
Seeds = Annotated[int, typer.Option(min=1, help="Seeds with which the last two settings are trained.")]
Out = Annotated[
    Path | None, typer.Option(help="Folder for the trials.", show_default="runs/tune-PRESET", file_okay=False)
]
Compared = Annotated[bool, typer.Option("--compared", help="Choose for the compared methods, too.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Remove the trials that are already in --out.")]
Json = Annotated[bool, typer.Option("--json", help="Print the trials as JSON, and nothing else.")]


def tune_command(
    preset: Preset,
    change: Change = None,
    seed: Seed = None,
    trials: Trials = 16,
    seeds: Seeds = 1,
    compared: Compared = False,
    out: Out = None,
    overwrite: Overwrite = False,
    checkpoint_every: CheckpointEvery = 25,
    workers: Workers = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Choose the learning rate, the strength of quantization and the warm-up, and write a file with the best.

    Settings compete by successive halving on validation samples; test samples are not used.
    The same command continues after an interruption.
    """
    path = find(preset)
    folder = out or Path("runs") / f"tune-{path.stem}"
    console = make_console(quiet=quiet or as_json)
    try:
        with notes(console):
            chosen = tune_experiment(
                read_values(path, change or ()),
                preset=path.name,
                seed=seed or 0,
                out=folder,
                trials=trials,
                seeds=seeds,
                compared=compared,
                overwrite=overwrite,
                workers=workers,
                checkpoint_every=checkpoint_every,
                progress=not (quiet or as_json),
            )
    except InterruptedRunError as stop:
        typer.echo(f"{stop} The same command, without --overwrite, continues.", err=True)
        raise typer.Exit(128 + stop.signal_number) from stop
    if as_json:
        print(
            json.dumps(
                plain([{"best": asdict(t.best), "trials": [asdict(s) for s in t.trials]} for t in chosen]), indent=2
            )
        )
    show(console, chosen, folder)


def show(console: Console, chosen: list[Tuning], folder: Path) -> None:
    """Print the trials, and what was chosen."""
    for tuning in chosen:
        console.print(trial_table(tuning))
        name, best = type(tuning.algorithm).__name__, tuning.best
        what = "your own setting" if best.number == 0 else f"setting {best.number}"
        console.print(f"{name}: {what} is best, {percent(tuning.accuracy)} on validation samples.")
    console.print(f"File: {escape(str(folder / BEST))}", soft_wrap=True)
    console.print(f"Next:\n  quped run {escape(shlex.quote(str(folder / BEST)))}", soft_wrap=True)


def trial_table(tuning: Tuning) -> Table:
    """One line per setting, the best first: its accuracies after short and long runs, mean over seeds."""
    epochs = list(dict.fromkeys(trial.epochs for trial in tuning.trials))
    scores: dict[int, dict[int, str]] = {}
    ranks: dict[int, tuple[int, float]] = {}
    for trial in tuning.trials:
        alike = [one for one in tuning.trials if (one.number, one.epochs) == (trial.number, trial.epochs)]
        failed = any(one.error for one in alike)
        scores.setdefault(trial.number, {})[trial.epochs] = "failed" if failed else percent(mean_accuracy(alike))
        ranks[trial.number] = trial.epochs, 0.0 if failed else mean_accuracy(alike)
    settings = {trial.number: trial.setting for trial in tuning.trials}
    table = Table(title=f"{type(tuning.algorithm).__name__}: accuracy on validation samples", title_justify="left")
    for column in ("setting", *labels(tuning.best.setting), *(f"{count} epochs" for count in epochs)):
        table.add_column(column, justify="right")
    for number in sorted(settings, key=lambda number: (ranks[number], -number), reverse=True):
        name = "yours" if number == 0 else str(number)
        cells = [name, *labels(settings[number]).values(), *(scores[number].get(count, "") for count in epochs)]
        table.add_row(*cells, style="bold" if number == tuning.best.number else None)
    return table


def labels(setting: Setting) -> dict[str, str]:
    """Return a setting as columns of a table."""
    rates = {f"lambda at {bits} bit{'s' * (bits > 1)}": f"{rate:.2g}" for bits, rate in setting.rates.items()}
    warmup = {} if setting.warmup_epochs is None else {"warm-up": f"{setting.warmup_epochs:g}"}
    return {"lr": f"{setting.lr:g}", **rates, **warmup}


app = single_command(tune_command)
