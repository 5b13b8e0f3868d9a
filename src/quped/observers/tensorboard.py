"""Rounds in TensorBoard: `tensorboard --logdir DIR` shows them."""

from pathlib import Path

import numpy as np

from quped._extras import extra
from quped.observers import folder_for
from quped.observers.metrics import accuracies, metrics, step
from quped.simulation.loop import Round

with extra("tensorboard"):
    from torch.utils.tensorboard import SummaryWriter


class TensorBoard:
    """Writes curves, and at every evaluation the distribution over clients, to event files in DIR/RUN/METHOD."""

    def __init__(self, folder: str | Path, run: str = "quped", method: str = "") -> None:
        self._writer = SummaryWriter(str(folder_for(folder, run, method)))

    def after_round(self, round_: Round) -> None:
        """Write the numbers of a round."""
        for name, value in metrics(round_).items():
            self._writer.add_scalar(name, value, step(round_))
        if values := accuracies(round_):
            self._writer.add_histogram("accuracy/clients", np.array(values), step(round_))
            self._writer.flush()
        if round_.is_last:
            self._writer.close()
