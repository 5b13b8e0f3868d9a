"""Experiment files: presets, changes, and what becomes of them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from quped import QuPeD
from quped.algorithms import ALGORITHMS, AnyAlgorithm
from quped.errors import InvalidValueError
from quped.experiments.population import Population
from quped.experiments.presets import FOLDER, presets
from quped.experiments.schema import apply, build_algorithm, load, validate
from quped.quant import LinearSchedule
from quped.records import distinct
from quped.simulation import SimClient

PRESETS = presets()


def test_every_file_of_the_catalog_is_a_preset() -> None:
    """Found by themselves, wherever below the catalog they are."""
    assert {path.stem for path in FOLDER.rglob("*.toml")} == set(PRESETS)
    assert len(PRESETS) == 2


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_presets_are_valid_and_say_what_they_are(name: str) -> None:
    """Each loads, describes itself and opens with its own command."""
    experiment = load(PRESETS[name])
    assert len(experiment.description) > 20
    assert PRESETS[name].read_text().startswith("#")
    assert "quped run" in PRESETS[name].read_text()


def minimal(**changes: Any) -> dict[str, Any]:
    """Return the values of a small experiment."""
    values: dict[str, Any] = {
        "data": {"name": "digits", "partition": "classes=3"},
        "clients": [{"count": 6, "model": "cnn1", "bits": 2}, {"count": 4, "model": "mlp"}],
        "global_model": "cnn1",
    }
    return values | changes


def population(**changes: Any) -> Population:
    """Return the clients of a small experiment."""
    return Population(validate(minimal(**changes), "test"), seed=0)


def test_changes_apply_to_any_depth() -> None:
    """Dots, indices, TOML values, bare words, tables that are not there yet."""
    values = minimal()
    for change in ("clients[1].bits=1", "training.lr=0.5", "algorithm.name=local", "data.partition=iid"):
        apply(values, change)
    experiment = validate(values, "test")
    assert experiment.clients[1].bits == 1
    assert experiment.training.lr == 0.5
    assert experiment.methods[0].algorithm.name == "local"
    assert experiment.data.model_dump()["partition"] == "iid"


def members(clients: Population, algorithm: AnyAlgorithm) -> Sequence[SimClient]:
    """Return the clients as engines run them."""
    return clients.federation(algorithm).setup().clients


def test_hyperparameters_reach_the_algorithm() -> None:
    """Nested tables too, and lambda by bit-width."""
    algorithm = build_algorithm(
        {
            "name": "quped",
            "lambda_p": 0.1,
            "quantization": {"eta2": 0.5, "sharpness": 10.0, "lam": {"1": {"rate": 2e-6, "decay": 0.9}}},
        }
    )
    assert isinstance(algorithm, QuPeD)
    assert algorithm.lambda_p == 0.1
    assert algorithm.quantization.eta2 == 0.5
    assert algorithm.quantization.lam == {1: LinearSchedule(2e-6, 0.9)}


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_every_algorithm_can_be_named(name: str) -> None:
    """Defaults are valid, and unknown hyperparameters are refused."""
    assert build_algorithm({"name": name}).name == name
    with pytest.raises(InvalidValueError, match="has no hyperparameter 'nonsense'"):
        build_algorithm({"name": name, "nonsense": 1})


def test_algorithms_that_cannot_mix_get_clients_that_they_can_have() -> None:
    """QuPeD keeps networks and bits; FedAvg gets the global network in full precision; QuPeL keeps the bits."""
    clients = population()
    kinds = {
        name: {
            (c.network.name, max(c.spec.bits.values(), default=32))
            for c in members(clients, build_algorithm({"name": name}))
        }
        for name in ("quped", "local", "fml", "fedavg", "qupel")
    }
    assert kinds["quped"] == kinds["local"] == {("cnn1", 2), ("mlp", 32)}
    assert kinds["fml"] == {("cnn1", 32), ("mlp", 32)}
    assert kinds["fedavg"] == {("cnn1", 32)}
    assert kinds["qupel"] == {("cnn1", 2), ("cnn1", 32)}


def test_validation_samples_come_from_the_training_samples() -> None:
    """With evaluate_on = "validation" no test sample is seen, and none is in both parts."""
    data = {"name": "digits", "partition": "classes=3"}
    quped = build_algorithm({"name": "quped"})
    test = members(population(data=data), quped)
    held = members(population(data=data | {"evaluate_on": "validation"}), quped)
    for a, b in zip(test, held, strict=True):
        assert b.test is not None
        assert len(a.train) == len(b.train) + len(b.test)
        assert len(b.test) == round(0.2 * len(a.train))
        rows = [part.batch(torch.arange(len(part))).inputs[0].flatten(1).numpy() for part in (a.train, b.train, b.test)]
        whole, kept, out = ({row.tobytes() for row in part} for part in rows)
        assert kept | out == whole


def test_partition_kinds_give_every_client_samples() -> None:
    """Classes, Dirichlet and IID, through the experiment file."""
    for partition in ("dirichlet=1", "iid"):
        clients = members(population(data={"name": "digits", "partition": partition}), QuPeD())
        assert sum(len(m.train) for m in clients) == 1442
        assert sum(len(m.test) for m in clients if m.test is not None) == 355


def test_folders_of_equal_algorithms_are_told_apart() -> None:
    """Two variants of one algorithm do not write to one folder."""
    assert distinct(["local", "quped", "quped"]) == ["local", "quped-1", "quped-2"]


@pytest.mark.parametrize(
    ("options", "place"),
    [
        ({"quantization": {"eta_2": 5}}, "quantization.eta_2"),
        ({"quantization": {"lam": {"2": {"rate": 1e-6, "dekay": 0.9}}}}, "quantization.lam.2.dekay"),
    ],
)
def test_misspelt_nested_hyperparameters_are_refused(options: dict[str, Any], place: str) -> None:
    """What is not known is a mistake at every depth, not a default."""
    with pytest.raises(InvalidValueError, match=f"algorithm.{place}: is not known"):
        validate(minimal(algorithm={"name": "quped", **options}), "test")


def test_every_unknown_hyperparameter_is_told() -> None:
    """Not only the first; and without a name the algorithm is QuPeD."""
    with pytest.raises(InvalidValueError, match=r"no hyperparameter 'lamda'.*no hyperparameter 'tau'"):
        validate(minimal(algorithm={"lamda": 1, "tau": 2}), "test")


@pytest.mark.filterwarnings("ignore:Most of the file is not quantized")
def test_a_group_can_name_what_is_quantized() -> None:
    """`quantize` reaches the clients, and so does how."""
    group = {"count": 10, "model": {"name": "mlp", "hidden": [8]}, "bits": 1, "quantize": ["layers.0.weight"]}
    group |= {"per_channel": True, "init_centers": "kmeans"}
    spec = members(population(clients=[group], global_model="mlp"), QuPeD())[0].spec
    assert (tuple(spec.bits), spec.per_channel, spec.init_centers) == (("layers.0.weight",), True, "kmeans")
    qupel = build_algorithm({"name": "qupel"})
    same = members(population(clients=[group], global_model=group["model"]), qupel)
    assert tuple(same[0].spec.bits) == ("layers.0.weight",)
    others = members(population(clients=[group], global_model="mlp"), qupel)  # who get the global network
    assert tuple(others[0].spec.bits) == ("layers.2.weight",)


def test_bits_by_parameter_and_budgets_reach_the_clients() -> None:
    small = {"count": 1, "model": {"name": "mlp", "hidden": [16, 16]}}
    groups = [
        small | {"bits": {"layers.2.weight": 3}, "end_bits": 4},
        small | {"budget": "3 kB"},
        small | {"count": 8, "bits": 8, "end_bits": 8},
    ]
    specs = [member.spec.bits for member in members(population(clients=groups, global_model=small["model"]), QuPeD())]
    assert specs[0] == {"layers.0.weight": 4, "layers.2.weight": 3, "layers.4.weight": 4}
    assert specs[1].keys() == specs[0].keys()
    # Names of parameters mean nothing in another network, and methods without quantization keep full precision.
    others = members(population(clients=[groups[0], groups[2]], global_model="mlp"), build_algorithm({"name": "qupel"}))
    assert others[0].spec.bits == {"layers.0.weight": 4, "layers.2.weight": 3, "layers.4.weight": 4}
    plain = members(population(clients=groups, global_model="mlp"), build_algorithm({"name": "fedavg"}))
    assert all(not member.spec.bits for member in plain)


def test_an_experiment_is_frozen(tmp_path: Path) -> None:
    """A validated experiment cannot be changed behind the record's back."""
    experiment = validate(minimal(), "test")
    with pytest.raises(ValidationError, match="frozen"):
        experiment.description = "another"
    (tmp_path / "x.toml").write_text("data = 1")
    with pytest.raises(InvalidValueError, match=r"x.toml has 2 mistakes:\n  data: .*\n  clients: is missing"):
        load(tmp_path / "x.toml")


def test_data_set_and_partition_are_checked_with_the_file() -> None:
    """A data set may be written with a hyphen; wrong names and numbers are reported together."""
    experiment = validate(minimal(data={"name": "ag-news", "partition": "dirichlet=0.3"}), "test")
    assert experiment.data.model_dump()["name"] == "ag_news"
    with pytest.raises(InvalidValueError) as caught:
        validate(minimal(data={"name": "ag-new", "partition": "dirichlet=-1"}), "test")
    assert "Did you mean 'ag_news'" in str(caught.value)
    assert "above 0 and finite, got -1" in str(caught.value)
