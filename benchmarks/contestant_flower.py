"""Flower's simulation: a ClientApp in Ray actors with one core each, and the FedAvg strategy."""

from functools import cache

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import nn
from turns import LOAD, LR, PROCESSES, WEIGHT_DECAY, take_turns

from quped._bench_networks import NETWORKS
from quped.data import TensorSamples

MANY = 1_000_000
"""Rounds: more than there are turns."""

client, server = ClientApp(), ServerApp()


@cache
def prepared() -> tuple[nn.Module, list[TensorSamples]]:
    """Return the network and everyone's data: made once in each process."""
    torch.set_num_threads(1)
    return NETWORKS[LOAD.network](), LOAD.data()


@client.train()
def train(message: Message, context: Context) -> Message:
    """Train on a client's batches."""
    module, data = prepared()
    samples = data[int(context.node_config["partition-id"])]
    module.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(module.parameters(), lr=LR, weight_decay=WEIGHT_DECAY)
    batches = zip(samples.inputs.split(LOAD.batch_size), samples.labels.split(LOAD.batch_size), strict=True)
    for inputs, labels in batches:
        optimizer.zero_grad()
        torch.autograd.backward(nn.functional.cross_entropy(module(inputs), labels))
        optimizer.step()
    content = {"arrays": ArrayRecord(module.state_dict()), "metrics": MetricRecord({"num-examples": len(samples)})}
    return Message(content=RecordDict(content), reply_to=message)


class OverError(Exception):
    """There are no more turns."""


@server.main()
def serve(grid: Grid, context: Context) -> None:
    """Run rounds. What Flower calls before the first and after each, to evaluate, waits for the next turn."""
    next_round = take_turns()

    def evaluate(_: int, __: ArrayRecord) -> None:
        if not next_round():
            raise OverError

    strategy = FedAvg(fraction_evaluate=0.0, min_available_nodes=LOAD.clients)
    strategy.start(grid, ArrayRecord(prepared()[0].state_dict()), num_rounds=MANY, evaluate_fn=evaluate)


def main() -> None:
    """Play rounds."""
    backend = {
        "init_args": {"num_cpus": PROCESSES, "include_dashboard": False},
        "client_resources": {"num_cpus": 1, "num_gpus": 0},
    }
    run_simulation(server, client, num_supernodes=LOAD.clients, backend_config=backend)
