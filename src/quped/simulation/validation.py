"""All that is checked before clients train."""

import warnings
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from quped._rng import torch_seeded
from quped.algorithms import AnyAlgorithm, ClientSpec
from quped.client import Client, ModelSource
from quped.data import Samples, as_samples
from quped.data.from_user import dtype_name
from quped.data.samples import root_of, rows_of
from quped.errors import InvalidValueError, NetworkError, QupedError, check
from quped.models import FunctionalNetwork
from quped.simulation.bits import Weights, budget_plan, client_bits, unquantized
from quped.simulation.setup import SimClient


def validate_clients(
    clients: Sequence[Client],
    algorithm: AnyAlgorithm,
    global_model: ModelSource | None,
    seed: int,
    *,
    server_networks: bool = True,
) -> tuple[list[SimClient], FunctionalNetwork]:
    """Return the clients as engines run them, in the order of their names, and the global network.

    `server_networks` says whether the server knows the clients' networks beside the global one.
    """
    check_names(clients)
    # Clients stand in the order of their names, so that permuting them changes nothing.
    clients = sorted(clients, key=lambda client: client.name)
    networks = Networks(seed)
    check_method(clients, algorithm, global_model, networks)
    source = clients[0].model if global_model is None else global_model
    owner = f"client '{clients[0].name}'" if global_model is None else "the global model"
    shared = networks.make(source, owner)
    seen = Seen({}, set(), {})
    checked = [check_client(client, algorithm, shared, networks, seen) for client in clients]
    warn_of_unseen_classes(seen.unknown_classes)
    warn_of_unquantized(clients, checked, networks)
    return with_networks(checked) if server_networks else checked, shared


def with_networks(clients: Sequence[SimClient]) -> list[SimClient]:
    """Return the clients with the keys of their networks, and the initial weights of each, which the first one has."""
    unlike: list[FunctionalNetwork] = []
    keys: dict[int, str | None] = {}
    for client in clients:
        if client.spec.group not in keys and not client.spec.has_global_network:
            same = [i for i, network in enumerate(unlike) if distinction(client.network, network) is None]
            if not same:
                unlike.append(client.network)
            keys[client.spec.group] = str(same[0] if same else len(unlike) - 1)
    if not unlike:
        return list(clients)
    networks = {str(i): network.initial for i, network in enumerate(unlike)}
    specs = {client.spec.group: client.spec for client in clients}
    specs = {group: replace(spec, network_key=keys.get(group), networks=networks) for group, spec in specs.items()}
    return [replace(client, spec=specs[client.spec.group]) for client in clients]


def check_names(clients: Sequence[Client]) -> None:
    """Raise unless there are clients, with distinct names."""
    check(all(isinstance(client, Client) for client in clients), "clients", "a list of Client(...)", clients)
    check(len(clients) > 0, "number of clients", "at least 1", 0)
    for name in (names := [client.name for client in clients]):
        check(isinstance(name, str) and name != "", "name of a client", "a non-empty string", name)
        check(is_text(name), "name of a client", "text without halves of characters (surrogates)", name)
    for name, count in Counter(names).items():
        check(count == 1, "names of the clients", "distinct", name)


def is_text(word: str) -> bool:
    """Say whether a word can be written to a file."""
    try:
        return bool(word.encode())
    except UnicodeEncodeError:
        return False


class Networks:
    """Makes and tries every network once."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._made: dict[int, FunctionalNetwork] = {}
        self._weights: dict[int, Weights] = {}
        self._bits: dict[Hashable, dict[str, int]] = {}
        self._kinds: dict[int, Hashable] = {}
        """Of the inputs of samples of which clients have subsets, by the id of the whole."""
        self._outputs: dict[Hashable, int] = {}

    def make(self, source: ModelSource, who: str) -> FunctionalNetwork:
        """Return the network of a module, or of a function that makes one."""
        if id(source) not in self._made:
            module = self._module(source, who)
            try:
                self._made[id(source)] = FunctionalNetwork(module)
                self._weights[id(source)] = Weights.of(module)
            except QupedError as error:
                raise type(error)(f"The network of {who} cannot be used: {error}") from error
        return self._made[id(source)]

    def bits(self, client: Client, who: str) -> dict[str, int]:
        """Return the bits of each parameter that a client quantizes."""
        network = self.make(client.model, who)
        # In words, 1 and True differ, and a list is as good as any key.
        asked = repr((client.bits, client.quantize, client.end_bits, client.per_channel))
        if (key := (id(network), asked)) not in self._bits:
            self._bits[key] = client_bits(client, who, network, self.weights(client))
        return self._bits[key]

    def budget_bits(self, client: Client, who: str, samples: Samples, method: str) -> dict[str, int]:
        """Return the bits of each parameter with which a client's file stays within its budget."""
        network = self.make(client.model, who)
        return budget_plan(client, who, network, self.weights(client), samples, method, self._seed).bits

    def weights(self, client: Client) -> Weights:
        """Return the weights of a client's network, which has been made."""
        return self._weights[id(client.model)]

    def outputs(self, network: FunctionalNetwork, samples: Samples, what: str) -> int:
        """Run a network on one sample, once for each kind of input, and return the number of its outputs."""
        root, rows = root_of(samples), rows_of(samples)
        kind = self._kinds.get(id(root)) if rows is None else kind_of(rows)
        if (id(network), kind) not in self._outputs:
            with torch_seeded(self._seed, "kind"):  # PyTorch data sets, and networks, may be random
                inputs = samples.batch(torch.zeros(1, dtype=torch.long)).inputs
                kind = kind_of(inputs)
                if (id(network), kind) not in self._outputs:
                    self._outputs[id(network), kind] = count_outputs(network, inputs, what)
            if root is not samples:
                self._kinds[id(root)] = kind
        return self._outputs[id(network), kind]

    def logit_bias(self, network: FunctionalNetwork, samples: Samples) -> str | None:
        """Name the parameter that a network adds to its logits, if there is one."""
        with torch_seeded(self._seed, "kind"):
            inputs = samples.batch(torch.zeros(1, dtype=torch.long)).inputs
        return network.logit_bias(inputs)

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


def kind_of(inputs: tuple[Tensor, ...]) -> Hashable:
    """Return the form of inputs, without their number."""
    return tuple((x.shape[1:], x.dtype) for x in inputs)


def count_outputs(network: FunctionalNetwork, inputs: tuple[Tensor, ...], what: str) -> int:
    """Return the number of class scores that a network gives for these inputs."""
    try:
        with torch.no_grad():
            logits: object = network(network.initial.params, network.initial.buffers, inputs, train=False)[0]
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        kinds = ", ".join(f"{dtype_name(x.dtype)} of shape {tuple(x.shape)}" for x in inputs)
        usual = torch.get_default_dtype()
        odd = {p.dtype for p in network.initial.params.values()} - {usual}
        hint = f" (Its weights are {dtype_name(odd.pop())}: convert it to {dtype_name(usual)}.)" if odd else ""
        if not hint and any(x.dtype == torch.uint8 for x in inputs):
            hint = f" (Convert bytes, such as those of images, to {dtype_name(usual)} first: x / 255.)"
        raise NetworkError(f"{what} cannot run on its data, {kinds}: {error}{hint}") from error
    if not isinstance(logits, Tensor):
        raise NetworkError(
            f"{what} must return one tensor of class scores, got a {type(logits).__name__}: wrap it in a module whose "
            "forward() returns the scores alone."
        )
    if logits.dim() != 2:
        raise NetworkError(f"{what} must give one row of class scores for each sample, got {tuple(logits.shape)}.")
    warn_of_probabilities(logits, what)
    return logits.shape[1]


def warn_of_probabilities(outputs: Tensor, what: str) -> None:
    """Warn of a network that seems to end in softmax: cross-entropy takes logits."""
    total = outputs.sum(1)
    sums_to_one = outputs.shape[1] > 1 and bool((outputs >= 0).all()) and torch.allclose(total, torch.ones_like(total))
    logs_to_one = bool((outputs <= 0).all()) and torch.allclose(outputs.exp().sum(1), torch.ones_like(total))
    if sums_to_one and not logs_to_one:
        warnings.warn(
            f"{what} seems to end in softmax: its outputs are probabilities. Training expects logits, and learns badly "
            "from probabilities: remove the softmax.",
            stacklevel=2,
        )


def check_method(
    clients: Sequence[Client], algorithm: AnyAlgorithm, global_model: ModelSource | None, networks: Networks
) -> None:
    """Raise if the method cannot serve such clients, with every reason at once."""
    made = {client.name: networks.make(client.model, f"client '{client.name}'") for client in clients}
    bits = {client.name: networks.bits(client, f"client '{client.name}'") for client in clients}
    method, reasons = type(algorithm).__name__, []
    quantized = [client.name for client in clients if bits[client.name] or client.budget is not None]
    if not algorithm.quantizes and quantized:
        reasons.append(f"it trains full-precision models only (set bits=32 for {listed(quantized)})")
    first = clients[0].name
    shared = made[first] if global_model is None else networks.make(global_model, "the global model")
    if algorithm.global_network == "same":
        unlike = {name: what for name, network in made.items() if (what := distinction(network, shared))}
        if unlike:
            which = "the global network" if global_model is not None else f"the network of '{first}'"
            differ = ", ".join(sorted(set(unlike.values())))
            reasons.append(
                f"it needs one network at every client ({listed(list(unlike))} differ from {which} in {differ})"
            )
    if reasons:
        raise NetworkError(f"{method} cannot train these clients: {' and '.join(reasons)}. {alternatives(bits)}")
    alike = all(shapes(network) == shapes(shared) for network in made.values())
    if algorithm.global_network == "any" and global_model is None and not alike:
        raise NetworkError("Clients have different networks: pass global_model=... to choose the shared one.")


def alternatives(bits: Mapping[str, Mapping[str, int]]) -> str:
    """Return a sentence that names methods which can train such clients."""
    if any(bits.values()):
        return (
            "QuPeD and Local train quantized clients with different networks; QuPeL and FedAvgFT quantized clients "
            "with one."
        )
    return "QuPeD, FML and Local train clients with different networks."


def listed(names: Sequence[str]) -> str:
    """Return the first names of a list, and how many there are more."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(f"'{name}'" for name in names[:3]) + more


class Seen(NamedTuple):
    """What is known from the clients before: what they have in common is checked once."""

    groups: dict[Hashable, ClientSpec]
    """For each network with its bits."""
    wholes: set[int]
    """The ids of samples of which clients have subsets."""
    unknown_classes: dict[str, set[int]]
    """For each client that is tested on classes which it never sees, these."""


def check_client(
    client: Client, algorithm: AnyAlgorithm, shared: FunctionalNetwork, networks: Networks, seen: Seen
) -> SimClient:
    """Return a client as engines run it; clients with the same network and bits share one specification."""
    groups = seen.groups
    who = f"client '{client.name}'"
    check(isinstance(client.per_channel, bool), f"'per_channel' of {who}", "True or False", client.per_channel)
    train = as_samples(client.train, f"training data of {who}", seen.wholes)
    test = None if client.test is None else as_samples(client.test, f"test data of {who}", seen.wholes)
    if client.validation is not None:
        as_samples(client.validation, f"validation data of {who}", seen.wholes)
    network = networks.make(client.model, who)
    bits = networks.bits(client, who)
    outputs = networks.outputs(network, train, f"The network of {who}")
    classes = set(train.labels.tolist())
    highest = max(classes)
    if test is not None:
        networks.outputs(network, test, f"The network of {who}, on its test data,")
        tested = set(test.labels.tolist())
        highest = max(highest, *tested)
        if not tested <= classes:
            seen.unknown_classes[client.name] = tested - classes
    if highest >= outputs:
        raise NetworkError(
            f"The network of {who} has {outputs} outputs but its labels go up to {highest}: "
            f"it needs at least {highest + 1} outputs, since classes are numbered from 0."
        )
    if algorithm.global_network != "none":
        expected = networks.outputs(shared, train, f"The global model, on the data of {who},")
        if outputs != expected:
            raise NetworkError(
                f"The network of {who} has {outputs} outputs but the global model has {expected}: "
                "make them equal, so that one can teach the other."
            )
    if client.budget is not None:
        bits = networks.budget_bits(client, who, train, algorithm.name)
    key = (id(network), tuple(bits.items()), client.per_channel, client.init_centers)
    if key not in groups:
        spec = ClientSpec(
            network=network,
            initial=network.initial,
            global_network=shared,
            global_initial=shared.initial,
            bits=bits,
            init_centers=client.init_centers,
            per_channel=client.per_channel,
            has_global_network=distinction(network, shared) is None,
            head=network.head,
            logit_bias=networks.logit_bias(network, train),
            group=len(groups),
        )
        if bits:
            try:
                algorithm.init_personal(spec, algorithm.init_shared(spec))
            except InvalidValueError as error:
                raise InvalidValueError(f"The network of {who} cannot be quantized: {error}") from error
        groups[key] = spec
    return SimClient(client.name, groups[key], network, train, test)


def shapes(network: FunctionalNetwork) -> dict[str, torch.Size]:
    """Return the shape of every parameter: these must agree for parameters to be averaged."""
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


def warn_of_unquantized(clients: Sequence[Client], checked: Sequence[SimClient], networks: Networks) -> None:
    """Warn, in one sentence, of clients whose files would be mostly float32 weights that could be quantized."""
    told: dict[int, str | None] = {}
    for client, made in zip(clients, checked, strict=True):
        if made.spec.group not in told:
            told[made.spec.group] = unquantized(client, made, networks.weights(client))
    remedies = {made.name: told[made.spec.group] for made in checked}
    if names := [name for name, remedy in remedies.items() if remedy is not None]:
        warnings.warn(
            f"Most of the file is not quantized for {listed(names)}. {remedies[names[0]]}",
            stacklevel=4,  # whoever makes a Federation
        )


def warn_of_unseen_classes(unseen: Mapping[str, set[int]]) -> None:
    """Warn, in one sentence, of clients that are tested on classes which they never see."""
    told = [f"'{name}' ({', '.join(map(str, sorted(classes)))})" for name, classes in list(unseen.items())[:3]]
    if told:
        more = f" and {len(unseen) - 3} more" if len(unseen) > 3 else ""
        warnings.warn(
            f"Some clients are tested on classes without training samples: {', '.join(told)}{more}.",
            stacklevel=4,  # whoever makes a Federation
        )
