"""Per-FedAvg: Fallah, Mokhtari and Ozdaglar, Personalized Federated Learning with Theoretical Guarantees: A
Model-Agnostic Meta-Learning Approach, 2020. The first-order variant, FO-MAML."""

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

from quped import _tree
from quped.algorithms._autodiff import cross_entropy_gradient
from quped.algorithms._averaging import Averaging
from quped.algorithms.base import ClientSpec, Deployed, Global, GlobalNetwork, send
from quped.errors import check, check_number
from quped.typing import Batch, Clock, Metrics, ModelState, Params


class Personal(NamedTuple):
    """The client's adapted model."""

    adapted: ModelState


class Work(NamedTuple):
    """w_i, the velocity of this round, and w as it came from the server."""

    w: ModelState
    velocity: Params
    received: ModelState


@dataclass(frozen=True)
class PerFedAvg(Averaging):
    """w~ = w_i - alpha grad f_i(w_i; D);  w_i <- w_i - lr grad f_i(w~; D');  w <- mean of w_i.

    D and D' are independent batches. A client's own model is its w_i at the end of its last round, adapted by one
    more step with alpha (but see `adapts`).
    """

    alpha: float = 1e-3
    """alpha, the learning rate of the adaptation."""
    adapts: Literal["local", "global"] = "local"
    """The model that the last step with alpha adapts: the client's w_i after its local steps, or the "global" w, as in
    the paper of Per-FedAvg. A client adapts within its rounds only, for deployment needs no data: that w is the one
    which it received in its last round, one average older than the server's."""

    name: ClassVar[str] = "perfedavg"
    quantizes: ClassVar[bool] = False
    global_network: ClassVar[GlobalNetwork] = "same"
    batches_per_step: ClassVar[int] = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("alpha of Per-FedAvg", self.alpha, 0)
        check(self.adapts in ("local", "global"), "adapts of Per-FedAvg", "'local' or 'global'", self.adapts)

    def init_personal(self, spec: ClientSpec, shared: Global) -> Personal:
        """Nothing is adapted yet: w."""
        return Personal(shared.w)

    def start(self, spec: ClientSpec, shared: Global, personal: Personal, clock: Clock) -> Work:
        """w_i = w."""
        return Work(shared.w, spec.sgd.init(shared.w.params), shared.w)

    def adapt(self, spec: ClientSpec, w: ModelState, batch: Batch) -> ModelState:
        """w - alpha grad f_i(w; batch)."""
        grads, _, buffers = cross_entropy_gradient(spec.network, w, batch)
        return ModelState(_tree.add_scaled(w.params, grads, -self.alpha), buffers)

    def step(self, spec: ClientSpec, work: Work, batches: tuple[Batch, ...], clock: Clock) -> tuple[Work, Metrics]:
        """Adapt on the first batch, step w_i by the gradient at the adapted model on the second."""
        first, second = batches
        adapted = self.adapt(spec, work.w, first)
        grads, loss, buffers = cross_entropy_gradient(spec.network, adapted, second)
        params, velocity = spec.sgd.step(work.w.params, grads, work.velocity, clock.lr)
        return Work(ModelState(params, buffers), velocity, work.received), {"loss": loss}

    def finish(self, spec: ClientSpec, work: Work, batch: Batch, clock: Clock) -> tuple[Personal, Global]:
        """Adapt w_i once more, or w, and keep that; send w_i."""
        return Personal(self.adapt(spec, work.w if self.adapts == "local" else work.received, batch)), send(work.w)

    def deploy(self, spec: ClientSpec, shared: Global, personal: Personal) -> Deployed:
        """Return the adapted model."""
        return Deployed(personal.adapted, {})
