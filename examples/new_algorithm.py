"""A new algorithm in one class, checked against the contracts of an algorithm, and compared with another one.

    python examples/new_algorithm.py

FedAvgM is FedAvg with momentum at the server (Hsu, Qi and Brown, 2019, arXiv:1909.06335).
"""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, NamedTuple

from quped import Client, FedAvg, Federation
from quped.algorithms.base import ClientSpec, Global
from quped.data import subset
from quped.data.datasets import DATASETS
from quped.data.partition import split
from quped.models import build
from quped.testing import check_algorithm
from quped.typing import ModelState, Params


class Shared(NamedTuple):
    """The state of the server: the global model, and the direction in which it moves."""

    w: ModelState
    velocity: Params


@dataclass(frozen=True)
class FedAvgM(FedAvg):
    """v <- beta v + (mean of w_i) - w, then w <- w + v."""

    beta: float = 0.6
    name: ClassVar[str] = "fedavgm"

    def init_shared(self, spec: ClientSpec) -> Shared:
        """Start at rest."""
        w = spec.global_initial
        return Shared(w, {name: value * 0 for name, value in w.params.items()})

    def server_update(self, shared: Shared, mean: Global) -> Shared:
        """Move on, and toward the mean of the clients."""
        w, new = shared.w.params, super().server_update(Global(shared.w), mean).w
        velocity = {name: self.beta * v + new.params[name] - w[name] for name, v in shared.velocity.items()}
        return Shared(ModelState({name: w[name] + v for name, v in velocity.items()}, new.buffers), velocity)


check_algorithm(FedAvgM())  # pure, deterministic, the same in worker processes and after an interruption
print("FedAvgM keeps the contracts.")

digits = DATASETS["digits"]()
network = partial(build, "mlp", digits.input_shape, digits.classes, hidden=(32, 32))
clients = [
    Client(f"c{i}", subset(digits.train, share.train), subset(digits.test, share.test), network)
    for i, share in enumerate(split(digits, "classes=3", 10, seed=0))
]
for algorithm in (FedAvg(), FedAvgM()):
    accuracy = Federation(clients, algorithm).fit(epochs=10, local_steps=3, progress=False).accuracy
    print(f"{algorithm.name}: {sum(accuracy.values()) / len(accuracy):.1%}")
