"""Clients that come after a run."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from quped.errors import DataError
from quped.experiments.newcomers import welcome
from quped.experiments.population import Population
from quped.experiments.schema import Experiment, validate
from quped.result import FitResult
from quped.simulation import SimClient
from quped.simulation.engines import EngineChoice
from quped.simulation.fit import fit

HERE = EngineChoice(workers=0)


def experiment(algorithm: str, bits: int = 32, epochs: int = 1, **newcomers: int) -> Experiment:
    values: dict[str, Any] = {
        "data": {"name": "digits", "partition": "iid"},
        "clients": [{"count": 6, "model": {"name": "mlp", "hidden": [16, 16]}, "bits": bits, "end_bits": None}],
        "training": {"epochs": 1, "batch_size": 60, "lr": 0.2},
        "algorithm": {"name": algorithm},
        "newcomers": {"count": 2, "samples": 100, "epochs": epochs, **newcomers},
    }
    return validate(values, "a test")


def right(result: FitResult, client: SimClient) -> float:
    """Return the share of a client's test samples that the global model of a run recognises."""
    assert client.test is not None
    (images,), labels = client.test.batch(torch.arange(len(client.test)))
    return float((result.global_module()(images).argmax(1) == labels).double().mean())


def test_newcomers_take_no_part_and_start_from_the_global_model() -> None:
    asked = experiment("fedavg")
    population, (method,) = Population(asked, 0), asked.methods
    result = fit(population.federation(method.algorithm).setup(method.training), where=HERE)
    assert list(result.models) == ["client-0", "client-1", "client-2", "client-3"]
    assert result.global_model is not None
    setup = population.newcomers(method.algorithm, result).setup(method.training)
    assert [(client.name, len(client.train)) for client in setup.clients] == [("client-4", 100), ("client-5", 100)]
    for client in setup.clients:
        for name, value in result.global_model.params.items():
            assert torch.equal(client.network.initial.params[name], value)
    met = welcome(asked, population, method, result, HERE)["newcomers"]
    assert met["accuracy"]["per_client"].keys() == met["test_samples"].keys() == {"client-4", "client-5"}
    shares = [right(result, client) for client in setup.clients]
    assert met["global_accuracy"] == pytest.approx(sum(shares) / 2)  # before they learn


@pytest.mark.parametrize(("algorithm", "bits", "quantized"), [("local", 2, True), ("fedavg", 2, False)])
def test_newcomers_have_the_bits_of_the_method(algorithm: str, bits: int, quantized: bool) -> None:
    asked = experiment(algorithm, bits)
    population, (method,) = Population(asked, 0), asked.methods
    result = fit(population.federation(method.algorithm).setup(method.training), where=HERE)
    setup = population.newcomers(method.algorithm, result).setup(method.training)
    assert all(bool(client.spec.bits) is quantized for client in setup.clients)
    met = welcome(asked, population, method, result, HERE)["newcomers"]
    assert (met["global_accuracy"] is None) is (algorithm == "local")


def test_somebody_must_take_part() -> None:
    with pytest.raises(DataError, match="6 newcomers leave none of 6 clients"):
        Population(experiment("fedavg", count=6), 0)


def test_without_newcomers_nothing_is_added() -> None:
    asked = validate({**experiment("fedavg").model_dump(), "newcomers": None}, "a test")
    population, (method,) = Population(asked, 0), asked.methods
    result = fit(population.federation(method.algorithm).setup(method.training), where=HERE)
    assert len(result.models) == 6
    assert welcome(asked, population, method, result, HERE) == {}


def test_a_newcomer_that_diverges_keeps_the_global_model() -> None:
    asked = experiment("fedavg", epochs=2)
    population, (method,) = Population(asked, 0), asked.methods
    result = fit(population.federation(method.algorithm).setup(method.training), where=HERE)
    unlucky, other = population._newcomers
    labels = np.arange(100) % 10
    population._newcomers = [replace(unlucky, train=(np.full((100, 1, 8, 8), 1e30, np.float32), labels)), other]
    with pytest.warns(UserWarning, match=r"client-4.*nan.*skipped"):
        met = welcome(asked, population, method, result, HERE)["newcomers"]["accuracy"]["per_client"]
    population._newcomers = population._newcomers[:1]
    with pytest.warns(UserWarning, match="skipped"):
        assert "gave an update" in welcome(asked, population, method, result, HERE)["newcomers"]["failed"]
    population._newcomers = [unlucky, other]
    first, _ = population.newcomers(method.algorithm, result).setup(method.training).clients
    assert met[unlucky.name] == pytest.approx(right(result, first))
