"""The interface of an algorithm, and what the algorithms share.

An algorithm is a frozen dataclass of hyperparameters with pure methods.
It never sees data sets, processes, files or random numbers: engines do.
Its state is four NamedTuples of its own:

| state    | held by                                | in QuPeD            |
|----------|----------------------------------------|---------------------|
| Shared   | the server; broadcast every round      | w                   |
| Personal | one client; persists; stays with it    | x_i, c_i            |
| Work     | one client for one round               | x_i, c_i, w_i       |
| Payload  | client to server; float tensors only   | w_i                 |

What a field `server` of Shared holds is not broadcast.
"""

from collections.abc import Mapping
from dataclasses import Field, dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, TypeVar

from quped import _tree
from quped.algorithms._sgd import SGD
from quped.quant import CenterInit, Codebook
from quped.typing import Batch, Clock, Metrics, ModelState, Network, Params

GlobalNetwork = Literal["none", "same", "any"]
"""An algorithm has no global network; one that every client must have; or any, whatever the clients have."""

Shared = TypeVar("Shared")
Personal = TypeVar("Personal")
Work = TypeVar("Work")
Payload = TypeVar("Payload")


@dataclass(frozen=True)
class ClientSpec:
    """What all clients of one group have in common: networks, bits, and the optimizer of the weights."""

    network: Network
    """The client's own network."""
    initial: ModelState
    """Its weights before training."""
    global_network: Network
    """The network that the clients share; the client's own where all have the same."""
    global_initial: ModelState
    bits: Mapping[str, int] = field(default_factory=dict)
    """For each quantized tensor of `network` its bits per weight; empty in full precision."""
    init_centers: CenterInit = "range"
    per_channel: bool = False
    has_global_network: bool = False
    """Whether the client's network is the global one, up to its weights."""
    network_key: str | None = None
    """The key of the client's network in `networks`; None if it is the global one."""
    networks: Mapping[str, ModelState] = field(default_factory=dict)
    """The initial weights of every other network that the server may hold a model of: the same for all clients."""
    head: tuple[str, ...] = ()
    """The trained parameters of the network's last layer."""
    logit_bias: str | None = None
    """The parameter that the network adds to its logits, if there is one: the bias of the last layer."""
    sgd: SGD = field(default_factory=SGD)
    group: int = 0
    """Clients with the same number share this specification."""


class Deployed(NamedTuple):
    """The model that a client uses."""

    state: ModelState
    codebooks: dict[str, Codebook]
    """For each quantized tensor its centers, and the center of each weight: `state` holds just these values."""


class Empty(NamedTuple):
    """State of a method that has none."""


NO_VELOCITY: Params = {}


class Global(NamedTuple):
    """The state `Shared` of methods whose server holds one model; also their `Payload`."""

    w: ModelState
    server: Params = NO_VELOCITY
    """The velocity of w, if it has momentum. It stays with the server."""


class Algorithm(Protocol[Shared, Personal, Work, Payload]):
    """The interface that engines drive. `quped.simulation.client_round` shows the order of the calls."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    """It is a dataclass: its fields are hyperparameters."""
    name: ClassVar[str]
    quantizes: ClassVar[bool]
    """Whether clients may be quantized."""
    global_network: ClassVar[GlobalNetwork]
    batches_per_step: ClassVar[int]
    """How many independent batches a step takes."""

    def init_shared(self, spec: ClientSpec) -> Shared:
        """Return the server's state before the first round."""
        ...

    def init_personal(self, spec: ClientSpec, shared: Shared) -> Personal:
        """Return a client's state before its first round. To clients, `shared` is as it was broadcast."""
        ...

    def start(self, spec: ClientSpec, shared: Shared, personal: Personal, clock: Clock) -> Work:
        """Begin a client's round."""
        ...

    def step(self, spec: ClientSpec, work: Work, batches: tuple[Batch, ...], clock: Clock) -> tuple[Work, Metrics]:
        """Take one local step. Metrics hold at least `loss`."""
        ...

    def finish(self, spec: ClientSpec, work: Work, batch: Batch, clock: Clock) -> tuple[Personal, Payload]:
        """End a client's round; `batch` is the first batch of its last step, for methods that adapt once more."""
        ...

    def server_update(self, shared: Shared, mean: Payload) -> Shared:
        """Return the server's state after a round in which the clients' payloads had this mean."""
        ...

    def deploy(self, spec: ClientSpec, shared: Shared, personal: Personal) -> Deployed:
        """Return the model that the client uses: the one that is evaluated and exported."""
        ...


AnyAlgorithm = Algorithm[Any, Any, Any, Any]


def broadcast(shared: Any) -> Any:
    """Return what clients receive of the server's state: all but what its field `server` holds, if it has one."""
    return shared._replace(server={}) if "server" in getattr(shared, "_fields", ()) else shared


def send(w: ModelState) -> Global:
    """Return the payload for a model: its parameters and those buffers that can be averaged."""
    return Global(ModelState(w.params, _tree.floats(w.buffers)))
