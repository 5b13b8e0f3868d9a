"""`quped inspect`: the content of a packed file."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from quped.cli._shared import make_console, single_command
from quped.export import PackedModel, read
from quped.quant.sizes import index_bytes
from quped.report.terminal import size

File = Annotated[Path, typer.Argument(help="A packed file, such as phone.quped.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print all of it as JSON.")]


def inspect_command(file: File, as_json: Json = False) -> None:
    """Show what a packed file holds: tensors, bits, values, bytes, and where it comes from."""
    model = read(file)
    totals = {"bytes": file.stat().st_size, "floor": model.floor, "float32": model.float_bytes}
    rows = describe(model)
    if as_json:
        print(json.dumps({"file": str(file), **totals, "tensors": rows, "info": model.info}, indent=2))
        return
    table = Table("tensor", "shape")
    for name in ("bits", "values", "bytes"):
        table.add_column(name, justify="right")
    for row in rows:
        shape = "x".join(map(str, row["shape"])) or "1"
        table.add_row(escape(row["name"]), shape, str(row["bits"]), row["values"], f"{row['bytes']:,}")
    console = make_console()
    console.print(table)
    for key, value in model.info.items():
        words = value if isinstance(value, str) else json.dumps(value)
        console.print(f"{escape(key)}: {escape(words)}", soft_wrap=True)
    console.print(
        f"{size(totals['bytes'])} on disk, compressed. {size(model.floor)} of numbers. "
        f"{size(model.float_bytes)} in float32."
    )


def describe(model: PackedModel) -> list[dict[str, Any]]:
    """Return a line for each tensor; `bytes` are before compression."""
    rows = []
    for name, tensor in model.packed.items():
        (groups, m), count = tensor.centers.shape, tensor.indices.numel()
        held = index_bytes(count, tensor.bits) + tensor.centers.numel() * tensor.centers.element_size()
        values = f"{groups} x {m}" if groups > 1 else str(m)
        rows.append({"name": name, "shape": list(tensor.shape), "bits": tensor.bits, "values": values, "bytes": held})
    for name, whole in model.tensors.items():
        kind = str(whole.dtype).removeprefix("torch.")
        bits, held = 8 * whole.element_size(), whole.numel() * whole.element_size()
        rows.append({"name": name, "shape": list(whole.shape), "bits": bits, "values": kind, "bytes": held})
    return sorted(rows, key=lambda row: str(row["name"]))


app = single_command(inspect_command)
