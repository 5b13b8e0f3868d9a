"""The models of a record, with the samples that they were evaluated on."""

from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path

from quped.data import Samples
from quped.data.datasets import DATASETS
from quped.errors import InvalidValueError, RunError, did_you_mean
from quped.experiments.population import Population
from quped.experiments.schema import validate
from quped.experiments.train import Recipe, halves
from quped.export import SUFFIX, read
from quped.export.formats import Source
from quped.records import CONFIG, MODELS, read_json


def sources(run: Path, clients: Sequence[str] = ()) -> list[Source]:
    """Return the models of these clients of a run, by default of all."""
    files = {path.name.removesuffix(SUFFIX): path for path in sorted((run / MODELS).glob(f"*{SUFFIX}"))}
    if not files:
        raise RunError(f"{run} holds no models: name the folder of a finished run.")
    if unknown := [client for client in clients if client not in files]:
        raise InvalidValueError(f"{run} has no client '{unknown[0]}'. {did_you_mean(unknown[0], files)}")
    samples = cache(partial(evaluation_samples, run))
    class_names = cache(partial(names_of_classes, run))

    def source(name: str) -> Source:
        return Source(name, read(files[name]), lambda: samples()[name], class_names)

    return [source(name) for name in clients or files]


def evaluation_samples(run: Path) -> dict[str, Samples]:
    """Return the samples that each model of a run was evaluated on."""
    config = read_json(run / CONFIG)
    if "recipe" in config:
        recipe = Recipe(**config["recipe"])
        return {"model": halves(DATASETS[recipe.data](), recipe)[1]}
    experiment = validate(config["config"], str(run / CONFIG))
    population = Population(experiment, config["seed"])
    population.check_unchanged(config, run)
    return population.evaluation_samples()


def names_of_classes(run: Path) -> tuple[str, ...]:
    """Return the names of the classes in the data of a run."""
    config = read_json(run / CONFIG)
    if "own_data" in config:
        return tuple(config["own_data"]["class_names"])
    data = config["recipe"]["data"] if "recipe" in config else config["config"]["data"]["name"]
    return DATASETS[data]().class_names
