"""`quped paper`: the paper's tables."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from quped.cli._shared import make_console, notes
from quped.cli.run import Workers
from quped.errors import InterruptedRunError, InvalidValueError, RunError
from quped.paper import claims, compare, docs, grid
from quped.paper.execute import execute, remove_leftovers
from quped.paper.runs import PaperRun, paper_runs
from quped.paper.status import status
from quped.paper.table import Table, find_table, tables
from quped.progress import progress_bars

app = typer.Typer(
    help="Run the paper's tables, and compare our numbers with the paper's.", no_args_is_help=True, add_completion=False
)

TableName = Annotated[str, typer.Argument(metavar="TABLE", help="A table (see `quped paper list`) or a file.")]
AnyTable = Annotated[str | None, typer.Argument(metavar="[TABLE]", help="A table.", show_default="all tables")]
Methods = Annotated[str | None, typer.Option(metavar="A,B", help="Only these rows, such as quped-2bit,fedavg.")]
Columns = Annotated[str | None, typer.Option(metavar="A,B", help="Only these columns.")]
Seeds = Annotated[int, typer.Option(min=1, help="Runs of each row.")]
Epochs = Annotated[
    int | None,
    typer.Option(
        min=1, metavar="N", help="Shorten runs to N epochs and compress their schedules.", show_default="the paper's"
    ),
]
Out = Annotated[Path, typer.Option(help="Folder of the records. Runs with a record are skipped.", file_okay=False)]
WarmStart = Annotated[
    Path | None,
    typer.Option(help="Folder with the full-precision networks that table1 starts from.", file_okay=False),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, on standard output.")]
Update = Annotated[bool, typer.Option("--update/--check", help="Write the numbers, or only compare them.")]
Document = Annotated[Path, typer.Option("--docs", help="The document with the results.", dir_okay=False)]

RESULTS = Path("results")
DOCUMENT = Path("docs/paper/results.md")

VERDICT_STYLES = {"holds": "green", "inconclusive": None, "fails": "red"}

OMITTED = {120: (), 80: ("Worst tenth", "w"), 0: ("Worst tenth", "Below FedAvg", "w", "Seeds", "Difference")}
"""The columns that tables lack in a terminal of at least some width."""


@app.command("list")
def list_command() -> None:
    """List the tables, with their columns and methods."""
    console = Console(highlight=False, soft_wrap=True)
    for table in tables().values():
        console.print(f"[bold]{table.name}[/]  {escape(table.title)}")
        console.print(f"    {escape(table.source)}")
        console.print(f"    needs: {', '.join(table.needs)}")
        console.print(f"    columns: {', '.join(table.columns)}")
        console.print(f"    methods: {', '.join(table.rows)}")


@app.command("run")
def run_command(
    table: TableName,
    methods: Methods = None,
    columns: Columns = None,
    seeds: Seeds = 3,
    epochs: Epochs = None,
    out: Out = RESULTS,
    warm_start: WarmStart = None,
    workers: Workers = None,
    as_json: Json = False,
) -> None:
    """Run a table and show our numbers beside the paper's.

    Runs with a record are skipped, and interrupted runs continue: a table can be spread over many calls.
    """
    console = make_console(quiet=as_json)
    aside = Console(stderr=True, highlight=False) if as_json else console
    chosen = find_table(table)
    runs = paper_runs(chosen, names(methods), names(columns), seeds, epochs)
    epochs = shortened_to(epochs, runs, aside)
    execute_missing(console, aside, runs, out, workers, warm_start)
    comparison = compare.compare(chosen, out, epochs)
    show(console, chosen, comparison)
    if epochs is not None:
        docs.write_table(chosen, compare.compare(chosen, out), out)  # it lists shortened runs too
    if files := docs.write_table(chosen, comparison, out, epochs):
        console.print(f"Written to {out / chosen.name}: {', '.join(path.name for path in files)}", soft_wrap=True)
    if as_json:
        print(json.dumps(compare.values(chosen, comparison), indent=2))


@app.command("grid")
def grid_command(
    table: TableName,
    methods: Methods = None,
    columns: Columns = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each trial.")] = 1,
    epochs: Epochs = None,
    out: Out = RESULTS,
    warm_start: WarmStart = None,
    workers: Workers = None,
    as_json: Json = False,
) -> None:
    """Try the learning rates of a table's grid on validation samples: the same for every row.

    Every trial has a record. The table's own runs, and its learning rates, stay as they are.
    """
    console = make_console(quiet=as_json)
    aside = Console(stderr=True, highlight=False) if as_json else console
    chosen = find_table(table)
    trials = grid.trials(chosen, names(methods), names(columns), seeds, epochs)
    epochs = shortened_to(epochs, trials, aside)
    execute_missing(console, aside, trials, out, workers, warm_start)
    values, file = grid.write(chosen, out, seeds, epochs)
    for column, lines in values["columns"].items():
        if not lines:
            continue
        shown = RichTable(title=f"{chosen.title}: {column}, accuracy in % on validation samples", title_justify="left")
        for name in ("method", *(f"{lr:g}" for lr in chosen.grid), "best", "in the table"):
            shown.add_column(name, justify="left" if name == "method" else "right")
        for line in lines:
            accuracies = (f"{value:.2f}" for value in line["accuracies"].values())
            shown.add_row(line["method"], *accuracies, f"{line['best']:g}", f"{line['used']:g}")
        console.print(shown)
    console.print(f"Written to {file}", soft_wrap=True)
    if as_json:
        print(json.dumps(values, indent=2))


@app.command("status")
def status_command(
    table: AnyTable = None,
    methods: Methods = None,
    columns: Columns = None,
    seeds: Seeds = 3,
    epochs: Epochs = None,
    out: Out = RESULTS,
    warm_start: WarmStart = None,
) -> None:
    """Show which runs are done, and how long the others take."""
    chosen = list(tables().values()) if table is None else [find_table(table)]
    runs = [run for one in chosen for run in paper_runs(one, names(methods), names(columns), seeds, epochs)]
    first, second = ("table", "column") if table is None else ("column", "method")
    groups: dict[tuple[str, str], list[PaperRun]] = {}
    for run in runs:
        title = (run.table.name, run.column.name) if table is None else (run.column.name, run.row.name)
        groups.setdefault(title, []).append(run)
    shortened = any(run.shortened for run in runs)
    shown = RichTable(title=f"Runs in {out}" + (f", {epochs} epochs" if shortened else ""), title_justify="left")
    for name in (first, second, "done", "begun", "to go", "time left"):
        shown.add_column(name, justify="left" if name in (first, second) else "right", overflow="fold")
    usual_rate, total = status(runs, out, warm_start).rate, 0.0
    for title, group in groups.items():
        state = status(group, out, warm_start, usual_rate)
        total += state.seconds_left
        left = duration(state.seconds_left) if state.missing else ""
        shown.add_row(*title, str(state.done), str(state.begun), str(len(state.missing)), left)
    console = make_console()
    console.print(shown)
    console.print(f"{duration(total)} in all, estimated from the runs that are done.")


@app.command("claims")
def claims_command(out: Out = RESULTS, as_json: Json = False) -> None:
    """Show which of the paper's claims, and of ours, the records support."""
    findings = claims.findings(tables().values(), out)
    if not findings:
        raise InvalidValueError(f"There is nothing to compare in {out}: name the folder of the records with --out.")
    if as_json:
        print(json.dumps(claims.values(findings), indent=2))
        return
    console = make_console()
    for group, known in findings:
        shown = RichTable(title=group.title, title_justify="left")
        for i, name in enumerate(claims.HEADER):
            shown.add_column(name, justify="right" if 2 <= i <= 4 else "left", no_wrap=i > 1, overflow="fold")
        for line in claims.lines(known):
            if line[0]:
                shown.add_section()
            shown.add_row(*map(escape, line), style=VERDICT_STYLES[line[-1].partition(",")[0]])
        console.print(shown)
    console.print(
        "Points of test accuracy: mean ± standard error of the differences, paired over clients and seeds. A claim "
        f"holds, or fails, if the mean is more than {claims.DECISIVE} standard errors above, or below, 0."
    )


@app.command("docs")
def docs_command(update: Update = False, document: Document = DOCUMENT, out: Out = RESULTS) -> None:
    """Compare the numbers in a document, and in the files beside the records, with the records, or write them."""
    console = make_console()
    if update:
        docs.update(document, tables().values(), out)
        console.print(f"{document} and the tables in {out} are up to date.")
        return
    if differences := docs.check(document, tables().values(), out):
        head = f"{document} does not agree with the records in {out} (`quped paper docs --update` writes them):"
        raise RunError("\n".join([head, *differences]))
    console.print(f"{document} agrees with the records in {out}.")


def names(text: str | None) -> list[str] | None:
    """Return the names in a list with commas; None if there is no list."""
    return None if text is None else [name.strip() for name in text.split(",")]


def shortened_to(epochs: int | None, runs: list[PaperRun], aside: Console) -> int | None:
    """Return the length of shortened runs, or None, with a note if one was asked for that no run exceeds."""
    if epochs is not None and not any(run.shortened for run in runs):
        aside.print(f"[yellow]note:[/] no run has more than {epochs} epochs: nothing is shortened.")
        return None
    return epochs


def execute_missing(
    console: Console, aside: Console, runs: list[PaperRun], out: Path, workers: int | None, warm_start: Path | None
) -> None:
    """Execute the runs without a record; notes go aside."""
    state = status(runs, out, warm_start)
    if state.impossible:
        first = state.impossible[0].column
        aside.print(
            f"[yellow]note:[/] {len(state.impossible)} runs are left out: the column {first.name} is about "
            f"{first.samples:,} training samples, and other data are stored."
        )
    remove_leftovers([run for run in runs if run not in state.missing], out)
    if not state.missing:
        return
    console.print(f"{state.done} runs are done, {len(state.missing)} to go, about {duration(state.seconds_left)}.")
    if replaced := sum((out / run.path).exists() for run in state.missing):
        aside.print(f"[yellow]note:[/] {replaced} records have other options or data, and will be replaced.")
    try:
        with notes(aside), progress_bars(console) as follow:

            def is_busy(run: PaperRun) -> bool:
                """Execute a run; say whether another process does it instead."""
                title = run.title
                record = execute(run, out, workers=workers, warm_start=warm_start, observers=[follow(title)])
                if record is not None and not console.is_terminal:  # which has no bars
                    accuracy, time = record["accuracy"]["mean"], duration(record["seconds"])
                    console.print(f"{title}: {accuracy:.2%} in {time}", soft_wrap=True)
                return record is None

            busy = [run for run in state.missing if is_busy(run)]
            # A second time: by now the other process may have finished, or given up.
            if left := sum(is_busy(run) for run in busy):
                aside.print(f"[yellow]note:[/] another process executes {left} of the runs, which are not done yet.")
    except InterruptedRunError as stop:
        typer.echo(f"{stop} The same command continues from there.", err=True)
        raise typer.Exit(128 + stop.signal_number) from stop
    except KeyboardInterrupt:
        typer.echo("Interrupted. The same command continues from the last checkpoint.", err=True)
        raise


def show(console: Console, table: Table, comparison: compare.Comparison) -> None:
    """Print a table, without the columns that follow from others if the terminal is narrow."""
    omitted = next(names for width, names in OMITTED.items() if console.width >= width)
    for column, lines in comparison:
        header, *texts = compare.cells(lines)
        kept = [i for i, name in enumerate(header) if name not in omitted]
        shown = RichTable(title=f"{table.title}: {column.title}", title_justify="left")
        for i in kept:
            shown.add_column(header[i], justify="left" if i < 2 else "right", no_wrap=i > 0, overflow="fold")
        for line, cells in zip(lines, texts, strict=True):
            shown.add_row(*(escape(cells[i]) for i in kept), style="bold" if line.row.highlight else None)
        console.print(shown)
    console.print(
        "Test accuracy in % after the last round, mean over clients; ± standard deviation over seeds. Worst tenth: of "
        "clients. Below local, below FedAvg: clients that local training with the same bits, or FedAvg, serves better, "
        "by more than two standard errors of their test samples. w: the global model, which FedAvgFT tunes. "
        "The paper does not have the rows marked (ours)."
    )


def duration(seconds: float) -> str:
    """Return a time in the unit that suits it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
