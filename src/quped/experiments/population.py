"""The clients of an experiment."""

import hashlib
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
from torch import nn

from quped._rng import generator
from quped.algorithms import FULL_PRECISION, AnyAlgorithm, FedAvgFT, Quantization
from quped.client import Client, ModelSource
from quped.data import Dataset, Samples, as_samples, subset
from quped.data.by_client import ByClient, Shares, content_digest
from quped.data.datasets import DATASETS
from quped.data.partition import hold_out, split
from quped.errors import DataError, RunError
from quped.experiments.own_data import Own, assign, load_own
from quped.experiments.schema import Data, Experiment, Group, NetworkSection, Newcomers
from quped.federation import Federation
from quped.result import FitResult

Maker = Callable[[NetworkSection], Callable[[], nn.Module]]
"""Returns the function that makes a network: one per network, so that clients with the same network form a group."""


class Population:
    """The clients of an experiment, with the same data for every algorithm."""

    def __init__(self, experiment: Experiment, seed: int) -> None:
        """Load the data and share it out."""
        self._seed = seed
        self.facts: dict[str, Any] | None = None
        """What a record keeps of a user's own data."""
        if isinstance(experiment.data, Data):
            data = DATASETS[experiment.data.name]()
            maker = maker_of(data)
            samples = partial(share_out, data, experiment.data, seed=seed)
            self._clients = dealt_clients(experiment.clients, samples, maker)
        else:
            own = load_own(experiment.data)
            maker = maker_of(own.samples)
            self._clients = own_clients(own, experiment, seed, maker)
            self.facts = facts_of(own.samples, self._clients)
        self._newcomers: list[Client] = []
        if experiment.newcomers is not None:
            self._clients, self._newcomers = apart(self._clients, experiment.newcomers, seed)
        self._network = experiment.global_network
        self._shared: ModelSource | None = None if self._network is None else maker(self._network)

    def federation(self, algorithm: AnyAlgorithm) -> Federation:
        """Return the clients under an algorithm.

        One that needs the global network at every client, or full precision, gets clients that have it: this is how
        methods are compared that cannot all do the same.
        """
        clients = [suited(client, algorithm, self._shared) for client in self._clients]
        return Federation(clients, algorithm, self._shared, self._seed)

    def newcomers(self, algorithm: AnyAlgorithm, result: FitResult) -> Federation:
        """Return the clients that took no part in a run: each has the global model that it left, and learns alone."""
        start = self._shared if result.global_model is None else result.global_module()
        late = [suited(client, algorithm, start) for client in self._newcomers]
        clients = late if start is None else [replace(client, model=start) for client in late]
        alone = FedAvgFT(warmup_epochs=0, quantization=getattr(algorithm, "quantization", Quantization()))
        return Federation(clients, alone, start, self._seed)

    def warn_of_replacements(self, algorithm: AnyAlgorithm) -> None:
        """Warn of networks and bits that a method cannot give the clients as the experiment has them."""
        words = []
        unlike = self._network is not None and any(client.model is not self._shared for client in self._clients)
        if algorithm.global_network == "same" and self._network is not None and unlike:
            words.append(f"has the global network {self._network.name}")
        quantized = any(client.bits != FULL_PRECISION or client.budget is not None for client in self._clients)
        if not algorithm.quantizes and quantized:
            words.append("keeps full precision")
        if words:
            warnings.warn(f"Under {type(algorithm).__name__} every client {' and '.join(words)}.", stacklevel=3)

    def evaluation_samples(self) -> dict[str, Samples]:
        """Return the samples that each client's model is evaluated on; of one without any, its training samples."""
        return {name: list(parts.values())[-1] for name, parts in samples_of(self._clients).items()}

    def check_unchanged(self, recorded: Mapping[str, Any], where: object) -> None:
        """Raise unless a user's own data are those with which a run began."""
        if recorded.get("own_data") != self.facts:
            raise RunError(
                f"The data are not those with which the run in {where} began: restore them, or begin again with "
                "--overwrite."
            )


def apart(clients: Sequence[Client], newcomers: Newcomers, seed: int) -> tuple[list[Client], list[Client]]:
    """Return the clients that take part, and the last ones, who do not, with few of their training samples."""
    if newcomers.count >= len(clients):
        raise DataError(f"{newcomers.count} newcomers leave none of {len(clients)} clients to learn from: use fewer.")
    late = []
    for client in clients[-newcomers.count :]:
        train = as_samples(client.train, f"train data of client '{client.name}'")
        drawn = generator(seed, "newcomer", client.name).permutation(len(train))[: newcomers.samples]
        late.append(replace(client, train=subset(train, np.sort(drawn))))
    return list(clients[: -newcomers.count]), late


def maker_of(data: Dataset | ByClient) -> Maker:
    """Return what makes networks for the inputs and classes of some data."""
    return cache(lambda choice: partial(choice.build, data.input_shape, data.classes))


def dealt_clients(groups: Sequence[Group], deal: Callable[[int], list[Shares]], maker: Maker) -> list[Client]:
    """Return the clients among whom a data set is shared out; `deal` returns the samples of so many."""
    each = [group for group in groups for _ in range(group.count or 0)]
    names = client_names([group.name for group in each])
    return [client_of(*one, maker) for one in zip(names, deal(len(each)), each, strict=True)]


def own_clients(own: Own, experiment: Experiment, seed: int, maker: Maker) -> list[Client]:
    """Return the clients of own data, with the networks and bits of their groups, or as a function has them."""
    if own.clients and experiment.clients:
        raise DataError("The function of data.module returns Client objects: leave out the [[clients]] groups.")
    if not own.clients and not experiment.clients:
        raise DataError("The function of data.module returns samples alone: add [[clients]] groups with networks.")
    shares = own.samples.clients
    groups = {} if own.clients else assign(list(shares), experiment.clients)
    clients = [
        replace(own.clients[name], **part._asdict())
        if name in own.clients
        else client_of(name, part, groups[name], maker)
        for name, part in shares.items()
    ]
    if experiment.data.evaluate_on == "validation":
        return [client.on_validation(seed) for client in clients]
    return clients


def client_of(name: str, samples: Shares, group: Group, maker: Maker) -> Client:
    """Return a client of a group."""
    return Client(
        name=name,
        train=samples.train,
        test=samples.test,
        validation=samples.validation,
        model=maker(group.model),
        bits=group.bits,
        quantize=group.quantize,
        end_bits=group.end_bits,
        budget=group.budget,
        per_channel=group.per_channel,
        init_centers=group.init_centers,
    )


def suited(client: Client, algorithm: AnyAlgorithm, shared: ModelSource | None) -> Client:
    """Return a client with the network and the bits that it can have under an algorithm."""
    if algorithm.global_network == "same" and shared is not None and client.model is not shared:
        # Names of parameters mean nothing in another network.
        bits = min(client.bits.values()) if isinstance(client.bits, Mapping) else client.bits
        client = replace(client, model=shared, bits=bits, quantize=None)
    if not algorithm.quantizes:
        client = replace(client, bits=FULL_PRECISION, quantize=None, end_bits=None, budget=None, per_channel=False)
    return client


def facts_of(data: ByClient, clients: Iterable[Client]) -> dict[str, Any]:
    """Return what a record keeps of a user's own data: classes, preparation, and a digest of all that the run uses."""
    sha = hashlib.sha256()
    for name, parts in samples_of(clients).items():
        for part, samples in parts.items():
            sha.update(f"{name} {part} {content_digest(samples)}\n".encode())
    return {"class_names": list(data.class_names), **data.preparation, "digest": sha.hexdigest()}


def samples_of(clients: Iterable[Client]) -> dict[str, dict[str, Samples]]:
    """Return the training samples of each client, and the samples that it is evaluated on, if any."""
    parts = {client.name: {"train": client.train, "test": client.test} for client in clients}
    return {
        name: {
            part: as_samples(data, f"{part} data of client '{name}'") for part, data in both.items() if data is not None
        }
        for name, both in parts.items()
    }


def client_names(kinds: Sequence[str]) -> list[str]:
    """Return a name for each client: its kind and a number, all numbers with as many digits as the largest."""
    digits, seen, names = len(str(len(kinds) - 1)), Counter[str](), []
    for kind in kinds:
        names.append(f"{kind}-{seen[kind]:0{digits}d}")
        seen[kind] += 1
    return names


def share_out(data: Dataset, section: Data, clients: int, seed: int) -> list[Shares]:
    """Return the training samples and the samples to evaluate on of every client."""
    shares = split(data, section.partition, clients, seed)
    if section.evaluate_on == "test":
        return [Shares(subset(data.train, share.train), subset(data.test, share.test)) for share in shares]
    held = [hold_out(share.train, generator(seed, "validation", i)) for i, share in enumerate(shares)]
    return [Shares(subset(data.train, share.train), subset(data.train, share.test)) for share in held]
