"""`quped train`: one network, quantized while it is trained."""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from quped.cli._shared import make_console, notes, single_command
from quped.errors import InvalidValueError, RunError
from quped.experiments.train import Epoch, Progress, Recipe, prepare, train
from quped.models import NETWORKS
from quped.records import RESULT, RunRecord, exclusive, holds_run
from quped.report.plots.weights import draw
from quped.report.terminal import size

DEFAULTS = Recipe()
RESULT_KEYS = "accuracy", "bytes_packed", "bytes_float32", "curve", "images_per_second", "threads"
"""Of a result that is printed."""
HELP = {field.name: field.metadata["help"] for field in fields(Recipe)}

Out = Annotated[
    Path | None, typer.Option(help="Directory for the record.", show_default="runs/NETWORK-DATE-TIME", file_okay=False)
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace a run that is already in --out.")]
Resume = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Resume the interrupted run in DIR.", file_okay=False, show_default=False),
]
Threads = Annotated[int | None, typer.Option(min=1, help="Threads that compute.", show_default="all cores")]
Json = Annotated[bool, typer.Option("--json", help="Print result.json, and nothing else, on standard output.")]


def option(name: str, *declarations: str, **more: Any) -> Any:
    """Return the command-line option for a field of a recipe."""
    return typer.Option(*declarations, help=HELP[name], **more)


def train_command(
    context: typer.Context,
    model: Annotated[str | None, typer.Argument(metavar="[NETWORK]", help=HELP["model"], show_default=False)] = None,
    data: Annotated[str, option("data")] = DEFAULTS.data,
    method: Annotated[str, option("method")] = DEFAULTS.method,
    bits: Annotated[int, option("bits")] = DEFAULTS.bits,
    levels: Annotated[int | None, option("levels", min=2, max=256, show_default="2 to the power of --bits")] = None,
    epochs: Annotated[int, option("epochs", min=0)] = DEFAULTS.epochs,
    finetune_epochs: Annotated[int | None, option("finetune_epochs", min=0, show_default="a fifth")] = None,
    batch_size: Annotated[int, option("batch_size", min=1)] = DEFAULTS.batch_size,
    lr: Annotated[float, option("lr")] = DEFAULTS.lr,
    anneal: Annotated[bool, option("anneal", "--anneal")] = False,
    bfloat16: Annotated[bool, option("bfloat16", "--bfloat16")] = False,
    lam: Annotated[float, option("lam")] = DEFAULTS.lam,
    eta2: Annotated[float, option("eta2")] = DEFAULTS.eta2,
    center_lr_ratio: Annotated[float, option("center_lr_ratio")] = DEFAULTS.center_lr_ratio,
    schedule_epochs: Annotated[int | None, option("schedule_epochs", min=1, show_default="--epochs")] = None,
    warm_start: Annotated[Path | None, option("warm_start", dir_okay=False, show_default="none")] = None,
    validation: Annotated[bool, option("validation", "--validation")] = False,
    seed: Annotated[int, option("seed", min=0)] = DEFAULTS.seed,
    out: Out = None,
    overwrite: Overwrite = False,
    resume: Resume = None,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Train one network and quantize it on the way, on one machine.

    The defaults suit a small network on handwritten digits. For the paper's ResNets:
    `quped train resnet20 --data cifar10 --bits 1 --epochs 250 --lr 0.01 --lam 1e-4 --warm-start FILE`.

    A checkpoint is written after every epoch; `--resume DIR` continues from the last one.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    if resume is None:
        recipe = recipe_of(context.params)
        folder = out or Path("runs") / f"{model}-{datetime.now():%Y%m%d-%H%M%S}"
        if holds_run(folder) and not overwrite:
            raise RunError(f"{folder} already holds a run: choose another directory, or pass --overwrite or --resume.")
        prepare(recipe)  # so that nothing is written, or overwritten, for a recipe that cannot be followed
    else:
        recipe, folder = recorded_recipe(context, resume), resume
    console = make_console(quiet=as_json)
    with notes(console), exclusive(folder):
        record = RunRecord(folder)
        if resume is None:
            record = RunRecord.create(folder, overwrite=overwrite)
            record.config({"recipe": asdict(recipe)})
        result = record.finished(*RESULT_KEYS) or train_with_bar(recipe, record, console)
        record.checkpoints.clear()  # also those that a kill left beside the result
    report(recipe, result, record, console)
    if as_json:
        print((folder / RESULT).read_text(), end="")


def recipe_of(params: dict[str, Any]) -> Recipe:
    """Return the recipe that the command line asks for."""
    given = {field.name: params[field.name] for field in fields(Recipe) if field.name in params}
    if given["model"] is None:
        raise InvalidValueError(f"Name the network to train: one of {', '.join(NETWORKS)}.")
    if given["finetune_epochs"] is None:
        given["finetune_epochs"] = round(given["epochs"] / 5)
    if given["warm_start"] is not None:
        given["warm_start"] = str(Path(given["warm_start"]).resolve())
    return Recipe(**given)


def recorded_recipe(context: typer.Context, folder: Path) -> Recipe:
    """Return the recipe of a run that is to be continued, if nothing else is asked for."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    given = {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}
    if others := given - {"resume", "threads", "as_json"}:
        raise InvalidValueError(f"--resume takes everything from the record: leave out {', '.join(sorted(others))}.")
    try:
        return Recipe(**RunRecord(folder).read_config()["recipe"])
    except (KeyError, TypeError) as error:
        raise RunError(f"{folder} holds no run of `quped train`: continue it by the command that began it.") from error


def train_with_bar(recipe: Recipe, record: RunRecord, console: Console) -> dict[str, Any]:
    """Train, and show how far it is. An interrupted run says how to continue it."""
    try:
        with epoch_bar(console, recipe, record.checkpoints.rounds()) as progress:
            return train(recipe, record, progress)
    except KeyboardInterrupt:
        command = f"quped train --resume {shlex.quote(str(record.path))}"
        typer.echo(f"Interrupted. Continue after the last finished epoch with:\n  {command}", err=True)
        raise


@contextmanager
def epoch_bar(console: Console, recipe: Recipe, done: int) -> Iterator[Progress]:
    """Show a bar over all epochs, some of which are done; without a terminal, a line for each."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[status]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(compact=True),
    )
    with Bars(*columns, console=console, disable=not console.is_terminal) as display:
        bar = display.add_task(f"{recipe.model}, {recipe.method}", total=recipe.epochs, completed=done, status="")

        def show(news: Epoch | float) -> None:
            nonlocal done
            if isinstance(news, float):
                display.update(bar, completed=done + news)
                return
            done = news.epoch + 1
            status = f"epoch {done}/{recipe.epochs}  {news.phase}  loss {news.loss:.3f}  accuracy {news.accuracy:.2%}"
            display.update(bar, completed=done, status=status)
            if not console.is_terminal:
                console.print(f"{status}  {news.seconds:.0f} s", soft_wrap=True)

        yield show


def report(recipe: Recipe, result: dict[str, Any], record: RunRecord, console: Console) -> None:
    """Print how accurate and how large the network is, and draw its weights."""
    width = f"{recipe.bits}-bit" if recipe.levels is None else f"{recipe.levels}-level"
    label = f"{width} {recipe.model}" if recipe.quantizes else recipe.model
    where = "validation" if recipe.validation else "test"
    length = "1 epoch" if recipe.epochs == 1 else f"{recipe.epochs} epochs"
    console.print(f"{label} after {length}: {where} accuracy {result['accuracy']:.2%}")
    held, full = result["bytes_file"], result["bytes_float32"]
    smaller = f", {full / held:.1f} times smaller than {size(full)} in float32" if recipe.quantizes else ""
    console.print(f"Size: {size(held)}{smaller}")
    threads = "1 thread" if result["threads"] == 1 else f"{result['threads']} threads"
    console.print(f"Speed: {result['images_per_second']:.0f} images a second with {threads}")
    if recipe.quantizes:
        draw(result["curve"], record.path / "weights.png")
        console.print("Picture: weights.png in the record shows how the weights gathered at their centers")
    console.print(f"Record: {escape(str(record.path))}", soft_wrap=True)


app = single_command(train_command)
