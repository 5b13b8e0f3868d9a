"""`quped plan`: the bits of each parameter that fit into a budget."""

import json
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from quped._rng import torch_seeded
from quped.cli._shared import make_console, single_command
from quped.client import Client
from quped.data.datasets import DATASETS
from quped.errors import InvalidValueError, did_you_mean
from quped.models import NETWORKS, FunctionalNetwork, build
from quped.quant.sizes import FLOAT_BYTES
from quped.simulation.bits import Weights, budget_plan

Network = Annotated[str, typer.Argument(help=f"One of {', '.join(NETWORKS)}.", show_default=False)]
Budget = Annotated[str, typer.Option(help="Bytes that the file may have, such as 8kB.", show_default=False)]
Data = Annotated[str, typer.Option(help="A data set: see `quped data list`.")]
PerChannel = Annotated[bool, typer.Option("--per-channel", help="Give every output channel its own centers.")]
Seed = Annotated[int, typer.Option(min=0, help="Random seed.")]
Json = Annotated[bool, typer.Option("--json", help="Print the plan as JSON, and nothing else.")]


def plan_command(
    network: Network,
    budget: Budget,
    data: Data = "digits",
    per_channel: PerChannel = False,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Show which bits `Client(budget=...)` would choose, without training.

    The loss is an estimate at the initial weights: what rounding a parameter is expected to add to the loss.
    """
    if data not in DATASETS:
        raise InvalidValueError(f"There is no data set '{data}'. {did_you_mean(data, DATASETS)}")
    samples = DATASETS[data]()
    with torch_seeded(seed, "init"):
        module = build(network, samples.input_shape, samples.classes)
    held = FunctionalNetwork(module)
    client = Client("client", samples.train, None, module, budget=budget, per_channel=per_channel)
    plan = budget_plan(client, f"network '{network}'", held, Weights.of(module), samples.train, "quped", seed)
    state = (*held.initial.params.items(), *held.initial.buffers.items())
    rest = FLOAT_BYTES * sum(value.numel() for name, value in state if name not in plan.choice)
    rows = {name: plan.choice[name]._asdict() for name, _ in state if name in plan.choice}
    if as_json:
        print(json.dumps({"tensors": rows, "other_bytes": rest, "most_bytes": plan.most_bytes}, indent=2))
        return
    table = Table("tensor")
    for name in ("bits", "bytes", "expected loss"):
        table.add_column(name, justify="right")
    for name, row in rows.items():
        table.add_row(escape(name), str(row["bits"]), f"{row['bytes']:,}", f"{row['loss']:.2g}")
    table.add_section()
    table.add_row("all others", "32", f"{rest:,}", "0")
    console = make_console()
    console.print(table)
    console.print(f"The file has at most {plan.most_bytes:,} bytes.")


app = single_command(plan_command)
