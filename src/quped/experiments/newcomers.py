"""What clients get that come after a run."""

from dataclasses import replace
from typing import Any

from quped._evaluate import over_clients
from quped.errors import BadUpdateError
from quped.experiments.population import Population
from quped.experiments.schema import Experiment, Method
from quped.result import FitResult
from quped.simulation.engines import EngineChoice
from quped.simulation.fit import fit


def welcome(
    experiment: Experiment, population: Population, method: Method, result: FitResult, where: EngineChoice
) -> dict[str, Any]:
    """Let the newcomers of an experiment learn alone; return what a record keeps of them, if there are any."""
    if experiment.newcomers is None:
        return {}
    epochs = experiment.newcomers.epochs
    training = replace(
        method.training,
        epochs=epochs,
        finetune_epochs=None,
        schedule_epochs=None,
        clients_per_round=None,
        evaluate_every=epochs,
        bad_updates="skip",  # whoever diverges on so few samples keeps the model it had
    )
    try:
        trained = fit(population.newcomers(method.algorithm, result).setup(training), where=where)
    except BadUpdateError as error:  # all of them diverged at once; the run before is no worse for it
        return {"newcomers": {"failed": str(error)}}
    return {
        "newcomers": {
            "accuracy": over_clients(trained.accuracy),
            "global_accuracy": None if result.global_model is None else trained.global_accuracy,
            "test_samples": {client.name: client.test_samples for client in trained.clients},
        }
    }
