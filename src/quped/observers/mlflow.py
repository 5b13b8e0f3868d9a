"""Rounds in MLflow, in a folder or on a tracking server."""

import os
import time
from pathlib import Path

from quped._extras import extra
from quped.observers.metrics import metrics, step
from quped.simulation.loop import Round

with extra("mlflow"):
    from mlflow import MlflowClient
    from mlflow.entities import Metric


class MLflow:
    """Logs to an experiment with the name of the run, in which every method is an MLflow run.

    `where` is a folder, or the address of a tracking server, such as `http://127.0.0.1:5000` or `sqlite:///mlflow.db`.
    """

    def __init__(self, where: str | Path, run: str = "quped", method: str = "") -> None:
        if "://" not in str(where):
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # MLflow 3 refuses folders otherwise
            where = Path(where).resolve().as_uri()
        self._client = MlflowClient(tracking_uri=str(where))
        experiment = self._client.get_experiment_by_name(run)
        number = self._client.create_experiment(run) if experiment is None else experiment.experiment_id
        self._run = self._client.create_run(number, run_name=method or None).info.run_id

    def after_round(self, round_: Round) -> None:
        """Log the numbers of a round."""
        now = int(1000 * time.time())
        found = [Metric(name, value, now, step(round_)) for name, value in metrics(round_).items()]
        self._client.log_batch(self._run, found)
        if round_.is_last:
            self._client.set_terminated(self._run)
