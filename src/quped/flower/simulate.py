"""The same app without servers: every client in this process, with the same numbers."""

from pathlib import Path

from quped.federation import Federation
from quped.flower.app import App, Project
from quped.flower.options import parse
from quped.result import FitResult


def simulate_app(folder: Path, changes: dict[str, object], *, progress: bool = True) -> FitResult:
    """Train an app's clients with the inline engine; `changes` are options that replace the app's own."""
    project = Project.read(folder)
    options, training = parse({**project.config, **changes})
    app = App.load(options.module, folder)
    clients = [app.client(node) for node in project.nodes.values()]
    federation = Federation(clients, app.algorithm(), app.global_model, options.seed)
    return federation.fit(training, workers=0, progress=progress)
