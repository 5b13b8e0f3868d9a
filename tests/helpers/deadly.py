"""Clients that kill the process which trains them."""

import faulthandler
import os
import signal
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from torch import Tensor

from helpers.small_federation import Net, clients, samples
from quped import Client, QuPeD
from quped.data import TensorSamples
from quped.typing import Batch


@dataclass(frozen=True)
class Deadly:
    """Samples that kill the worker which draws them, as often as `lives` says; a file keeps the count."""

    whole: TensorSamples
    deaths: Path
    lives: int
    signal: int = signal.SIGKILL
    home: int = field(default_factory=os.getpid)

    @property
    def labels(self) -> Tensor:
        """The labels."""
        return self.whole.labels

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.whole)

    def batch(self, indices: Tensor, rng: np.random.Generator | None = None) -> Batch:
        """Return samples, or die: in training only, and in workers only, not where the federation is made."""
        if rng is not None and os.getpid() != self.home and len(self.deaths.read_text()) < self.lives:
            self.deaths.write_text(self.deaths.read_text() + "x")
            faulthandler.disable()  # which would print where a process died of SIGBUS
            os.kill(os.getpid(), self.signal)
        return self.whole.batch(indices, rng)


def with_deadly_client(tmp_path: Path, lives: int, number: int = signal.SIGKILL, count: int = 3) -> list[Client]:
    """Return clients of which the second kills its workers."""
    members = clients(QuPeD(), count)
    deaths = tmp_path / "deaths"
    deaths.write_text("")
    deadly = Deadly(TensorSamples(*samples(1, 60)), deaths, lives, number)  # the most: engines begin with it
    return [members[0], Client("c1", train=deadly, test=samples(101, 12), model=Net, bits=1), *members[2:]]
