"""What a round costs over real servers, on this machine: CNN1, three nodes, TLS and authentication.

    PYTHONPATH=tests python benchmarks/flower.py --json

It needs the environment of `make test-flower`.

- *inline*: what a client takes in the inline engine.
- *node*: what a node takes for the same, in turns with it: computing, packing and the disk.
- *ours*: the same over real servers, where three nodes share the cores of this machine; the slowest of them.
- *rest*: starting processes, imports, the app's data, looking for messages, sending them.
"""

import argparse
import json
import re
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from helpers.flower_servers import Servers, wait_for

from quped import _tree
from quped.federation import Federation
from quped.flower.app import App, Project
from quped.flower.new import new_app
from quped.flower.node import Node
from quped.flower.options import parse, resolve, to_json
from quped.flower.wire import Request, flatten, form_of, pack
from quped.simulation import Setup
from quped.simulation.client_round import evaluate_client, initial_personal, one_thread, run_client

NAME = "benchmark"


def setup_of(folder: Path) -> Setup:
    """Return the app's federation as the inline engine runs it."""
    project = Project.read(folder)
    options, training = parse(project.config)
    app = App.load(options.module, folder)
    clients = [app.client(node) for node in project.nodes.values()]
    return Federation(clients, app.algorithm(), app.global_model, options.seed).setup(training)


def inline_seconds(setup: Setup) -> float:
    """Return the seconds that the first client takes for a round with its evaluation."""
    shared, clock, client = (
        setup.templates.shared,
        setup.schedule.clock(0),
        setup.clients[0],
    )
    assert client.test is not None
    began = time.perf_counter()
    personal, _, _ = run_client(setup, client, shared, initial_personal(setup, client, shared), clock)
    evaluate_client(setup, client, client.test, shared, personal)
    return time.perf_counter() - began


def node_seconds(folder: Path, setup: Setup, run: str) -> float:
    """Return the seconds that its node takes, without loading the app and its data."""
    name = setup.clients[0].name
    project = Project.read(folder)
    node = Node.start(project.config, {**project.nodes[name], "state": str(folder / "alone")}, folder)
    shared = setup.templates.shared
    sizes = [len(client.train) for client in setup.clients]
    options = to_json(resolve(setup.options, sizes, len(sizes), quantizes=True))
    reply = node.train(Request(run, 0, setup.seed, options, flatten(shared)))
    pack(reply.values, reply.flat)
    return time.monotonic() - node.loaded


def side_by_side(folder: Path, setup: Setup, repeats: int) -> tuple[float, float]:
    """Return the median seconds of a client in the inline engine, and at its node."""
    with one_thread():
        inline_seconds(setup)
        pairs = [(inline_seconds(setup), node_seconds(folder, setup, f"run{i}")) for i in range(repeats)]
    return median(inline for inline, _ in pairs), median(node for _, node in pairs)


def bytes_per_message(setup: Setup) -> tuple[int, int]:
    """Return the bytes of an answer, and those of its payload."""
    payload = setup.templates.payload[setup.clients[0].spec.group]
    values = {"client": setup.names[0], "run": "0" * 16, "round": 0, "loss": 0.5, "form": form_of(payload)}
    content = pack(values | {"final": True, "accuracy": 0.5, "own_classes": 0.5, "seconds": 0.5}, flatten(payload))
    sent = sum(len(part.deflate()) for part in get_all_nested_objects(content).values())
    return sent, sum(leaf.numel() * leaf.element_size() for _, leaf in _tree.items(payload))


def measure(folder: Path) -> dict[str, Any]:
    """Run the app over real servers, and return what its rounds cost."""
    project = Project.read(folder)
    nodes = {name: {**node, "state": str(folder / "state" / name)} for name, node in project.nodes.items()}
    servers = Servers(folder, nodes)
    try:
        servers.start_link()
        servers.register(*nodes)
        for name in nodes:
            servers.start_node(name)
        servers.run(folder, record=str(folder / "record"))
        wait_for((folder / "record" / "result.json").exists, 3600, "the run ends")
        told = servers.log("run")
    finally:
        servers.close()
    lines = re.findall(r"^Round \d+/\d+: .*?\((.*?)\), (\d+) s", told, re.MULTILINE)
    ends = [json.loads(line)["seconds"] for line in (folder / "record" / "curves.jsonl").read_text().splitlines()]
    ours = [max(float(s) for s in re.findall(r" in ([\d.]+) s", answered)) for answered, _ in lines]
    rounds = [end - begin for begin, end in pairwise(ends)]
    return {"round": median(rounds), "ours": median(ours), "rounds": len(ends)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=9, help="of the comparison with the inline engine")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / NAME
        new_app(folder)
        (folder / ".flwr" / "config.toml").unlink()
        (folder / ".flwr").rmdir()
        project = folder / "pyproject.toml"
        words = project.read_text().replace("epochs = 30", f"epochs = {options.rounds}")
        project.write_text(words.replace("local_steps = 60", "local_steps = 20"))
        setup = setup_of(folder)
        inline, node = side_by_side(folder, setup, options.repeats)
        sent, payload = bytes_per_message(setup)
        result = {
            "inline_seconds": inline,
            "node_seconds": node,
            **{f"{key}_seconds": value for key, value in measure(folder).items() if key != "rounds"},
            "bytes_sent": sent,
            "bytes_payload": payload,
        }
        result["rest_seconds"] = result["round_seconds"] - result["ours_seconds"]
    if options.json:
        print(json.dumps(result, indent=2))
        return
    print(
        f"Round: {result['round_seconds']:.2f} s, of which ours {result['ours_seconds']:.2f} s (inline {inline:.2f} s)"
    )
    print(f"Answer: {sent} bytes, of which payload {payload} ({sent / payload - 1:.1%} more)")


if __name__ == "__main__":
    main()
