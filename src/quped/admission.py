"""Clients as a user describes them, and all that is checked before they train."""

import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from quped.algorithms import FULL_PRECISION, AnyAlgorithm, Task
from quped.data import Data, Samples, as_samples
from quped.data.given import in_short
from quped.errors import InvalidValueError, NetworkError, check, is_whole
from quped.models import FunctionalNetwork
from quped.quant import MAX_BITS, Start
from quped.rng import torch_seeded

ModelSource = nn.Module | Callable[[], nn.Module]
"""A module, whose weights are where training starts, or a function that makes one."""

BITS = (*range(1, MAX_BITS + 1), FULL_PRECISION)


@dataclass(frozen=True)
class Client:
    """A device: its data, its network, its bit-width. None of these need to be those of another client."""

    name: str
    train: Data = field(repr=False)
    """Training samples: (inputs, labels) as tensors or arrays, or a PyTorch data set."""
    test: Data = field(repr=False)
    """Samples on which the client's model is evaluated."""
    model: ModelSource
    """Functions are called with torch seeded, all alike: clients with the same network start from the same weights."""
    bits: int = FULL_PRECISION
    """Bits per quantized weight: 1 to 8, or 32 for full precision."""
    quantize: Sequence[str] | None = None
    """Names of the parameters to quantize; by default all weights but those of the first and the last layer."""
    per_channel: bool = False
    """Give every output channel its own centers, instead of one set to the layer."""
    start: Start = "range"
    """Where centers start: "range", as in the paper, or "kmeans"."""


@dataclass(frozen=True)
class Member:
    """A client that was checked and admitted."""

    client: Client
    train: Samples
    test: Samples
    network: FunctionalNetwork
    task: Task


class Admission:
    """Admits clients to a federation, each network made and tried once."""

    def __init__(
        self, clients: Sequence[Client], algorithm: AnyAlgorithm, global_model: ModelSource | None, seed: int
    ) -> None:
        """Check the clients one by one, and whether they can meet."""
        check(all(isinstance(client, Client) for client in clients), "clients", "a list of Client(...)", clients)
        check(len(clients) > 0, "number of clients", "at least 1", 0)
        for name in (names := [client.name for client in clients]):
            check(isinstance(name, str) and name != "", "name of a client", "a non-empty string", name)
        for name, count in Counter(names).items():
            check(count == 1, "names of the clients", "distinct", name)
        self._algorithm = algorithm
        self._seed = seed
        self._made: dict[tuple[int, tuple[str, ...] | None], FunctionalNetwork] = {}
        self._tasks: dict[tuple[object, ...], Task] = {}
        self._outputs: dict[tuple[object, ...], int] = {}
        # Clients stand in the order of their names, so that permuting them changes nothing.
        clients = sorted(clients, key=lambda client: client.name)
        self.meeting = self._global_network(clients, global_model)
        """The network in which clients meet."""
        self.members = [self._admit(client) for client in clients]
        tell_unseen_classes(self.members)

    def _network(self, source: ModelSource, quantize: Sequence[str] | None, who: str) -> FunctionalNetwork:
        listed = quantize is None or isinstance(quantize, list | tuple)
        check(listed, f"'quantize' of {who}", "a list of names of parameters", quantize)
        key = (id(source), None if quantize is None else tuple(quantize))
        if key not in self._made:
            self._made[key] = FunctionalNetwork(self._module(source, who), quantize)
        return self._made[key]

    def _module(self, source: ModelSource, who: str) -> nn.Module:
        made: object = source
        if not isinstance(source, nn.Module) and callable(source):
            try:
                with torch_seeded(self._seed, "init"):
                    made = source()
            except Exception as error:  # whatever a user's function does
                raise NetworkError(f"The model of {who} cannot be made: {type(error).__name__}: {error}") from error
        if not isinstance(made, nn.Module):
            raise NetworkError(f"The model of {who} must be an nn.Module or a function that makes one, got {made!r}.")
        return made

    def _global_network(self, clients: Sequence[Client], source: ModelSource | None) -> FunctionalNetwork:
        if source is None:
            source = clients[0].model
            first = self._network(source, None, f"client '{clients[0].name}'")
            others = (self._network(c.model, c.quantize, f"client '{c.name}'") for c in clients)
            if self._algorithm.meets_in != "none" and any(shapes(other) != shapes(first) for other in others):
                raise NetworkError(
                    "The clients have different networks: say with global_model=... in which one they meet."
                )
        return self._network(source, None, "the global model")

    def _admit(self, client: Client) -> Member:
        who = f"client '{client.name}'"
        check(isinstance(client.per_channel, bool), f"'per_channel' of {who}", "True or False", client.per_channel)
        check(is_whole(client.bits) and client.bits in BITS, f"'bits' of {who}", "one of 1..8 or 32", client.bits)
        train = as_samples(client.train, f"training data of {who}")
        test = as_samples(client.test, f"test data of {who}")
        network = self._network(client.model, client.quantize, who)
        if client.bits < FULL_PRECISION:
            self._check_quantizable(network, who)
        outputs = self._output_size(network, train, f"The network of {who}")
        self._output_size(network, test, f"The network of {who}, on its test data,")
        highest = max(int(train.labels.max()), int(test.labels.max()))
        if highest >= outputs:
            raise NetworkError(
                f"The network of {who} has {outputs} outputs but its labels go up to {highest}: "
                f"it needs at least {highest + 1} outputs, since classes are numbered from 0."
            )
        if self._algorithm.meets_in != "none":
            self._check_meeting(network, train, outputs, who)
        key = (id(network), client.bits, client.per_channel, client.start)
        if key not in self._tasks:
            self._tasks[key] = Task(
                network=network,
                initial=network.initial,
                global_network=self.meeting,
                global_initial=self.meeting.initial,
                bits=int(client.bits),
                quantized=network.quantized if client.bits < FULL_PRECISION else (),
                start=client.start,
                per_channel=client.per_channel,
                alike=distinction(network, self.meeting) is None,
            )
            if client.bits < FULL_PRECISION:
                try:
                    self._algorithm.init_personal(self._tasks[key], self._algorithm.init_shared(self._tasks[key]))
                except InvalidValueError as error:
                    raise InvalidValueError(f"The network of {who} cannot be quantized: {error}") from error
        return Member(client, train, test, network, self._tasks[key])

    def _output_size(self, network: FunctionalNetwork, samples: Samples, what: str) -> int:
        """Run a network on one sample, once for each kind of input, and return the number of its outputs."""
        with torch_seeded(self._seed, "kind"):  # data sets of PyTorch may be random
            inputs = samples.batch(torch.zeros(1, dtype=torch.long)).inputs
        key = (id(network), *((x.shape[1:], x.dtype) for x in inputs))
        if key not in self._outputs:
            try:
                with torch.no_grad():
                    logits, _ = network(network.initial.params, network.initial.buffers, inputs, train=False)
            except (RuntimeError, ValueError, TypeError, IndexError) as error:
                kinds = ", ".join(f"{in_short(x.dtype)} of shape {tuple(x.shape)}" for x in inputs)
                usual = torch.get_default_dtype()
                odd = {p.dtype for p in network.initial.params.values()} - {usual}
                hint = f" (Its weights are {in_short(odd.pop())}: convert it to {in_short(usual)}.)" if odd else ""
                if not odd and any(x.dtype == torch.uint8 for x in inputs):
                    hint = f" (Bytes, such as those of images, are to be made {in_short(usual)} first: x / 255.)"
                raise NetworkError(f"{what} cannot run on its data, {kinds}: {error}{hint}") from error
            shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
            if not isinstance(logits, Tensor) or logits.dim() != 2:
                raise NetworkError(f"{what} must give one row of class scores for each sample, got {shape}.")
            self._outputs[key] = logits.shape[1]
        return self._outputs[key]

    def _check_quantizable(self, network: FunctionalNetwork, who: str) -> None:
        if not self._algorithm.quantizes:
            raise InvalidValueError(
                f"{type(self._algorithm).__name__} trains full-precision models only: set bits=32 for {who}, "
                "or use Local, QuPeL or QuPeD."
            )
        if not network.quantized:
            raise NetworkError(
                f"Nothing of the network of {who}, {network.name}, is to be quantized (it may have no layer between "
                "the first and the last): "
                f"name parameters with quantize=[...]. It has {', '.join(network.initial.params)}."
            )

    def _check_meeting(self, network: FunctionalNetwork, train: Samples, outputs: int, who: str) -> None:
        expected = self._output_size(self.meeting, train, f"The global model, on the data of {who},")
        if outputs != expected:
            raise NetworkError(
                f"The network of {who} has {outputs} outputs but the global model has {expected}: "
                "make them equal, so that one can teach the other."
            )
        if self._algorithm.meets_in == "same" and (what := distinction(network, self.meeting)):
            raise NetworkError(
                f"{type(self._algorithm).__name__} needs the global network at every client, but {who} has another "
                f"one, with other {what}: use QuPeD, FML or Local for clients with different networks."
            )


def shapes(network: FunctionalNetwork) -> dict[str, torch.Size]:
    """Return the shape of every parameter: what must agree for parameters to be averaged."""
    return {k: v.shape for k, v in network.initial.params.items()}


def distinction(a: FunctionalNetwork, b: FunctionalNetwork) -> str | None:
    """Say in what two networks differ besides trained weights, if at all: one then cannot take the other's place."""
    if a is b:
        return None
    if shapes(a) != shapes(b):
        return "parameters"
    if {k: v.shape for k, v in a.initial.buffers.items()} != {k: v.shape for k, v in b.initial.buffers.items()}:
        return "buffers"
    if a.frozen.keys() != b.frozen.keys() or not all(torch.equal(v, b.frozen[k]) for k, v in a.frozen.items()):
        return "frozen parameters"
    return "layers" if a.structure != b.structure else None


def tell_unseen_classes(members: Sequence[Member]) -> None:
    """Warn, in one sentence, of clients that are tested on classes which they never see."""
    unseen = {m.client.name: sorted(set(m.test.labels.tolist()) - set(m.train.labels.tolist())) for m in members}
    found = [f"'{name}' ({', '.join(map(str, classes))})" for name, classes in unseen.items() if classes]
    if found:
        more = f" and {len(found) - 3} more" if len(found) > 3 else ""
        warnings.warn(
            f"Some clients are tested on classes that they have no training samples of: {', '.join(found[:3])}{more}.",
            stacklevel=4,  # whoever makes a Federation
        )
