"""A small federation over real servers: unlike networks, 1, 2 and 32 bits, BatchNorm and dropout."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from helpers.fake_grid import write_app
from helpers.flower_servers import Servers, wait_for
from quped import FitResult, _tree, load
from quped.flower.deploy import deployed_client
from quped.records import Checkpoints, RunRecord

CODE = """
import torch
from quped import Client, QuPeD
from quped.testing import SmallNet, small_samples, wide_net
from torch import nn

class Dropping(SmallNet):
    def forward(self, inputs):
        return super().forward(nn.functional.dropout(inputs, 0.2, self.training))

NETWORKS = {"phone": Dropping, "tablet": wide_net, "laptop": SmallNet, "watch": SmallNet}
PART = {"phone": 0, "tablet": 1, "laptop": 2, "watch": 3}

def algorithm():
    return QuPeD()

def global_model():
    return SmallNet()

def client(node):
    part = PART[node["name"]]
    test = None if node["name"] == "laptop" else small_samples(100 + part, 12)
    return Client(node["name"], small_samples(part, 30 + part), test, NETWORKS[node["name"]], bits=node["bits"])
"""

BITS = {"phone": 1, "tablet": 2, "laptop": 32}
TRAINING = {"epochs": 5, "local_steps": 4, "steps_per_epoch": 4, "batch_size": 8, "seed": 5}


@contextmanager
def running(folder: Path) -> Iterator[Servers]:
    """Yield a SuperLink with three registered nodes, and end all of them."""
    nodes = {name: {"bits": bits, "state": str(folder / "state" / name)} for name, bits in BITS.items()}
    started = Servers(folder, nodes)
    try:
        started.start_link()
        started.register(*nodes)
        for name in nodes:
            started.start_node(name)
        yield started
    finally:
        started.close()


def make_app(servers: Servers, name: str, **options: Any) -> Path:
    """Write an app whose record has its name."""
    config = {"module": "federation", "record": str(servers.folder / name), **TRAINING, **options}
    folder = write_app(servers.folder / f"app-{name}", "federation", CODE, (), config)
    with (folder / "pyproject.toml").open("a") as file:
        for node, values in servers.nodes.items():
            file.write(f'[tool.quped.nodes.{node}]\nbits = {values["bits"]}\nstate = "{values["state"]}"\n')
    return folder


def finish(servers: Servers, name: str, seconds: float) -> dict[str, Any]:
    """Wait for the end of a run, and return its result."""
    record = RunRecord(servers.folder / name)
    process = servers.processes["run"]

    def ended() -> bool:
        return (record.path / "result.json").exists() or process.poll() is not None

    wait_for(ended, seconds, f"the end of the run:\n{servers.log('run')}")
    result = record.finished()
    assert result is not None, servers.log("run")
    servers.stop("run")
    return result


def assert_same(servers: Servers, name: str, expected: FitResult) -> None:
    """Assert that a run equals that of the inline engine: curves, shared state and personal models."""
    record = RunRecord(servers.folder / name)
    points = [json.loads(line) for line in (record.path / "curves.jsonl").read_text().splitlines()]
    assert [(p["round"], p["loss"], p["accuracy"]) for p in points] == [
        (e.round, e.loss, e.accuracy) for e in expected.curve
    ]
    written = load(record.path / "models" / "global.quped", expected.global_module()).state_dict()
    for key, value in expected.global_module().state_dict().items():
        assert torch.equal(written[key], value), key
    for client, model in expected.models.items():
        mine = _tree.items(deployed_client(servers.folder / "state" / client).model)
        for (path, left), (_, right) in zip(mine, _tree.items(model), strict=True):
            assert torch.equal(left, right), f"{client} {path}"


def rounds(servers: Servers, name: str) -> int:
    return Checkpoints(servers.folder / name / "checkpoints").rounds()
