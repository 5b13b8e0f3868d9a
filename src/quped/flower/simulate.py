"""The same app without servers: every client in this process, with the same numbers."""

from pathlib import Path

from quped.flower.app import App, Project
from quped.flower.options import parse
from quped.progress import progress_observer
from quped.result import FitResult
from quped.simulation import Setup
from quped.simulation.engines import EngineChoice
from quped.simulation.fit import fit
from quped.simulation.validation import validate_clients


def simulate_app(folder: Path, changes: dict[str, object], *, progress: bool = True) -> FitResult:
    """Train an app's clients with the inline engine; `changes` are options that replace the app's own."""
    project = Project.read(folder)
    options, training = parse({**project.config, **changes})
    app = App.load(options.module, folder)
    clients = [app.client(node) for node in project.nodes.values()]
    algorithm, names = app.algorithm(), [client.name for client in clients]
    # A server on Flower knows the global network alone.
    checked, shared = validate_clients(clients, algorithm, app.global_model, options.seed, server_networks=False)
    setup = Setup.of(algorithm, checked, shared, training, options.seed, names)
    with progress_observer(progress, type(algorithm).__name__) as shown:
        return fit(setup, where=EngineChoice(workers=0), callbacks=list(shown))
