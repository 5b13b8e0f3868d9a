"""A new algorithm in one class, checked against the contracts of an algorithm, and compared with another one.

    python examples/new_algorithm.py

FedAdagrad is FedAvg with Adagrad at the server (Reddi et al., Adaptive Federated Optimization, 2021).
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
    """The state of the server: the global model, and how far each weight has moved. `server` is not sent to clients."""

    w: ModelState
    server: Params


@dataclass(frozen=True)
class FedAdagrad(FedAvg):
    """d = (mean of w_i) - w, then s <- s + d^2, then w <- w + eta d / (sqrt(s) + 0.01)."""

    eta: float = 0.1
    name: ClassVar[str] = "fedadagrad"

    def init_shared(self, spec: ClientSpec) -> Shared:
        """Start with no move."""
        return Shared(spec.global_initial, {name: value * 0 for name, value in spec.global_initial.params.items()})

    def server_update(self, shared: Shared, mean: Global) -> Shared:
        """Move toward the mean of the clients, by less where weights have moved a lot."""
        d = {name: value - shared.w.params[name] for name, value in mean.w.params.items()}
        s = {name: value + d[name] ** 2 for name, value in shared.server.items()}
        w = {name: value + self.eta * d[name] / (s[name] ** 0.5 + 0.01) for name, value in shared.w.params.items()}
        return Shared(ModelState(w, shared.w.buffers | mean.w.buffers), s)


check_algorithm(FedAdagrad())  # pure, deterministic, the same in worker processes and after an interruption
print("FedAdagrad keeps the contracts.")

digits = DATASETS["digits"]()
network = partial(build, "mlp", digits.input_shape, digits.classes, hidden=(32, 32))
clients = [
    Client(f"c{i}", subset(digits.train, share.train), subset(digits.test, share.test), network)
    for i, share in enumerate(split(digits, "classes=3", 10, seed=0))
]
for algorithm in (FedAvg(), FedAdagrad()):
    accuracy = Federation(clients, algorithm).fit(epochs=10, local_steps=3, progress=False).accuracy
    print(f"{algorithm.name}: {sum(accuracy.values()) / len(accuracy):.1%}")
