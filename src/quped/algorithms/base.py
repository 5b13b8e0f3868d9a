"""What an algorithm is, and the few pieces that several of them share.

An algorithm is a frozen dataclass of hyperparameters with pure methods. It never sees data sets, processes, files or
random numbers: engines do. Its state is four NamedTuples of its own:

| state    | held by                                | in QuPeD            |
|----------|----------------------------------------|---------------------|
| Shared   | the server; broadcast every round      | w                   |
| Personal | one client; persists; stays with it    | x_i, c_i            |
| Work     | one client for one round               | x_i, c_i, w_i       |
| Payload  | client to server; float tensors only   | w_i                 |
"""

from collections.abc import Callable
from dataclasses import Field, dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor
from torch.func import vjp

from quped import tree
from quped.errors import check, check_number, number
from quped.losses import cross_entropy
from quped.quant import Start
from quped.stacking import stacked
from quped.typing import Batch, Clock, Metrics, Model, Network, Params

FULL_PRECISION = 32
"""The bit-width that means: not quantized."""

Meeting = Literal["none", "same", "any"]
"""No global network; the one that every client has; or any, whatever the clients have."""

Shared = TypeVar("Shared")
Personal = TypeVar("Personal")
Work = TypeVar("Work")
Payload = TypeVar("Payload")
Aux = TypeVar("Aux")
Variables = TypeVar("Variables")


@dataclass(frozen=True)
class SGD:
    """v <- momentum v + (g + weight_decay x);  x <- x - lr v."""

    weight_decay: float = 1e-4
    momentum: float = 0.0

    def __post_init__(self) -> None:
        """Check the ranges."""
        check_number("weight decay", self.weight_decay, 0)
        check(0 <= number(self.momentum) < 1, "momentum", "at least 0 and below 1", self.momentum)

    def init(self, params: Params) -> Params:
        """Return the velocity to start with; nothing without momentum."""
        return tree.zeros_like(params) if self.momentum else {}

    def step(self, params: Params, grads: Params, velocity: Params, lr: float) -> tuple[Params, Params]:
        """Return the parameters and the velocity after one step."""
        direction = tree.add_scaled(grads, params, self.weight_decay) if self.weight_decay else grads
        if self.momentum:
            velocity = direction = tree.add_scaled(direction, velocity, self.momentum)
        return tree.add_scaled(params, direction, -lr), velocity


@dataclass(frozen=True)
class Task:
    """What is the same for all clients of one group: networks, bit-width, and how weights are stepped."""

    network: Network
    """The client's own network."""
    initial: Model
    """Its weights at the start."""
    global_network: Network
    """The network that the clients share; the client's own where all have the same."""
    global_initial: Model
    bits: int = FULL_PRECISION
    quantized: tuple[str, ...] = ()
    """Names of the tensors of `network` that are quantized when `bits` < 32."""
    start: Start = "range"
    per_channel: bool = False
    alike: bool = False
    """Whether the client's network is the global one, but for its weights."""
    sgd: SGD = SGD()


class Empty(NamedTuple):
    """State of a method that has none."""


class Global(NamedTuple):
    """The state `Shared` of methods whose server holds one model; also what they send: `Payload`."""

    w: Model


class Algorithm(Protocol[Shared, Personal, Work, Payload]):
    """The interface that engines drive. `quped.engines.rounds.client_round` shows the order of the calls."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    """It is a dataclass: its fields are hyperparameters."""
    name: ClassVar[str]
    quantizes: ClassVar[bool]
    """Whether clients may have fewer than 32 bits."""
    meets_in: ClassVar[Meeting]
    """Which global network the clients meet in."""
    draws: ClassVar[int]
    """How many independent batches a step takes."""

    def init_shared(self, task: Task) -> Shared:
        """Return the server's state before the first round."""
        ...

    def init_personal(self, task: Task, shared: Shared) -> Personal:
        """Return a client's state before its first round."""
        ...

    def start(self, task: Task, shared: Shared, personal: Personal, clock: Clock) -> Work:
        """Begin a client's round."""
        ...

    def step(self, task: Task, work: Work, batches: tuple[Batch, ...], clock: Clock) -> tuple[Work, Metrics]:
        """Take one local iteration. Metrics hold at least `loss`."""
        ...

    def finish(self, task: Task, work: Work, batch: Batch, clock: Clock) -> tuple[Personal, Payload]:
        """End a client's round; `batch` is the first one of its last step, for methods that adapt to data once more."""
        ...

    def combine(self, shared: Shared, mean: Payload) -> Shared:
        """Return the server's state after a round in which the clients' payloads had this mean."""
        ...

    def deploy(self, task: Task, shared: Shared, personal: Personal) -> Model:
        """Return the model that the client uses: what is evaluated and exported."""
        ...


AnyAlgorithm = Algorithm[Any, Any, Any, Any]


def gradient(f: Callable[[Variables], tuple[Tensor, Aux]], variables: Variables) -> tuple[Variables, Tensor, Aux]:
    """Return the gradient of f at a tree of variables, its value, and what f returned beside its value."""
    value, pull_back, aux = pullback(f, variables)
    return pull_back(None), value, aux


def pullback(
    f: Callable[[Variables], tuple[Tensor, Aux]], variables: Variables
) -> tuple[Tensor, Callable[[Tensor | None], Variables], Aux]:
    """Return f's output at a tree of variables, the map from a gradient by that output to one by the variables, once,
    and what f returned beside its output."""
    if stacked():
        return transformed_pullback(f, variables)
    leaves = tree.map_leaves(lambda leaf: leaf.detach().requires_grad_(), variables)
    with torch.enable_grad():
        output, aux = f(leaves)

    def pull_back(by_output: Tensor | None) -> Variables:
        inputs = [leaf for _, leaf in tree.items(leaves)]
        grads = iter(torch.autograd.grad(output, inputs, by_output, materialize_grads=True))
        return tree.map_leaves(lambda _: next(grads), variables)

    return output.detach(), pull_back, tree.map_leaves(Tensor.detach, aux)


def transformed_pullback(
    f: Callable[[Variables], tuple[Tensor, Aux]], variables: Variables
) -> tuple[Tensor, Callable[[Tensor | None], Variables], Aux]:
    """`pullback` by torch.func: slower for one client, and the only way under vmap."""
    found: Any = vjp(f, variables, has_aux=True)
    output, by_variables, aux = found

    def pull_back(by_output: Tensor | None) -> Variables:
        grads: Variables
        (grads,) = by_variables(torch.ones_like(output) if by_output is None else by_output)
        return grads

    return output, pull_back, aux


def cross_entropy_gradient(network: Network, model: Model, batch: Batch) -> tuple[Params, Tensor, Params]:
    """Return the gradient of f, the cross-entropy on a batch, its value, and the buffers after the pass."""

    def f(params: Params) -> tuple[Tensor, Params]:
        logits, buffers = network(params, model.buffers, batch.inputs, train=True)
        return cross_entropy(logits, batch.labels), buffers

    return gradient(f, model.params)


def send(w: Model) -> Global:
    """Return the payload for a model: its parameters and those buffers that can be averaged."""
    return Global(Model(w.params, tree.floats(w.buffers)))


def receive(shared: Global, mean: Global) -> Global:
    """Return the mean as the new global model; buffers that cannot be averaged stay as they were."""
    return Global(Model(mean.w.params, {**shared.w.buffers, **mean.w.buffers}))
