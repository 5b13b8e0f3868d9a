"""The partition of a data set among clients: by class, by writer, by person, by a Dirichlet draw, or at random.

A scheme names a partition in one word: `classes=4`, `dirichlet=0.3`, `writers=3`, `people=1` or `iid`. See `split`.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quped._rng import generator
from quped.data.samples import Dataset
from quped.errors import DataError, InvalidValueError, check, check_whole, number

Indices = NDArray[np.int64]

TEST_FRACTION = 0.1
"""The share of each writer's samples that a partition by writer keeps for testing."""

HELD_OUT_FRACTION = 0.2
"""The share of a client's samples that is held out for validation, or for testing if nothing says which are."""

DRAWS = 100
"""Dirichlet draws before a partition is refused."""

FAR_MISS = 50
"""Clients without samples in a Dirichlet draw that leave no hope for another.

Empty clients occur nearly independently, so that with 50 expected the chance of none is about e^-50.
"""


class Share(NamedTuple):
    """The samples of one client."""

    train: Indices
    test: Indices


def by_classes(
    train_labels: Indices,
    test_labels: Indices,
    clients: int,
    classes_per_client: int,
    rng: np.random.Generator,
) -> list[Share]:
    """Give each client `classes_per_client` random classes, and each class to the same number of clients.

    (Where clients * classes_per_client is no multiple of the number of classes, some classes go to one client more.)
    A class's samples are dealt evenly among its clients; every sample goes to exactly one.
    """
    check_clients(clients, train_labels, test_labels)
    classes = np.unique(train_labels)
    check_whole("number of classes per client", classes_per_client, 1, len(classes))
    if clients * classes_per_client < len(classes):
        raise DataError(
            f"{clients} clients with {classes_per_client} classes each cannot share out {len(classes)} classes: "
            "use more clients or more classes per client."
        )
    owners = assign_classes(classes, clients, classes_per_client, rng)
    return deal(train_labels, test_labels, owners, clients, rng)


def assign_classes(
    classes: Indices, clients: int, classes_per_client: int, rng: np.random.Generator
) -> dict[int, list[int]]:
    """Return the clients that get each class: equally many for every class, distinct classes for every client."""
    if classes_per_client == len(classes):
        return {int(c): list(range(clients)) for c in classes}
    slots = clients * classes_per_client
    extra = rng.permutation(classes)[: slots % len(classes)]
    cards = np.concatenate([np.repeat(classes, slots // len(classes)), extra])
    hands = rng.permutation(cards).reshape(clients, classes_per_client)
    while not exchange_duplicates(hands, rng):
        hands = rng.permutation(cards).reshape(clients, classes_per_client)
    return {int(c): [i for i in range(clients) if c in hands[i]] for c in classes}


def exchange_duplicates(hands: Indices, rng: np.random.Generator) -> bool:
    """Exchange classes that a client holds twice with random other cards; return whether no duplicate is left.

    Random exchanges can get stuck, so their number is limited. The caller then deals the cards again.
    """
    clients, size = hands.shape
    client = 0  # no exchange makes a duplicate, so that clients before this one stay without
    for _ in range(100 * hands.size):
        while client < clients and len(set(hands[client])) == size:
            client += 1
        if client == clients:
            return True
        values, counts = np.unique(hands[client], return_counts=True)
        mine = int(np.flatnonzero(hands[client] == values[counts > 1][0])[0])
        other, theirs = int(rng.integers(clients)), int(rng.integers(size))
        give, take = hands[client, mine], hands[other, theirs]
        if take not in hands[client] and give not in hands[other]:
            hands[client, mine], hands[other, theirs] = take, give
    return False


def deal(
    train_labels: Indices,
    test_labels: Indices,
    owners: dict[int, list[int]],
    clients: int,
    rng: np.random.Generator,
) -> list[Share]:
    """Split each class's samples evenly among the clients that own it."""
    parts: list[tuple[list[Indices], list[Indices]]] = [([], []) for _ in range(clients)]
    for label, members in owners.items():
        for which, labels in enumerate((train_labels, test_labels)):
            shuffled = rng.permutation(np.flatnonzero(labels == label))
            for client, chunk in zip(members, np.array_split(shuffled, len(members)), strict=True):
                parts[client][which].append(chunk)
    return checked([Share(join(train), join(test)) for train, test in parts])


def by_dirichlet(
    train_labels: Indices, test_labels: Indices, clients: int, alpha: float, rng: np.random.Generator
) -> list[Share]:
    """Split each class among the clients in proportions from Dirichlet(alpha), the same for training and testing.

    Small alpha: few classes per client; large alpha: near IID. The draw is repeated, at most DRAWS times, until every
    client has a training and a test sample.
    """
    check_clients(clients, train_labels, test_labels)
    check_alpha(alpha)
    members = [[np.flatnonzero(labels == c) for labels in (train_labels, test_labels)] for c in np.unique(train_labels)]
    for _ in range(DRAWS):
        # Nobody, here `clients`, owns the test samples of a class without training samples.
        owners = np.full(len(train_labels), clients), np.full(len(test_labels), clients)
        for halves in members:
            cuts = np.cumsum(rng.dirichlet(np.full(clients, alpha)))[:-1]
            for owner, indices in zip(owners, halves, strict=True):
                shuffled = rng.permutation(indices)
                ends = np.rint(cuts * len(shuffled)).astype(int)
                owner[shuffled] = np.repeat(np.arange(clients), np.diff(ends, prepend=0, append=len(shuffled)))
        train, test = (np.bincount(owner, minlength=clients)[:clients] for owner in owners)
        empty = np.count_nonzero((train == 0) | (test == 0))
        if empty == 0:
            return [Share(*halves) for halves in zip(*(by_owner(owner, clients) for owner in owners), strict=True)]
        if empty > FAR_MISS:
            break
    raise DataError(
        f"A Dirichlet({alpha:g}) partition among {clients} clients leaves some without a training or a test sample: "
        "use a larger alpha or fewer clients."
    )


def by_owner(owner: Indices, clients: int) -> list[Indices]:
    """Return the samples of each client in the order of the data set, from the owner of each sample."""
    order = np.argsort(owner, kind="stable")
    return np.split(order, np.searchsorted(owner[order], np.arange(1, clients + 1)))[:-1]


def iid(train_labels: Indices, test_labels: Indices, clients: int, rng: np.random.Generator) -> list[Share]:
    """Deal all samples at random, evenly."""
    check_clients(clients, train_labels, test_labels)
    halves = [np.array_split(rng.permutation(len(labels)), clients) for labels in (train_labels, test_labels)]
    return checked([Share(np.sort(train), np.sort(test)) for train, test in zip(*halves, strict=True)])


def by_writer(
    writers: Indices, clients: int, writers_per_client: int, test_fraction: float, rng: np.random.Generator
) -> list[Share]:
    """Give each client all samples of `writers_per_client` random writers, a part of each writer's for testing.

    Training and test indices point into the one pool that `writers` describes. Of a writer's n samples,
    floor(n * (1 - test_fraction)) are for training, and at least one.
    """
    check_whole("number of clients", clients, 1)
    check_whole("number of writers per client", writers_per_client, 1)
    check(0 < number(test_fraction) < 1, "test fraction", "between 0 and 1", test_fraction)
    shares = []
    for mine in drawn("writers", np.unique(writers), clients, writers_per_client, rng):
        train, test = [], []
        for writer in mine:
            samples = rng.permutation(np.flatnonzero(writers == writer))
            kept = max(1, int(len(samples) * (1 - test_fraction)))
            train.append(samples[:kept])
            test.append(samples[kept:])
        shares.append(Share(join(train), join(test)))
    return checked(shares)


def by_person(
    train: Indices, test: Indices, clients: int, people_per_client: int, rng: np.random.Generator
) -> list[Share]:
    """Give each client all samples of random people; `train` and `test` have the person of each sample."""
    check_whole("number of clients", clients, 1)
    check_whole("number of people per client", people_per_client, 1)
    chosen = drawn("people", np.intersect1d(train, test), clients, people_per_client, rng)
    return checked([Share(*(np.flatnonzero(np.isin(half, mine)) for half in (train, test))) for mine in chosen])


def drawn(what: str, known: Indices, clients: int, per_client: int, rng: np.random.Generator) -> Indices:
    """Return a row of random people for each client; nobody is in two."""
    if clients * per_client > len(known):
        raise DataError(
            f"{clients} clients with {per_client} {what} each need {clients * per_client} {what} but the data has "
            f"{len(known)}: use fewer clients or fewer {what} per client."
        )
    return rng.permutation(known)[: clients * per_client].reshape(clients, per_client)


def join(parts: list[Indices]) -> Indices:
    """Concatenate, in the order of the data set."""
    return np.sort(np.concatenate(parts)) if parts else np.empty(0, np.int64)


def check_clients(clients: int, train_labels: Indices, test_labels: Indices) -> None:
    """Refuse more clients than there are samples for."""
    check_whole("number of clients", clients, 1)
    if clients > min(len(train_labels), len(test_labels)):
        raise DataError(
            f"{clients} clients need a training and a test sample each, but the data set has {len(train_labels)} and "
            f"{len(test_labels)}: use fewer clients."
        )


def check_alpha(alpha: float) -> None:
    """Refuse an alpha for which there is no Dirichlet distribution."""
    check(0 < number(alpha) < math.inf, "alpha of a Dirichlet partition", "above 0 and finite", alpha)


def checked(shares: list[Share]) -> list[Share]:
    """Refuse a partition that leaves a client without samples."""
    for i, share in enumerate(shares):
        if not len(share.train) or not len(share.test):
            raise DataError(
                f"Client {i} of {len(shares)} would get {len(share.train)} training and {len(share.test)} test "
                "samples: use fewer clients."
            )
    return shares


def hold_out(indices: Indices, rng: np.random.Generator, fraction: float = HELD_OUT_FRACTION) -> Share:
    """Hold out a fraction of the samples, at least one, in the place of test samples."""
    shuffled = rng.permutation(indices)
    count = max(1, round(len(indices) * fraction))
    return Share(np.sort(shuffled[count:]), np.sort(shuffled[:count]))


def split(dataset: Dataset, scheme: str, clients: int, seed: int) -> list[Share]:
    """Partition a data set among clients by a scheme, at random from the seed."""
    kind, value = parsed(scheme)
    rng = generator(seed, "partition")
    if dataset.writers is not None:
        if kind != "writers":
            raise DataError(
                f"The data set '{dataset.name}' is one pool of samples by writer: '{scheme}' would put training "
                "samples into the test data. Use writers=N."
            )
        return by_writer(dataset.writers, clients, int(value), TEST_FRACTION, rng)
    train, test = dataset.train.labels.numpy(), dataset.test.labels.numpy()
    if kind == "classes":
        return by_classes(train, test, clients, int(value), rng)
    if kind == "dirichlet":
        return by_dirichlet(train, test, clients, value, rng)
    if kind == "iid":
        return iid(train, test, clients, rng)
    if kind == "people" and dataset.people is not None:
        return by_person(*dataset.people, clients, int(value), rng)
    raise DataError(f"The {kind} of '{dataset.name}' are not known: use classes=N, dirichlet=ALPHA or iid.")


def parsed(scheme: str) -> tuple[str, float]:
    """Read a scheme as its kind and its number (0 for iid, which has none)."""
    if scheme == "iid":
        return scheme, 0
    kind, _, text = scheme.partition("=")
    try:
        value = {"classes": int, "dirichlet": float, "writers": int, "people": int}[kind](text)
    except (KeyError, ValueError):
        raise InvalidValueError(
            f"The partition must be classes=N, dirichlet=ALPHA, writers=N, people=N or iid, got {scheme!r}."
        ) from None
    if kind == "dirichlet":
        check_alpha(value)
    else:
        check_whole(f"number of {kind} per client", value, 1)
    return kind, value
