"""Rounds in Weights & Biases, offline: `wandb sync DIR/wandb/offline-run-*` uploads them."""

from pathlib import Path

from quped._extras import extra
from quped.observers.metrics import accuracies, metrics, step
from quped.simulation.loop import Round

with extra("wandb"):
    import wandb


class WandB:
    """Writes an offline run per method to DIR; nothing is sent anywhere."""

    def __init__(self, folder: str | Path, run: str = "quped", method: str = "") -> None:
        Path(folder).mkdir(parents=True, exist_ok=True)
        quiet = wandb.Settings(silent=True, console="off", disable_git=True, x_disable_stats=True)
        self._run = wandb.init(
            mode="offline",
            dir=str(folder),
            project="quped",
            group=run,
            name=method or run,
            reinit="create_new",
            settings=quiet,
        )

    def after_round(self, round_: Round) -> None:
        """Log the numbers of a round, and at every evaluation the distribution over clients."""
        found: dict[str, object] = dict(metrics(round_))
        if values := accuracies(round_):
            found["accuracy/clients"] = wandb.Histogram(values)
        self._run.log(found, step=step(round_))
        if round_.is_last:
            self._run.finish()
