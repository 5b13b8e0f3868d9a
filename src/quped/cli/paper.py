"""`quped reproduce`: the paper's tables."""

import difflib
import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from quped.cli._shared import notes, single_command
from quped.cli.run import Workers
from quped.errors import InterruptedRunError, InvalidValueError, RunError
from quped.paper import claims
from quped.paper.compare import HEADER, Rows, markdown, rows, values
from quped.paper.curves import draw
from quped.paper.docs import document
from quped.paper.runs import run_cell, status
from quped.paper.table import Cell, Table, find_table, tables
from quped.progress import progress_bars
from quped.records import write_bytes

Name = Annotated[str | None, typer.Argument(metavar="[TABLE]", help="One of those that --list shows.")]
List = Annotated[bool, typer.Option("--list", help="List the tables, with their methods and columns.")]
ShowStatus = Annotated[
    bool, typer.Option("--status", help="Run nothing; show what is there and how long the rest takes.")
]
Check = Annotated[bool, typer.Option("--check", help="Verify that the tables in --docs are those of the records.")]
Claims = Annotated[
    bool, typer.Option("--claims", help="Run nothing; show where the records agree with what the paper says.")
]
Update = Annotated[bool, typer.Option("--update", help="Write the tables of the records into --docs.")]
Docs = Annotated[Path, typer.Option(help="The document with the tables.", dir_okay=False)]
Methods = Annotated[str | None, typer.Option(metavar="A,B", help="Run only these, such as quped-2bit,fedavg.")]
Columns = Annotated[str | None, typer.Option(metavar="A,B", help="Run only these columns.")]
Seeds = Annotated[int, typer.Option(min=1, help="Runs of each method.")]
Epochs = Annotated[
    int | None,
    typer.Option(min=1, help="Shorten every run to so many epochs, its schedules with it.", show_default="the paper's"),
]
Out = Annotated[Path, typer.Option(help="Folder of the results; what it holds is not run again.", file_okay=False)]
Warm = Annotated[
    Path | None,
    typer.Option(
        help="Folder with the networks in full precision that table1 starts from; runs from others are done anew.",
        file_okay=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print the table as JSON, and nothing else, on standard output.")]

VERDICT_STYLES = {"holds": "green", "level": None, "does not hold": "red"}

NARROW = 80
"""Columns of a terminal, below which a table is shortened."""


def reproduce_command(
    table: Name = None,
    list_tables: List = False,
    show_status: ShowStatus = False,
    show_claims: Claims = False,
    check: Check = False,
    update: Update = False,
    docs: Docs = Path("docs/results.md"),
    methods: Methods = None,
    columns: Columns = None,
    seeds: Seeds = 3,
    epochs: Epochs = None,
    out: Out = Path("results"),
    warm_start: Warm = None,
    workers: Workers = None,
    as_json: Json = False,
) -> None:
    """Run a table of the paper and show our numbers beside the paper's.

    What is done is skipped, and what was interrupted goes on, so a table can be spread over many calls. Methods
    named with a plus, tuned or together are ours, not the paper's.
    """
    console = Console(quiet=as_json, highlight=False)
    if not console.is_terminal:
        console.width = 120
    aside = Console(stderr=True, highlight=False) if as_json else console
    part = methods or columns or epochs
    if list_tables + show_status + show_claims + check + update > 1:
        raise InvalidValueError("--list, --status, --claims, --check and --update stand alone: give one of them.")
    if show_claims:
        if table or part:
            raise InvalidValueError("--claims stands alone, and is about all tables: only --out and --json go with it.")
        known = claims.known(out)
        if not known:
            raise InvalidValueError(f"There is nothing to compare in {out}: name the folder of the records with --out.")
        tell_claims(console, known)
        if as_json:
            print(json.dumps(claims.values(known), indent=2))
        return
    if check or update:
        if table or part or as_json:
            raise InvalidValueError("--check and --update stand alone, and are about all tables.")
        agree(docs, out, console, write=update)
        return
    if table is None and part:
        raise InvalidValueError("Say of which table: quped reproduce TABLE, then --methods, --columns or --epochs.")
    if as_json and (list_tables or show_status or table is None):
        raise InvalidValueError("--json prints the numbers of a table: quped reproduce TABLE --json.")
    if list_tables and table is not None:
        raise InvalidValueError(f"--list lists all tables. What there is of {table} is shown by --status.")
    if table is None and not show_status:
        show_tables(console)
        return
    wanted = [find_table(table)] if table is not None else list(tables().values())
    chosen = named("--methods", methods), named("--columns", columns)
    cells = [cell for found in wanted for cell in found.cells(*chosen, seeds, epochs)]
    if epochs is not None and not any(cell.shortened for cell in cells):
        aside.print(f"[yellow]note:[/] no run has more than {epochs} epochs: nothing is shortened.")
        epochs = None
    if show_status:
        tell_status(console, cells, out, warm_start)
        return
    (found,) = wanted
    if workers is not None and all(cell.recipe is not None for cell in cells):
        raise InvalidValueError(f"--workers is for federations: {found.name} trains one network at a time.")
    run(console, aside, cells, out, workers, warm_start)
    there = rows(found, out, epochs)
    show(console, found, there)
    if epochs is not None:
        publish(found, rows(found, out), out)  # which lists shortened runs, too
    if written := publish(found, there, out, epochs):
        names = ", ".join(path.name for path in written)
        console.print(f"Written to {out / found.name}: {names}", soft_wrap=True)
    if as_json:
        print(json.dumps(values(found, there), indent=2))


def named(option: str, names: str | None) -> list[str] | None:
    """Return the names that an option lists; None if it was not given."""
    found = None if names is None else [name.strip() for name in names.split(",") if name.strip()]
    if found == []:
        raise InvalidValueError(f"{option} names nothing: leave it out, or see --list for what there is.")
    return found


def publish(table: Table, found: Rows, out: Path, epochs: int | None = None) -> list[Path]:
    """Write the table as Markdown, as JSON and as curves, if anything was run; return the files."""
    files = texts(table, found, out, epochs)
    for path, text in files.items():
        path.parent.mkdir(exist_ok=True)
        write_bytes(path, text.encode())
    if not files:
        return []
    picture = out / table.name / ("curves.png" if epochs is None else f"curves-epochs-{epochs}.png")
    draw(table.title, found, picture)
    return [*files, picture]


def texts(table: Table, found: Rows, out: Path, epochs: int | None = None) -> dict[Path, str]:
    """Return what the files of a table say; nothing if nothing was run."""
    if not found:
        return {}
    path = out / table.name / ("table.md" if epochs is None else f"table-epochs-{epochs}.md")
    numbers = json.dumps(values(table, found), indent=2)
    return {path: f"# {table.title}\n\n{markdown(found)}\n", path.with_suffix(".json"): f"{numbers}\n"}


def run(
    console: Console, aside: Console, cells: list[Cell], out: Path, workers: int | None, warm_start: Path | None
) -> None:
    """Run what is missing; notes go aside."""
    left = status(cells, out, warm_start)
    if not left.missing:
        return
    guess = f"{duration(left.seconds_left)} at a guess if nothing else is computed"
    console.print(f"{left.done} runs are done, {len(left.missing)} to go, {guess}.")
    if others := sum((out / cell.path).exists() for cell in left.missing):
        aside.print(
            f"[yellow]note:[/] {others} of them are recorded with other settings or data, and will be replaced."
        )
    try:
        with notes(aside), progress_bars(console) as follow:

            def taken(cell: Cell) -> bool:
                """Run a cell, and tell of it; say whether another process has it instead."""
                title = f"{cell.column.name} {cell.method} {cell.seed}"
                result = run_cell(cell, out, workers=workers, warm_start=warm_start, progress=follow(title))
                if result is not None and not console.is_terminal:  # and so without bars
                    accuracy, time = result["accuracy"]["mean"], duration(result["seconds"])
                    console.print(f"{title}: {accuracy:.2%} in {time}", soft_wrap=True)
                return result is None

            busy = [cell for cell in left.missing if taken(cell)]
            # When the rest is done: by now the other process may have finished, or given up.
            if still := sum(taken(cell) for cell in busy):
                aside.print(f"[yellow]note:[/] {still} of the runs are not done yet: another process is at them.")
    except InterruptedRunError as stop:
        typer.echo(f"{stop} The same command goes on from there.", err=True)
        raise typer.Exit(128 + stop.signal_number) from stop
    except KeyboardInterrupt:
        typer.echo("Interrupted. The same command goes on from the last checkpoint.", err=True)
        raise


def show(console: Console, table: Table, found: Rows) -> None:
    """Print the table; in a narrow terminal without what can be told from the rest."""
    left_out = () if console.width >= NARROW else ("Seeds", "Difference")
    kept = [i for i, name in enumerate(HEADER) if name not in left_out]
    for column, lines in found:
        shown = RichTable(title=f"{table.title}: {column.title}", title_justify="left")
        for i in kept:
            shown.add_column(HEADER[i], justify="left" if i < 2 else "right", no_wrap=i > 0, overflow="fold")
        for line in lines:
            style = "bold" if line.method.startswith(("quped", "centers")) else None
            texts = line.texts()
            shown.add_row(*(escape(texts[i]) for i in kept), style=style)
        console.print(shown)
    console.print(
        "Test accuracy in % after the last round, of clients their mean; ± standard deviation over seeds. "
        "What has a +, is tuned or first together is ours, not the paper's."
    )


def show_tables(console: Console) -> None:
    """List the tables."""
    for table in tables().values():
        console.print(f"[bold]{table.name}[/]  {escape(table.title)}", soft_wrap=True)
        console.print(f"    {escape(table.source)}", soft_wrap=True)
        console.print(f"    needs: {', '.join(needs(table))}", soft_wrap=True)
        console.print(f"    columns: {', '.join(c.name for c in table.columns)}", soft_wrap=True)
        console.print(f"    methods: {', '.join(table.methods)}", soft_wrap=True)
    console.print(
        "\nRun one with [bold]quped reproduce TABLE[/], a part of it with --methods, --columns, --seeds, --epochs."
    )


def needs(table: Table) -> list[str]:
    """Return the data sets of a table, and which option it cannot do without."""
    data = {column.recipe["data"] if column.data is None else column.data.name for column in table.columns}
    return [*sorted(data), *(["--warm-start FOLDER"] if any(column.recipe for column in table.columns) else [])]


def tell_claims(console: Console, known: claims.Known) -> None:
    """Show what the records say of the paper's claims."""
    for claim, some in known:
        shown = RichTable(title=claim.words, title_justify="left")
        for i, name in enumerate(claims.HEADER):
            shown.add_column(name, justify="right" if 0 < i < 4 else "left", no_wrap=i > 0, overflow="fold")
        for one in some:
            shown.add_row(*map(escape, one.texts(claim)), style=VERDICT_STYLES[one.verdict])
        console.print(shown)
    console.print(
        "Points of test accuracy, mean ± standard deviation of the differences at equal seeds. A claim holds where all "
        f"have its sign, and a single one is above {claims.DECIDES}."
    )


def tell_status(console: Console, cells: list[Cell], out: Path, warm_start: Path | None) -> None:
    """Show how much is there: of a table by method, of several by column."""
    shortened = {cell.epochs for cell in cells if cell.shortened}
    length = f", shortened to {shortened.pop()} epochs" if shortened else ""
    shown = RichTable(title=f"Runs in {out}{length}", title_justify="left")
    usual_rate = status(cells, out, warm_start).rate
    total = 0.0
    several = len({cell.table.name for cell in cells}) > 1
    names = ("table", "column") if several else ("column", "method")
    for name in (*names, "done", "begun", "to go", "time left"):
        shown.add_column(name, justify="left" if name in names else "right", overflow="fold")
    groups: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        title = (cell.table.name, cell.column.name) if several else (cell.column.name, cell.method)
        groups.setdefault(title, []).append(cell)
    for title, part in groups.items():
        there = status(part, out, warm_start, usual_rate)
        total += there.seconds_left
        left = duration(there.seconds_left) if there.missing else ""
        shown.add_row(*title, *map(str, (there.done, there.begun, len(there.missing))), left)
    console.print(shown)
    console.print(
        f"{duration(total)} in all, at a guess: from the runs that are done, of the same row if there are any, or else "
        "from the speed of a usual machine."
    )


def agree(docs: Path, out: Path, console: Console, *, write: bool) -> None:
    """Compare a document, and the tables beside the records, with the records; or bring them up to date."""
    try:
        text = docs.read_text()
    except OSError as error:
        raise InvalidValueError(
            f"The document {docs} cannot be read: {error.strerror}. Name another with --docs."
        ) from error
    if not out.is_dir():
        raise InvalidValueError(f"There are no results in {out}: name their folder with --out.")
    expected = document(text, out)
    if write:
        for table in tables().values():
            publish(table, rows(table, out), out)
        write_bytes(docs, expected.encode())
        console.print(f"{docs} and the tables in {out} are those of the records.")
        return
    changes = list(
        difflib.unified_diff(text.splitlines(), expected.splitlines(), str(docs), "the records", lineterm="", n=0)
    )
    for table in tables().values():
        for path, content in texts(table, rows(table, out), out).items():
            if not path.exists() or path.read_text() != content:
                changes.append(f"{path} is not that of the records")
    if changes:
        raise RunError(
            "\n".join([f"{docs} does not agree with the records in {out} (--update puts it right):", *changes])
        )
    console.print(f"{docs} agrees with the records in {out}.")


def duration(seconds: float) -> str:
    """Return a time as a person says it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


app = single_command(reproduce_command)
