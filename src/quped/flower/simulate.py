"""The same app without servers: every client in this process, with the same numbers."""

from collections.abc import Sequence
from pathlib import Path

from quped.algorithms import AnyAlgorithm
from quped.client import Client, ModelSource
from quped.flower.app import App, Project
from quped.flower.options import parse
from quped.progress import progress_observer
from quped.result import FitResult
from quped.simulation import Setup, TrainingOptions
from quped.simulation.engines import EngineChoice
from quped.simulation.fit import fit
from quped.simulation.validation import validate_clients


def simulate_app(folder: Path, changes: dict[str, object], *, progress: bool = True) -> FitResult:
    """Train an app's clients with the inline engine; `changes` are options that replace the app's own."""
    project = Project.read(folder)
    options, training = parse({**project.config, **changes})
    app = App.load(options.module, folder)
    clients = [app.client(node) for node in project.nodes.values()]
    algorithm = app.algorithm()
    setup = setup_of(clients, algorithm, app.global_model, training, options.seed)
    with progress_observer(progress, type(algorithm).__name__) as shown:
        return fit(setup, where=EngineChoice(workers=0), callbacks=list(shown))


def setup_of(
    clients: Sequence[Client], algorithm: AnyAlgorithm, global_model: ModelSource, training: TrainingOptions, seed: int
) -> Setup:
    """Return the setup of a run whose server knows the global network alone, as on Flower."""
    checked, shared = validate_clients(clients, algorithm, global_model, seed, server_networks=False)
    return Setup.of(algorithm, checked, shared, training, seed, [client.name for client in clients])
