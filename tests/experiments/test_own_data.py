"""A user's own data in experiment files: functions, CSV files and folders, from the file to the exported model."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.program import fails, quped
from PIL import Image

from quped.errors import DataError, InvalidValueError
from quped.experiments.own_data import assign
from quped.experiments.population import Population
from quped.experiments.schema import Group, load, validate

GROUP = {"model": {"name": "mlp", "hidden": [8, 8]}, "bits": 2, "end_bits": 8}

PAIRS = """
import torch
from neighbour import COUNT

def samples(n, seed):
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(n, 4, generator=rng), torch.arange(n) % 3

def clients():
    return {f"user-{i}": (samples(COUNT, i), samples(6, 50 + i)) for i in range(3)}

def with_validation():
    return {"one": (samples(9, 1), samples(6, 2), samples(5, 3))}

def words():
    return {f"w{i}": ((torch.randint(0, 7 + i, (9, 5)), torch.arange(9) % 3), None) for i in range(2)}

def whole():
    from quped import Client
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8), torch.nn.Linear(8, 3))
    return [Client(name, pair[0], pair[1], net, bits=1, end_bits=8) for name, pair in clients().items()]

def broken():
    return 1 / 0

def nothing():
    return 3
"""

TOML = """
data = {{ {data} }}

[[clients]]
model = {{ name = "mlp", hidden = [8, 8] }}
bits = 2
end_bits = 8

[training]
epochs = 2
local_steps = 1
batch_size = 16

[algorithm]
warmup_epochs = 1

[[compare]]
algorithm = {{ name = "local" }}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a module, a CSV file and images."""
    (tmp_path / "mydata.py").write_text(PAIRS)
    (tmp_path / "neighbour.py").write_text("COUNT = 12\n")
    rng = np.random.default_rng(0)
    rows = [f"{'abc'[i % 3]},{rng.normal()},{rng.normal()},{'yes' if i % 2 else 'no'}" for i in range(36)]
    (tmp_path / "samples.csv").write_text("\n".join(["user,x,y,label", *rows]))
    for client in "ab":
        for i in range(8):
            path = tmp_path / "images" / client / str(i % 2) / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(path)
    return tmp_path


def population(place: Path, **data: Any) -> Population:
    """Return the clients of own data."""
    data = {key: str(place / value) if key in ("module", "csv", "folder") else value for key, value in data.items()}
    return Population(validate({"data": data, "clients": [GROUP]}, "test"), seed=0)


@pytest.mark.parametrize(
    ("data", "names"),
    [
        ('module = "mydata.py:clients"', ["user-0", "user-1", "user-2"]),
        ('csv = "samples.csv", by = "user"', ["a", "b", "c"]),
        ('folder = "images/", color = "gray"', ["a", "b"]),
    ],
)
def test_own_data_run_and_are_exported(data: str, names: list[str], folder: Path, tmp_path: Path) -> None:
    """Paths are from the experiment file. Changed data are noticed, by --resume and by export."""
    (folder / "mine.toml").write_text(TOML.format(data=data))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    done = quped("run", "../mine.toml", "--out", "out", "--workers", "0", cwd=elsewhere)
    assert done.returncode == 0, done.stderr
    result = json.loads((elsewhere / "out" / "result.json").read_text())
    assert [client["name"] for client in result["clients"]] == names
    assert [line["algorithm"] for line in result["comparison"]] == ["quped", "local"]
    exported = quped("export", "out", "--client", names[0], "--format", "html", cwd=elsewhere)
    assert exported.returncode == 0, exported.stderr
    assert quped("run", "--resume", "out", "--workers", "0", cwd=elsewhere).returncode == 0
    change(folder)
    fails(quped("run", "--resume", "out", cwd=elsewhere), "data are not those with which the run in out began")
    fails(quped("export", "out", "--format", "onnx", cwd=elsewhere), "data are not those")


def change(folder: Path) -> None:
    """Change one sample of all the data in a folder."""
    module = folder / "mydata.py"
    module.write_text(module.read_text().replace("manual_seed(seed)", "manual_seed(seed + 1)"))
    table = folder / "samples.csv"
    table.write_text(table.read_text().replace("yes", "no", 1))
    (folder / "images" / "a" / "0" / "0.png").write_bytes((folder / "images" / "a" / "0" / "2.png").read_bytes())


def test_a_function_may_return_whole_clients(folder: Path) -> None:
    """With networks and bits; then there are no groups, and methods that need it use the global model of the file."""
    data = {"module": str(folder / "mydata.py:whole")}
    experiment = validate({"data": data, "global_model": GROUP["model"], "compare": []}, "test")
    clients = Population(experiment, 0)
    quped_, fedavg = (
        clients.federation(validate({"data": data, "algorithm": {"name": name}}, "x").methods[0].algorithm)
        for name in ("quped", "fedavg")
    )
    assert {tuple(sorted(bits.values())) for bits in quped_.summary().values()} == {(1, 4, 4)}
    assert all(not bits for bits in fedavg.summary().values())
    assert {client.network.name for client in fedavg.setup(epochs=1).clients} == {"mlp"}
    with pytest.raises(DataError, match=r"leave out the \[\[clients\]\] groups"):
        Population(validate({"data": data, "clients": [GROUP]}, "test"), 0)
    with pytest.raises(DataError, match="returns samples alone"):
        Population(validate({"data": {"module": str(folder / "mydata.py:clients")}}, "test"), 0)


def test_validation_samples_are_a_clients_own_or_a_fifth_of_its_training_samples(folder: Path) -> None:
    sizes = {}
    for function in ("clients", "with_validation"):
        for where in ("test", "validation"):
            clients = population(folder, module=f"mydata.py:{function}", evaluate_on=where)
            setup = clients.federation(validate({"data": {"module": "a.py:b"}}, "x").methods[0].algorithm).setup(
                epochs=1
            )
            first = setup.clients[0]
            assert first.test is not None
            sizes[function, where] = (len(first.train), len(first.test))
    assert sizes == {
        ("clients", "test"): (12, 6),
        ("clients", "validation"): (10, 2),
        ("with_validation", "test"): (9, 6),
        ("with_validation", "validation"): (9, 5),
    }


def test_test_samples_do_not_matter_for_validation(folder: Path) -> None:
    before = population(folder, module="mydata.py:clients", evaluate_on="validation").facts
    module = folder / "mydata.py"
    module.write_text(module.read_text().replace("50 + i", "70 + i"))
    assert population(folder, module="mydata.py:clients", evaluate_on="validation").facts == before
    module.write_text(module.read_text().replace("samples(COUNT, i)", "samples(COUNT, i + 9)"))
    assert population(folder, module="mydata.py:clients", evaluate_on="validation").facts != before


def test_whole_numbers_are_words(folder: Path) -> None:
    """The network gets the size of the vocabulary, over all clients."""
    data = {"module": str(folder / "mydata.py:words")}
    torch.manual_seed(0)
    clients = Population(validate({"data": data, "clients": [{"model": {"name": "text", "dim": 4}}]}, "test"), 0)
    setup = clients.federation(validate({"data": data}, "x").methods[0].algorithm).setup(epochs=1)
    assert setup.clients[0].network.initial.params["embedding.weight"].shape == (8, 4)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"module": "mydata.py:client"}, "has no function 'client'. Did you mean 'clients'"),
        ({"module": "none.py:clients"}, r"There is no file .*none\.py"),
        ({"module": "mydata.py:broken"}, r"mydata\.py, line 24: ZeroDivisionError"),
        ({"module": "mydata.py:nothing"}, r"must return pairs \(train, test\) by name.* got 3"),
        ({"folder": "images", "by": "user"}, r"data\.by: .*images in CLIENT/CLASS/FILE, which have no by"),
        ({"folder": ".", "by": "user", "size": 3}, r"data\.size: .*CSV files, which have no size"),
        ({"csv": "none.csv", "by": "user"}, r"none\.csv cannot be read"),
    ],
)
def test_bad_data_are_told(data: dict[str, Any], message: str, folder: Path) -> None:
    with pytest.raises(DataError, match=message):
        population(folder, **data)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"data": {"name": "digits", "csv": "a.csv"}}, "data: must have one of the keys name, module, csv, folder"),
        ({"data": {"module": "mydata"}}, r"data\.module: .*match pattern"),
        ({"data": {"csv": "a.csv"}}, r"data\.by: is missing"),
        ({"data": {"csv": "a.csv", "by": "u", "size": 3}}, r"data\.size: is not known"),
        ({"data": {"name": "digits", "partition": "iid"}}, r"clients\[0\]\.count: is missing"),
        (
            {"clients": [GROUP | {"members": ["a"], "count": 2}]},
            r"clients\[0\]\.count: must be left out beside members",
        ),
        ({"clients": [GROUP | {"name": "phone"}]}, r"clients\[0\]\.name: is not for your own clients"),
        ({"clients": []}, "clients: is missing"),
    ],
)
def test_bad_sections_are_told_at_their_place(values: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        validate({"data": {"csv": "a.csv", "by": "user"}, "clients": [GROUP]} | values, "test")


def test_groups_choose_their_clients() -> None:
    names = ["p1", "p2", "t1", "w1", "w2"]
    small, few, rest = (
        Group.model_validate(GROUP | more) for more in ({"members": ["w*", "t1"]}, {"count": 1}, {"bits": 1})
    )
    chosen = assign(names, [few, rest, small])
    assert list(chosen) == names
    assert [group.bits for group in chosen.values()] == [2, 1, 2, 2, 2]
    with pytest.raises(DataError, match=r"2 clients are in no group, such as 'p1'"):
        assign(names, [small])
    with pytest.raises(DataError, match=r"clients\[0\].members: no client is 'x\*'"):
        assign(names, [Group.model_validate(GROUP | {"members": ["x*"]})])
    with pytest.raises(DataError, match=r"clients\[1\]: there are 0 clients left"):
        assign(names, [rest, few])


def test_paths_are_from_the_folder_of_the_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "mine.toml").write_text(TOML.format(data='csv = "samples.csv", by = "user"'))
    monkeypatch.chdir("/")
    assert load(folder / "mine.toml").data.model_dump()["csv"] == str(folder / "samples.csv")
