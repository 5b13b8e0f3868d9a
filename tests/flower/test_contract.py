"""Every algorithm, over a grid in this process: the numbers are those of the inline engine, bit for bit."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.fake_grid import FakeGrid, FakeNode, write_app
from helpers.small_federation import algorithms
from helpers.small_federation import clients as small_clients

from quped import FitResult, _tree, load
from quped.flower.deploy import deployed_client
from quped.flower.server import GLOBAL, serve
from quped.flower.simulate import setup_of
from quped.records import RunRecord
from quped.simulation.engines import EngineChoice
from quped.simulation.fit import fit
from quped.simulation.options import training_options
from quped.testing import SMALL_RUN, SmallNet

CODE = """
from helpers.small_federation import algorithms, clients
from quped.testing import SmallNet

def algorithm():
    return algorithms()["NAME"]()

def global_model():
    return SmallNet()

def client(node):
    return next(one for one in clients(algorithm()) if one.name == node["name"])
"""

NAMES = ("c0", "c1", "c2")


def run_config(tmp_path: Path, module: str, **more: Any) -> dict[str, Any]:
    training = {key: value for key, value in asdict(SMALL_RUN).items() if value is not None}
    own = {"module": module, "record": str(tmp_path / "record"), "seed": 3, "retry_seconds": 0.01}
    return {**training, **own, **more}


def make_grid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, listed: Sequence[str] = NAMES, **more: Any
) -> FakeGrid:
    """Return a grid with three nodes that run an app for an algorithm; the app lists some of them."""
    module = f"app_{name.replace('-', '_')}"
    config = run_config(tmp_path, module, **more)
    folder = write_app(tmp_path / "app", module, CODE.replace("NAME", name), listed, config)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, module, raising=False)  # that of another test has another folder
    monkeypatch.setattr("quped.flower.engine.POLL", 0.001)
    monkeypatch.setattr("quped.flower.engine.LOOK", 0.0)
    nodes = {
        i: FakeNode({"name": client, "state": str(tmp_path / "state" / client)}, registered=client)
        for i, client in enumerate(NAMES, start=10)
    }
    return FakeGrid(config, nodes)


def inline(name: str, **more: Any) -> FitResult:
    algorithm = algorithms()[name]()
    options = training_options(SMALL_RUN, more)
    setup = setup_of(small_clients(algorithm), algorithm, SmallNet, options, seed=3)
    return fit(setup, where=EngineChoice(workers=0))


def assert_equals_inline(tmp_path: Path, expected: FitResult) -> None:
    """Assert that record and nodes hold what the inline engine computes."""
    record = RunRecord(tmp_path / "record")
    result = record.finished()
    assert result is not None
    assert result["accuracy"]["per_client"] == expected.accuracy
    assert result["accuracy_own_classes"]["per_client"] == expected.accuracy_own_classes
    points = [json.loads(line) for line in (record.path / "curves.jsonl").read_text().splitlines()]
    assert [(p["round"], p["loss"], p["accuracy"]) for p in points] == [
        (e.round, e.loss, e.accuracy) for e in expected.curve
    ]
    assert all(point["slowest"].keys() == set(NAMES) for point in points)
    if expected.global_model is not None:
        written = load(record.path / "models" / f"{GLOBAL}.quped", expected.global_module()).state_dict()
        for key, value in expected.global_module().state_dict().items():
            assert torch.equal(written[key], value), key
    for client, model in expected.models.items():
        mine = dict(_tree.items(deployed_client(tmp_path / "state" / client).model))
        theirs = dict(_tree.items(model))
        assert mine.keys() == theirs.keys()
        for path, leaf in theirs.items():
            assert torch.equal(mine[path], leaf), f"{client} {path}"


@pytest.mark.parametrize("name", algorithms())
def test_every_algorithm_gives_the_bits_of_the_inline_engine(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid = make_grid(tmp_path, monkeypatch, name)
    serve(grid, grid.run_config)
    assert_equals_inline(tmp_path, inline(name))


@pytest.mark.parametrize("name", ["quped", "fedavg", "fedrep"])
def test_sampling_and_seldom_evaluations(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    more: dict[str, Any] = {"clients_per_round": 2, "evaluate_every": 2}
    grid = make_grid(tmp_path, monkeypatch, name, **more)
    serve(grid, grid.run_config)
    assert_equals_inline(tmp_path, inline(name, **more))
