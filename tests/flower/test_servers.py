"""The guarantees of a federation over real servers: SuperLink, SuperNodes, TLS and authentication, on this machine."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.fake_grid import write_app
from helpers.flower_servers import Servers, wait_for
from helpers.program import quped

from quped import FitResult, _tree, load
from quped.flower.deploy import deployed_client
from quped.flower.keys import make_pair
from quped.flower.simulate import simulate_app
from quped.records import Checkpoints, RunRecord

CODE = """
import torch
from quped import Client, QuPeD
from quped.testing import SmallNet, small_samples, wide_net
from torch import nn

class Dropping(SmallNet):
    def forward(self, inputs):
        return super().forward(nn.functional.dropout(inputs, 0.2, self.training))

NETWORKS = {"phone": Dropping, "tablet": wide_net, "laptop": SmallNet}
PART = {"phone": 0, "tablet": 1, "laptop": 2}

def algorithm():
    return QuPeD()

def global_model():
    return SmallNet()

def client(node):
    part = PART[node["name"]]
    test = None if node["name"] == "laptop" else small_samples(100 + part, 12)
    return Client(node["name"], small_samples(part, 30 + part), test, NETWORKS[node["name"]], bits=node["bits"])
"""

LIAR = """
import numpy as np
from flwr.app import Message, MessageType
from flwr.clientapp import ClientApp
from quped.flower import answer as honest
from quped.flower.wire import pack, unpack

client_app = ClientApp()

@client_app.query()
@client_app.train()
@client_app.evaluate()
def answer(message, context):
    reply = honest(message, context)
    if message.metadata.message_type == MessageType.TRAIN and context.node_config["name"] == "tablet":
        values, flat = unpack(reply.content)
        return Message(pack(values, (flat.view(np.float32) * np.nan).view(np.uint8)), reply_to=message)
    return reply
"""

BITS = {"phone": 1, "tablet": 2, "laptop": 32}
TRAINING = {"epochs": 5, "local_steps": 4, "steps_per_epoch": 4, "batch_size": 8, "seed": 5}


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    folder = tmp_path_factory.mktemp("federation")
    nodes = {name: {"bits": bits, "state": str(folder / "state" / name)} for name, bits in BITS.items()}
    started = Servers(folder, nodes)
    try:
        started.start_link()
        started.register()
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


def test_a_federation_equals_its_simulation(servers: Servers, tmp_path: Path) -> None:
    app = make_app(servers, "plain")
    expected = simulate_app(app, {}, progress=False)
    servers.run(app)
    result = finish(servers, "plain", 900)
    assert_same(servers, "plain", expected)
    assert set(result["accuracy"]["per_client"]) == {"phone", "tablet"}
    told = servers.log("run")
    assert all(f"Round {i}/5: loss" in told for i in range(1, 6))
    done = quped(
        "flower", "deploy", servers.folder / "state" / "phone", "--out", tmp_path / "phone.quped", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "after round 5 of 5" in done.stdout
    assert (tmp_path / "phone.quped").read_bytes() == expected.files["phone"]


def test_kills_change_nothing(servers: Servers) -> None:
    """kill -9 of a ClientApp and a SuperNode, of the ServerApp, and of the SuperLink."""
    app = make_app(servers, "killed", retry_seconds=1.0, epochs=4)
    expected = simulate_app(app, {}, progress=False)
    servers.run(app)
    wait_for(lambda: rounds(servers, "killed") == 1, 600, servers.log("run"))
    servers.crash("phone", "flwr-clientapp")
    servers.crash("tablet")
    servers.restart_node("tablet")
    wait_for(lambda: rounds(servers, "killed") == 2, 900, servers.log("run"))
    servers.crash("link", "flwr-serverapp")
    servers.stop("run")
    servers.run(app)
    wait_for(lambda: rounds(servers, "killed") == 3, 900, servers.log("run"))
    servers.crash("link")
    servers.stop("run")
    servers.start_link()
    servers.run(app)
    finish(servers, "killed", 900)
    assert_same(servers, "killed", expected)


def test_a_liar_is_refused_a_late_node_joins_and_a_stranger_gets_nowhere(servers: Servers) -> None:
    app = make_app(servers, "liar", quorum=1, join_seconds=1.0, retries=1, retry_seconds=1.0, epochs=4)
    (app / "liar.py").write_text(LIAR)
    project = app / "pyproject.toml"
    project.write_text(project.read_text().replace("quped.flower:client_app", "liar:client_app"))
    servers.stop("laptop")
    make_pair(servers.key(""), "stranger")
    servers.start_node("stranger", bits=32, state=str(servers.folder / "state" / "stranger"))
    servers.run(app)
    wait_for(lambda: "The run begins without" in servers.log("run"), 600, "the run begins")
    servers.restart_node("laptop")
    result = finish(servers, "liar", 900)
    told = servers.log("run")
    assert "The answer of 'tablet' is refused: 'w.params/first.weight' holds NaN" in told
    assert "'laptop' is here" in told
    assert {client["name"] for client in result["clients"]} == {"laptop", "phone", "tablet"}
    assert servers.processes["stranger"].poll() not in (None, 0)
    assert not (servers.folder / "state" / "stranger").exists()
