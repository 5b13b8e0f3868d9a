"""The guarantees of a federation over real servers: SuperLink, SuperNodes, TLS and authentication, on this machine."""

from pathlib import Path

from helpers.flower_federation import assert_same, finish, make_app, rounds
from helpers.flower_servers import HOST, Servers, free_port, wait_for
from helpers.program import fails, quped

from quped.flower.keys import CA, KEYS, make_keys, make_pair
from quped.flower.simulate import simulate_app

LIAR = """
import time
from pathlib import Path

import numpy as np
from flwr.app import Message, MessageType
from flwr.clientapp import ClientApp
from quped.flower import answer as honest
from quped.flower.wire import pack, read_request, unpack

client_app = ClientApp()

@client_app.query()
@client_app.train()
@client_app.evaluate()
def answer(message, context):
    reply = honest(message, context)
    if message.metadata.message_type == MessageType.TRAIN and read_request(message.content).round == 1:
        while not Path("GATE").exists():
            time.sleep(0.1)
    if message.metadata.message_type == MessageType.TRAIN and context.node_config["name"] == "tablet":
        values, flat = unpack(reply.content)
        return Message(pack(values, (flat.view(np.float32) * np.nan).view(np.uint8)), reply_to=message)
    return reply
"""


def test_a_federation_equals_its_simulation(servers: Servers, tmp_path: Path) -> None:
    app = make_app(servers, "plain")
    expected = simulate_app(app, {}, progress=False)
    servers.run(app)
    result = finish(servers, "plain", 900)
    assert_same(servers, "plain", expected)
    assert set(result["accuracy"]["per_client"]) == {"phone", "tablet"}
    told = servers.log("run")
    assert all(f"Round {i}/5: loss" in told for i in range(1, 5))  # Flower may cut off the last lines of a run's log
    done = quped(
        "flower", "deploy", servers.folder / "state" / "phone", "--out", tmp_path / "phone.quped", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "after round 5 of 5" in done.stdout
    assert (tmp_path / "phone.quped").read_bytes() == expected.files["phone"]


def test_a_check_finds_the_superlink(servers: Servers, tmp_path: Path) -> None:
    words = ["flower", "check", "flower-supernode", "--superlink", f"{HOST}:{servers.port}"]
    words += ["--port", str(free_port()), "--auth-supernode-private-key", str(servers.key("phone.key"))]
    done = quped(*words, "--root-certificates", servers.key(CA), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"The SuperLink at {HOST}:{servers.port} answers." in done.stdout
    make_keys(tmp_path, [])
    fails(quped(*words, "--root-certificates", tmp_path / KEYS / CA, cwd=tmp_path), "was not signed by")


def test_a_liar_is_refused_late_nodes_join_and_a_stranger_gets_nowhere(servers: Servers) -> None:
    """One of the late nodes is registered while the run is under way: its second round waits for both."""
    options = {"quorum": 1, "join_seconds": 1.0, "retries": 1, "retry_seconds": 1.0, "epochs": 3}
    app = make_app(servers, "liar", newcomers=True, **options)
    gate = servers.folder / "all-are-here"
    (app / "liar.py").write_text(LIAR.replace("GATE", str(gate)))
    project = app / "pyproject.toml"
    project.write_text(project.read_text().replace("quped.flower:client_app", "liar:client_app"))
    servers.stop("laptop")
    for name in ("stranger", "watch"):
        make_pair(servers.key(""), name)
    servers.start_node("stranger", bits=32, state=str(servers.folder / "state" / "stranger"))
    servers.run(app)
    wait_for(lambda: "The run begins without" in servers.log("run"), 600, "the run begins")
    servers.restart_node("laptop")
    wait_for(lambda: rounds(servers, "liar") == 1, 600, "the first round ends")
    servers.register("watch")
    servers.start_node("watch", bits=2, state=str(servers.folder / "state" / "watch"))
    here = ("'laptop' is here", "'watch' is here")
    wait_for(lambda: all(words in servers.log("run") for words in here), 600, "both have introduced themselves")
    gate.touch()
    result = finish(servers, "liar", 900)
    told = servers.log("run")
    assert "The answer of 'tablet' is refused: 'w.params/first.weight' holds NaN" in told
    assert "'watch' joins the run in round 3." in told
    clients = {client["name"]: client for client in result["clients"]}
    assert set(clients) == {"laptop", "phone", "tablet", "watch"}
    assert clients["watch"]["accuracy"] is not None
    assert servers.processes["stranger"].poll() not in (None, 0)
    assert not (servers.folder / "state" / "stranger").exists()
