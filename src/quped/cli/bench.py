"""`quped bench`: how fast this machine is, and how large files are."""

import json
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from quped._bench import Load, compare, measure
from quped._bench_files import measure_files
from quped._bench_networks import NETWORKS
from quped.errors import InvalidValueError, did_you_mean
from quped.simulation.engines import ENGINES, EngineChoice

app = typer.Typer(help="Measure how fast this machine is, and how large files are.", no_args_is_help=True)

MEANING = {
    "plain_1thread": "plain PyTorch loop, 1 thread",
    "plain_2threads": "plain PyTorch loop, 2 threads",
    "inline": "our inline engine, 1 thread",
    "processes": "our process engine",
    "processes_quped_2bit": "our process engine, QuPeD at 2 bits",
}


@app.callback()
def options() -> None:
    """Measure how fast this machine is, and how large files are."""


@app.command()
def engine(
    turns: Annotated[int, typer.Option(min=1, help="Turns of each contestant; the median counts.")] = 5,
    network: Annotated[str, typer.Option(metavar="|".join(NETWORKS), help="The clients' network.")] = "cnn1",
    name: Annotated[
        str | None,
        typer.Option(
            "--engine",
            metavar="|".join(ENGINES),
            help="Compare this engine with the process engine, and nothing else.",
            show_default=False,
        ),
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Worker processes.", show_default="all cores")] = None,
    compiled: Annotated[bool, typer.Option("--compile", help="Let our engines take compiled steps.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
) -> None:
    """Compare the engines with a plain PyTorch loop: FedAvg and QuPeD, 50 clients, batches of 25 images."""
    if network not in NETWORKS:
        raise InvalidValueError(f"There is no network '{network}' here. {did_you_mean(network, NETWORKS)}")
    EngineChoice(name)  # a wrong name is told at once
    if not as_json:
        typer.echo(f"{turns + 1} turns of {6 if name is None else 2} contestants: this takes minutes.")
    load = Load(network=network, compile=compiled)
    numbers = measure(load, turns, workers) if name is None else compare(load, turns, name, workers)
    if as_json:
        print(json.dumps(numbers, indent=2))
    elif name is None:
        show_engines(numbers)
    else:
        rates, memory = numbers["rates"], numbers["memory_mb"]
        typer.echo(
            f"Client-iterations per second: {rates[name]:,.0f} with {name}, {rates['processes']:,.0f} with processes: "
            f"{numbers['ratio_vs_processes']:.2f} of it. Start-up took {numbers['start_seconds']:.0f} s."
            + (f" Memory of a worker: {max(memory):,} MB at most." if memory else "")
        )


def show_engines(numbers: dict[str, Any]) -> None:
    """Print what was measured."""
    console = Console(highlight=False)
    table = Table("", title="client-iterations per second, FedAvg unless said otherwise", title_justify="left")
    table.add_column("rate", justify="right")
    table.add_column("times plain, 1 thread", justify="right")
    for name, rate in numbers["rates"].items():
        table.add_row(MEANING[name], f"{rate:,.0f}", f"{rate / numbers['rates']['plain_1thread']:.2f}")
    console.print(table)
    hours = numbers["hours_for_a_paper_run"]
    memory = numbers["peak_memory_mb"]
    console.print(
        f"A QuPeD step costs {numbers['quped_over_fedavg']:.1f} FedAvg steps. "
        f"FedAvg runs at {numbers['fraction_of_peak']:.0%} of this machine's sgemm peak "
        f"({numbers['sgemm_gflops']:.0f} GFLOP/s).\n"
        f"One CIFAR-10 run of the paper takes {hours['fedavg']:.1f} h with FedAvg, "
        f"{hours['quped_2bit']:.1f} h with QuPeD at 2 bits. "
        f"Evaluation takes {numbers['evaluation_share']:.1%} of the former."
        + (f" Memory of a worker: {memory:,} MB at most." if memory else "")
    )


@app.command()
def files(as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False) -> None:
    """Compare packed files with the information in them and with float32: three networks at 1 and 2 bits."""
    sizes = measure_files()
    if as_json:
        print(json.dumps(sizes, indent=2))
        return
    table = Table("", title="bytes", title_justify="left")
    for name in ("file", "floor", "file / floor", "float32", "float32 / file"):
        table.add_column(name, justify="right")
    for name, case in sizes.items():
        file, floor, full = case["file"], case["floor"], case["float32"]
        table.add_row(name, f"{file:,}", f"{floor:,}", f"{file / floor:.3f}", f"{full:,}", f"{full / file:.1f}")
    Console(highlight=False).print(table)
