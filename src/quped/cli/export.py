"""`quped export`: the models of a run as files for devices."""

import json
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from rich.markup import escape
from rich.table import Table

from quped.cli._shared import make_console, single_command
from quped.errors import InvalidValueError, did_you_mean
from quped.experiments.sources import sources
from quped.export.formats import FORMATS
from quped.report.terminal import size

Run = Annotated[Path, typer.Argument(help="The folder of a finished run.", file_okay=False, show_default=False)]
Clients = Annotated[
    list[str] | None, typer.Option("--client", metavar="NAME", help="A client. May be repeated.", show_default="all")
]
FormatName = Annotated[str, typer.Option("--format", help=f"One of {', '.join(FORMATS)}.")]
Float16 = Annotated[
    bool, typer.Option("--float16", help="Round numbers that are not quantized to float16: smaller, less exact.")
]
Out = Annotated[Path | None, typer.Option(help="Folder for the files.", show_default="RUN/export", file_okay=False)]
Json = Annotated[bool, typer.Option("--json", help="Print the lines as JSON, and nothing else.")]


class Line(NamedTuple):
    """What is reported of a file."""

    file: str
    bytes: int
    floor: int
    float32: int
    verified: str


def export_command(
    run: Run,
    client: Clients = None,
    format_name: FormatName = "quped",
    float16: Float16 = False,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Write the models of a run as files for devices, and verify them.

    Only the file is smaller, and with it what is sent to a device: the weights are decoded there, and arithmetic stays
    in float32.
    """
    if format_name not in FORMATS:
        raise InvalidValueError(f"There is no format '{format_name}'. {did_you_mean(format_name, FORMATS)}")
    chosen, folder, lines = FORMATS[format_name], out or run / "export", []
    for source in sources(run, client or ()):
        path, model = folder / f"{source.name}{chosen.suffix}", source.model
        verified = chosen.write(source, path, float16)
        lines.append(Line(str(path), path.stat().st_size, model.floor, model.float_bytes, verified))
    if as_json:
        print(json.dumps([line._asdict() for line in lines], indent=2))
        return
    table = Table("file")
    for name in ("size", "floor", "float32", "ratio"):
        table.add_column(name, justify="right")
    table.add_column("verified")
    for line in lines:
        sizes = (size(line.bytes), size(line.floor), size(line.float32), f"1/{line.float32 / line.bytes:.1f}")
        table.add_row(escape(Path(line.file).name), *sizes, line.verified)
    console = make_console()
    console.print(table)
    console.print(f"Files: {escape(str(folder))}", soft_wrap=True)


app = single_command(export_command)
