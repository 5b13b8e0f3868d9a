"""`quped train`: one network, quantized while it is trained."""

import json
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from quped.cli._shared import single_command
from quped.errors import InvalidValueError, RunError
from quped.experiments.train import METHODS, Epoch, Recipe, prepare, train
from quped.models import NETWORKS
from quped.records import CHECKPOINTS, CONFIG, RunRecord, exclusive, holds_run, read_json
from quped.report.plots.weights import draw

DEFAULTS = Recipe()

Network = Annotated[str | None, typer.Argument(metavar="[NETWORK]", help=f"One of {', '.join(NETWORKS)}.")]
Data = Annotated[str, typer.Option(help="A data set of images: see `quped data list`.")]
Method = Annotated[str, typer.Option(help="; ".join(f"*{name}*: {what}" for name, what in METHODS.items()) + ".")]
Bits = Annotated[int, typer.Option(help="Bits per quantized weight, 1 to 8.")]
Epochs = Annotated[int, typer.Option(min=1, help="Passes through the training samples.")]
Finetune = Annotated[
    int | None,
    typer.Option(
        min=0, help="Of these, the last ones, after weights were put on their centers.", show_default="a fifth"
    ),
]
BatchSize = Annotated[int, typer.Option(min=1, help="Samples in a step.")]
Rate = Annotated[float, typer.Option(help="Learning rate of Adam.")]
Lam = Annotated[float, typer.Option(help="centers, centers+, proxquant: lambda(t) is this times t, in epochs.")]
Eta2 = Annotated[
    float,
    typer.Option(
        help="centers, centers+: learning rate of the centers; a tenth of it from epoch 80 on, a hundredth from 140 on."
    ),
]
Full = Annotated[
    int | None,
    typer.Option(min=1, help="Let the schedules pass as in a run of so many epochs.", show_default="--epochs"),
]
Warm = Annotated[
    Path | None, typer.Option(help="Weights to begin with: a safetensors file.", dir_okay=False, show_default="none")
]
Validation = Annotated[bool, typer.Option("--validation", help="Evaluate on a tenth of the training samples instead.")]
Seed = Annotated[int, typer.Option(min=0, help="Everything random follows from it.")]
Out = Annotated[
    Path | None, typer.Option(help="Directory for the record.", show_default="runs/NETWORK-DATE-TIME", file_okay=False)
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace a run that is already in --out.")]
Resume = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Go on with the run in DIR.", file_okay=False, show_default=False)
]
Threads = Annotated[int | None, typer.Option(min=1, help="Threads that compute.", show_default="all cores")]
Json = Annotated[bool, typer.Option("--json", help="Print result.json, and nothing else, on standard output.")]


def train_command(
    context: typer.Context,
    network: Network = None,
    data: Data = DEFAULTS.data,
    method: Method = DEFAULTS.method,
    bits: Bits = DEFAULTS.bits,
    epochs: Epochs = DEFAULTS.epochs,
    finetune_epochs: Finetune = None,
    batch_size: BatchSize = DEFAULTS.batch_size,
    lr: Rate = DEFAULTS.lr,
    lam: Lam = DEFAULTS.lam,
    eta2: Eta2 = DEFAULTS.eta2,
    full_epochs: Full = None,
    warm_start: Warm = None,
    validation: Validation = False,
    seed: Seed = DEFAULTS.seed,
    out: Out = None,
    overwrite: Overwrite = False,
    resume: Resume = None,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Train one network and quantize it on the way, on one machine.

    A checkpoint is written after every epoch; `--resume DIR` goes on from the last one.
    """
    if resume is not None:
        sources = {name: context.get_parameter_source(name) for name in context.params}
        given = {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}
        if others := given - {"resume", "threads", "as_json"}:
            raise InvalidValueError(
                f"--resume takes everything from the record: leave out {', '.join(sorted(others))}."
            )
        asked = read_json(resume / CONFIG)
        folder = resume
        try:
            recipe = Recipe(**asked["recipe"])
        except (KeyError, TypeError) as error:
            told = f"{resume} holds no run of `quped train`: go on with it by the command that began it."
            raise RunError(told) from error
    else:
        if network is None:
            raise InvalidValueError(f"Say which network to train: one of {', '.join(NETWORKS)}.")
        recipe = Recipe(
            model=network,
            data=data,
            method=method,
            bits=bits,
            epochs=epochs,
            finetune_epochs=round(epochs / 5) if finetune_epochs is None else finetune_epochs,
            batch_size=batch_size,
            lr=lr,
            lam=lam,
            eta2=eta2,
            schedule_epochs=full_epochs,
            seed=seed,
            warm_start=None if warm_start is None else str(warm_start.resolve()),
            validation=validation,
        )
        folder = out or Path("runs") / f"{network}-{datetime.now():%Y%m%d-%H%M%S}"
        if holds_run(folder) and not overwrite:
            raise RunError(f"{folder} already holds a run: choose another directory, or pass --overwrite or --resume.")
        prepare(recipe)  # so that nothing is written, or overwritten, for a recipe that cannot be followed
    if threads is not None:
        torch.set_num_threads(threads)
    console = Console(quiet=as_json, highlight=False)
    with exclusive(folder / CHECKPOINTS):
        record = RunRecord(folder)
        if resume is None:
            record = RunRecord.create(folder, overwrite=overwrite)
            record.config({"recipe": asdict(recipe)})
        done = record.finished("curve", "images_per_second", "threads")
        if done is None:
            try:
                with epoch_bar(console, recipe, record.checkpoints.rounds()) as tell:
                    done = train(recipe, record, tell)
            except KeyboardInterrupt:
                command = f"quped train --resume {shlex.quote(str(folder))}"
                typer.echo(f"Interrupted. Go on after the last finished epoch with:\n  {command}", err=True)
                raise
    last = done["curve"][-1]
    size = f"{recipe.bits}-bit " if recipe.quantizes else ""
    where = "validation" if recipe.validation else "test"
    console.print(f"{size}{recipe.model} after {recipe.epochs} epochs: {where} accuracy {last['accuracy']:.2%}")
    threads_used = "1 thread" if done["threads"] == 1 else f"{done['threads']} threads"
    console.print(f"{done['images_per_second']:.0f} images a second with {threads_used}")
    if recipe.quantizes:
        draw(done["curve"], record.path / "weights.png")
        console.print("How the weights gathered at their centers: weights.png in the record")
    console.print(f"Record: {escape(str(record.path))}", soft_wrap=True)
    if as_json:
        print(json.dumps(done, indent=2))


@contextmanager
def epoch_bar(console: Console, recipe: Recipe, done: int) -> Iterator[Callable[[Epoch | float], None]]:
    """Show a bar over all epochs, some of which are done; without a terminal, a line for each."""
    columns = (
        *(TextColumn("{task.description}"), BarColumn(bar_width=24), TextColumn("{task.fields[status]}")),
        *(TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(compact=True)),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as display:
        bar = display.add_task(f"{recipe.model}, {recipe.method}", total=recipe.epochs, completed=done, status="")

        def tell(news: Epoch | float) -> None:
            nonlocal done
            if isinstance(news, float):
                display.update(bar, completed=done + news)
                return
            done = news.epoch + 1
            status = f"epoch {done}/{recipe.epochs}  {news.phase}  loss {news.loss:.3f}  accuracy {news.accuracy:.2%}"
            display.update(bar, completed=done, status=status)
            if not console.is_terminal:
                console.print(f"{status}  {news.seconds:.0f} s", soft_wrap=True)

        yield tell


app = single_command(train_command)
