"""How fast the engines are, beside a plain PyTorch loop, measured in turns in one run.

The load is a round of the paper's CIFAR-10 experiment: 50 clients, 10 steps each, batches of 25, with CNN1 or another
network. Pixels are random, since only time is measured.
"""

import copy
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from quped._bench_networks import NETWORKS, ours
from quped.algorithms import FULL_PRECISION, AnyAlgorithm, ClientSpec, FedAvg, QuPeD
from quped.data import Subset, TensorSamples
from quped.data.batches import draw
from quped.models import FunctionalNetwork, quantizable
from quped.simulation import Setup, SimClient, TrainingOptions
from quped.simulation.engines import ENGINES, Engine, EngineChoice, usable_cores

ROUNDS_PER_EVALUATION = 20
"""In our file of that experiment: 5 epochs of 40 steps."""

PAPER_ITERATIONS = 500_000
"""Client-iterations of one CIFAR-10 run of the paper: 50 clients, 250 epochs of 40 steps."""


@dataclass(frozen=True)
class Load:
    """What is computed in each turn."""

    network: str = "cnn1"
    """One of `NETWORKS`."""
    clients: int = 50
    steps: int = 10
    batch_size: int = 25
    samples: int = 100
    """Per client; more would only be drawn from."""
    tests: int = 200
    """Test samples per client, as in the paper; these, too, are among the `samples`."""

    compile: bool = False
    """Whether our engines take compiled steps."""

    @property
    def iterations(self) -> int:
        """Client-iterations in a round."""
        return self.clients * self.steps

    def data(self) -> list[TensorSamples]:
        """Return random images for every client."""
        rng = torch.Generator().manual_seed(0)
        return [
            TensorSamples(
                torch.randn(self.samples, 3, 32, 32, generator=rng),
                torch.randint(0, 10, (self.samples,), generator=rng),
            )
            for _ in range(self.clients)
        ]

    def setup(self, algorithm: AnyAlgorithm, bits: int, data: list[TensorSamples]) -> Setup:
        """Return one round with the network at every client."""
        module = ours(self.network)
        network = FunctionalNetwork(module)
        widths = dict.fromkeys(quantizable(module), bits) if bits < FULL_PRECISION else {}
        spec = ClientSpec(network, network.initial, network, network.initial, widths)
        tests = [Subset(samples, torch.arange(self.tests) % self.samples) for samples in data]
        clients = [
            SimClient(f"c{i:03d}", spec, network, train, test)
            for i, (train, test) in enumerate(zip(data, tests, strict=True))
        ]
        options = TrainingOptions(
            epochs=1,
            finetune_epochs=0,
            steps_per_epoch=self.steps,
            local_steps=self.steps,
            batch_size=self.batch_size,
            lr_decay=1.0,
            compile=self.compile,
        )
        return Setup.of(algorithm, clients, network, options, seed=0)


def measure(load: Load, turns: int, workers: int | None = None) -> dict[str, Any]:
    """Return rates in client-iterations per second, medians over turns, and the ratios between them."""
    workers = usable_cores() if workers is None else workers
    data = load.data()
    with ExitStack() as stack:
        fedavg, quped = load.setup(FedAvg(), 32, data), load.setup(QuPeD(), 2, data)
        inline = stack.enter_context(closing(EngineChoice("inline").open(fedavg)))
        fast = stack.enter_context(closing(EngineChoice("processes", workers).open(fedavg)))
        quantized = stack.enter_context(closing(EngineChoice("processes", workers).open(quped)))
        contestants: dict[str, Callable[[], None]] = {
            "plain_1thread": lambda: plain_round(load, data, threads=1),
            "plain_2threads": lambda: plain_round(load, data, threads=2),
            "inline": lambda: run_round(inline, fedavg),
            "processes": lambda: run_round(fast, fedavg),
            "processes_quped_2bit": lambda: run_round(quantized, quped),
            "evaluation": lambda: evaluate(fast, fedavg),
        }
        medians = in_turns(contestants, turns)
    evaluation = medians.pop("evaluation")
    rates = {name: load.iterations / taken for name, taken in medians.items()}
    peak = sgemm_peak(threads=max(workers, 1))
    return {
        "network": load.network,
        "compile": load.compile,
        "rates": {name: round(rate, 1) for name, rate in rates.items()},
        "ratio_vs_plain_1thread": round(rates["processes"] / rates["plain_1thread"], 3),
        "ratio_vs_plain_2threads": round(rates["processes"] / rates["plain_2threads"], 3),
        "ratio_inline_vs_plain_1thread": round(rates["inline"] / rates["plain_1thread"], 3),
        "quped_over_fedavg": round(rates["processes"] / rates["processes_quped_2bit"], 3),
        "fraction_of_peak": round(rates["processes"] * step_flops(load) / peak, 4),
        "sgemm_gflops": round(peak / 1e9, 1),
        "evaluation_share": round(evaluation / (evaluation + ROUNDS_PER_EVALUATION * medians["processes"]), 4),
        "peak_memory_mb": peak_memory(),
        "hours_for_a_paper_run": {
            "fedavg": round(PAPER_ITERATIONS / rates["processes"] / 3600, 2),
            "quped_2bit": round(PAPER_ITERATIONS / rates["processes_quped_2bit"] / 3600, 2),
        },
        "workers": workers,
        "turns": turns,
    }


def compare(load: Load, turns: int, name: str, workers: int | None = None) -> dict[str, Any]:
    """Return the rate of an engine in client-iterations per second beside the process engine, start-up not counted."""
    workers = usable_cores() if workers is None else workers
    setup = load.setup(FedAvg(), 32, load.data())
    with ExitStack() as stack:
        # Processes first: they are forked, and take nothing of the other engine with them.
        usual = stack.enter_context(closing(EngineChoice("processes", workers).open(setup)))
        began = time.perf_counter()
        other = stack.enter_context(
            closing(EngineChoice(name, workers if "workers" in ENGINES[name].takes else None).open(setup))
        )
        start = time.perf_counter() - began
        medians = in_turns({"processes": lambda: run_round(usual, setup), name: lambda: run_round(other, setup)}, turns)
        memory = other.memory() if isinstance(other, HasMemory) else []
    return {
        "network": load.network,
        "compile": load.compile,
        "rates": {key: round(load.iterations / taken, 1) for key, taken in medians.items()},
        "ratio_vs_processes": round(medians["processes"] / medians[name], 3),
        "start_seconds": round(start, 1),
        "memory_mb": [round(size / 1e6) for size in memory],
        "workers": workers,
        "turns": turns,
    }


@runtime_checkable
class HasMemory(Protocol):
    """An engine that can tell the memory of its workers."""

    def memory(self) -> list[int]:
        """Return the most memory that each had, in bytes."""
        ...


def in_turns(contestants: Mapping[str, Callable[[], None]], turns: int) -> dict[str, float]:
    """Run all contestants in turns, first once to warm up; return the median of the seconds of each."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(turns + 1):
        for name, run in contestants.items():
            began = time.perf_counter()
            run()
            if turn:
                times[name].append(time.perf_counter() - began)
    return {name: statistics.median(taken) for name, taken in times.items()}


def run_round(engine: Engine, setup: Setup) -> None:
    """Run a round."""
    engine.run_round(setup.templates.shared, setup.schedule.clock(0), list(range(len(setup.clients))))


def evaluate(engine: Engine, setup: Setup) -> None:
    """Evaluate every client once."""
    engine.evaluate(setup.templates.shared)


def plain_round(load: Load, data: list[TensorSamples], threads: int) -> None:
    """Run FedAvg as one writes it down: a module, an optimizer, a loop over clients, a mean of weights."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        module = NETWORKS[load.network]()
        start = copy.deepcopy(module.state_dict())
        total = {key: torch.zeros_like(value) for key, value in start.items()}
        for i, samples in enumerate(data):
            module.load_state_dict(start)
            optimizer = torch.optim.SGD(module.parameters(), lr=0.1, weight_decay=1e-4)
            for batch in batches(load, samples, i):
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(module(batch[0]), batch[1])
                torch.autograd.backward(loss)
                optimizer.step()
            for key, value in module.state_dict().items():
                total[key] += value
    finally:
        torch.set_num_threads(before)


def batches(load: Load, samples: TensorSamples, client: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield the batches that the engines draw, too."""
    steps = {"first": 0, "steps": load.steps, "batch_size": load.batch_size, "batches_per_step": 1}
    for (batch,) in draw(samples, seed=0, client=f"c{client:03d}", round_=0, **steps):
        yield batch.inputs[0], batch.labels


def step_flops(load: Load) -> int:
    """Count the floating-point operations of a FedAvg step as written down, on a batch, forward and backward."""
    module = NETWORKS[load.network]()
    with FlopCounterMode(display=False) as counter:
        torch.autograd.backward(module(torch.zeros(load.batch_size, 3, 32, 32)).sum())
    return int(counter.get_total_flops())


def sgemm_peak(threads: int, size: int = 1024, repeats: int = 10) -> float:
    """Return the operations per second of a large matrix product: what this machine can do at best."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        a = torch.randn(size, size)
        best = math.inf
        for _ in range(repeats):
            began = time.perf_counter()
            torch.mm(a, a)
            best = min(best, time.perf_counter() - began)
    finally:
        torch.set_num_threads(before)
    return 2 * size**3 / best


def peak_memory() -> int | None:
    """Return the largest resident memory, in MB, that a worker which has ended had; None but on Linux."""
    if sys.platform != "linux":
        return None
    import resource

    return round(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 / 1e6)
