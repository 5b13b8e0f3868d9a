"""Partitions are exact, on the real sizes of the data sets."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from quped._rng import generator
from quped.data import Dataset, TensorSamples
from quped.data.partition import DRAWS, Share, by_classes, by_dirichlet, by_person, by_writer, iid, parsed, split
from quped.errors import DataError, InvalidValueError

CIFAR10 = [5000] * 10, [1000] * 10
MNIST = (
    [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949],
    [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009],
)
AG_NEWS = [30_000] * 4, [1900] * 4


def labels(counts: list[int]) -> NDArray[np.int64]:
    """Return shuffled labels with these numbers of each class."""
    return np.random.default_rng(0).permutation(np.repeat(np.arange(len(counts)), counts))


def check_all_dealt(parts: list[NDArray[np.int64]], count: int) -> None:
    """Every sample is given to exactly one client."""
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(count))


@pytest.mark.parametrize(
    ("counts", "clients", "classes", "owners"),
    [
        (CIFAR10, 50, 4, {20}),
        (CIFAR10, 50, 3, {15}),
        (MNIST, 50, 3, {15}),
        (MNIST, 50, 4, {20}),
        (AG_NEWS, 42, 3, {31, 32}),  # 126 places for 4 classes
    ],
)
@pytest.mark.parametrize("seed", [0, 1])
def test_by_classes_on_real_sizes(
    counts: tuple[list[int], list[int]], clients: int, classes: int, owners: set[int], seed: int
) -> None:
    """Each client has its number of classes, in training and test; each class has its number of clients."""
    train, test = map(labels, counts)
    shares = by_classes(train, test, clients, classes, generator(seed, "partition"))
    check_all_dealt([s.train for s in shares], len(train))
    check_all_dealt([s.test for s in shares], len(test))
    held = [set(train[s.train]) for s in shares]
    assert all(len(h) == classes and h == set(test[s.test]) for h, s in zip(held, shares, strict=True))
    having = [sum(label in h for h in held) for label in range(len(counts[0]))]
    assert set(having) == owners
    for label, count in enumerate(counts[0]):
        dealt = [int((train[s.train] == label).sum()) for s in shares]
        assert {d for d in dealt if d} <= {count // having[label], -(-count // having[label])}


@pytest.mark.parametrize("classes", [3, 4])
def test_cifar10_clients_have_1000_and_200(classes: int) -> None:
    """The paper's sizes, exactly, where they come out even; else within one sample per class."""
    train, test = map(labels, CIFAR10)
    shares = by_classes(train, test, 50, classes, generator(0, "partition"))
    slack = 0 if classes == 4 else classes
    assert all(abs(len(s.train) - 1000) <= slack and abs(len(s.test) - 200) <= slack for s in shares)


def test_writers_stay_together_and_each_is_tested() -> None:
    """198 writers, 66 clients: three writers each, nobody's twice, the whole part of 90 % of each for training."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(81, 126, 198)
    writers = rng.permutation(np.repeat(np.arange(1000, 1198), sizes))
    shares = by_writer(writers, 66, 3, 0.1, generator(0, "partition"))
    assert len(shares) == 66
    check_all_dealt([np.concatenate([s.train, s.test]) for s in shares], len(writers))
    seen: set[int] = set()
    for share in shares:
        mine = set(writers[share.train])
        assert len(mine) == 3
        assert mine == set(writers[share.test])
        assert not mine & seen
        seen |= mine
        assert len(share.train) == sum(int(0.9 * sizes[w - 1000]) for w in mine)
        assert 203 <= len(share.train) <= 336
        assert 25 <= len(share.test) <= 40


def test_iid_deals_evenly() -> None:
    """All samples, in parts that differ by one at most."""
    train, test = map(labels, MNIST)
    shares = iid(train, test, 7, generator(0, "partition"))
    check_all_dealt([s.train for s in shares], 60_000)
    assert {len(s.train) for s in shares} == {60_000 // 7, 60_000 // 7 + 1}


def test_dirichlet_deals_everything() -> None:
    """No sample is lost; small alpha concentrates classes; test samples are shared out as training samples are."""
    train, test = map(labels, CIFAR10)
    largest = {}
    for alpha in (0.3, 1000.0):
        shares = by_dirichlet(train, test, 10, alpha, generator(0, "partition"))
        check_all_dealt([s.train for s in shares], 50_000)
        check_all_dealt([s.test for s in shares], 10_000)
        counts = np.array([np.bincount(train[s.train], minlength=10) for s in shares])
        counts_test = np.array([np.bincount(test[s.test], minlength=10) for s in shares])
        assert np.abs(counts / 5 - counts_test).max() <= 1
        largest[alpha] = (counts.max(1) / counts.sum(1)).mean()
    assert largest[0.3] > 0.3
    assert largest[1000.0] < 0.12


class CountingGenerator(np.random.Generator):
    """Counts the draws from a Dirichlet distribution."""

    draws = 0

    def dirichlet(self, *arguments: Any) -> Any:
        """Draw as the parent does."""
        self.draws += 1
        return super().dirichlet(*arguments)


def dirichlet_class_by_class(
    halves: Sequence[NDArray[np.int64]], clients: int, alpha: float, rng: np.random.Generator
) -> list[list[list[int]]]:
    """Cut each class of training and test data in turn, until every client has both."""
    while True:
        parts: list[list[list[int]]] = [[[], []] for _ in range(clients)]
        for label in np.unique(halves[0]):
            cuts = np.cumsum(rng.dirichlet(np.full(clients, alpha)))[:-1]
            for half, values in enumerate(halves):
                shuffled = rng.permutation(np.flatnonzero(values == label))
                for part, chunk in zip(
                    parts, np.split(shuffled, np.rint(cuts * len(shuffled)).astype(int)), strict=True
                ):
                    part[half] += chunk.tolist()
        if all(train and test for train, test in parts):
            return [[sorted(train), sorted(test)] for train, test in parts]


@pytest.mark.parametrize(("clients", "alpha"), [(1, 0.3), (10, 0.1), (25, 0.3), (60, 5.0)])
def test_dirichlet_by_hand(clients: int, alpha: float) -> None:
    """The partition equals a plain one, draw by draw; some need several draws, and one class is never trained on."""
    halves = labels([144, 150, 90, 200, 0]), labels([35, 30, 40, 60, 9])
    draws = 0
    for seed in range(5):
        rng = CountingGenerator(np.random.PCG64(seed))
        shares = by_dirichlet(*halves, clients, alpha, rng)
        expected = dirichlet_class_by_class(halves, clients, alpha, np.random.Generator(np.random.PCG64(seed)))
        assert [[share.train.tolist(), share.test.tolist()] for share in shares] == expected
        draws += rng.draws
    assert (draws > 5 * 4) == (clients > 1)


@pytest.mark.parametrize(("clients", "alpha", "draws"), [(151, 1.0, 0), (150, 1.0, 1), (20, 0.1, DRAWS)])
def test_impossible_dirichlet_partitions_are_refused_soon(clients: int, alpha: float, draws: int) -> None:
    """Before any draw where samples are too few, after one that misses by far, or after a limited number."""
    rng = CountingGenerator(np.random.PCG64(0))
    with pytest.raises(DataError, match=r"use .*fewer clients"):
        by_dirichlet(labels([300] * 3), labels([50] * 3), clients, alpha, rng)
    assert rng.draws == 3 * draws


@pytest.mark.parametrize("scheme", ["classes=2", "dirichlet=1", "iid"])
def test_more_clients_than_samples(scheme: str) -> None:
    """The error names the numbers, and the remedy."""
    with pytest.raises(DataError, match=r"101 clients .* has 100 and 100: use fewer clients"):
        split(dataset(), scheme, 101, 0)


def test_partition_is_the_same_for_the_same_seed() -> None:
    """And another one for another seed."""
    data = dataset()
    one, same, other = (split(data, "classes=2", 5, seed) for seed in (3, 3, 4))

    def flat(shares: list[Share]) -> list[list[int]]:
        return [share.train.tolist() for share in shares]

    assert flat(one) == flat(same) != flat(other)


def dataset(writers: NDArray[np.int64] | None = None) -> Dataset:
    """Return 100 samples of 4 classes."""
    samples = TensorSamples(torch.zeros(100, 1), torch.arange(100) % 4)
    return Dataset("small", samples, samples, classes=4, input_shape=(1,), writers=writers)


@pytest.mark.parametrize("scheme", ["classes=3", "dirichlet=0.5", "iid"])
def test_schemes(scheme: str) -> None:
    """Each scheme gives every client something."""
    assert all(len(s.train) and len(s.test) for s in split(dataset(), scheme, 5, 0))


def test_scheme_by_writer() -> None:
    """Training and test samples of a pool do not overlap."""
    shares = split(dataset(np.arange(100) // 10), "writers=2", 5, 0)
    check_all_dealt([np.concatenate([s.train, s.test]) for s in shares], 100)
    assert {len(s.train) for s in shares} == {18}


@pytest.mark.parametrize("scheme", ["classes", "classes=x", "classes=1.5", "dirichlet=", "iid=3", "shards=2", ""])
def test_unknown_scheme(scheme: str) -> None:
    """The error lists the schemes."""
    with pytest.raises(InvalidValueError, match="must be classes=N, dirichlet=ALPHA, writers=N, people=N or iid"):
        parsed(scheme)


@pytest.mark.parametrize(
    ("scheme", "message"),
    [
        ("classes=0", "classes per client .* at least 1, got 0"),
        ("writers=-2", "writers per client .* at least 1, got -2"),
        ("dirichlet=0", "alpha .* above 0 and finite, got 0"),
        ("dirichlet=-1", "alpha .* above 0 and finite, got -1"),
        ("dirichlet=nan", "alpha .* above 0 and finite, got nan"),
        ("dirichlet=inf", "alpha .* above 0 and finite, got inf"),
    ],
)
def test_numbers_of_a_scheme_are_checked_without_data(scheme: str, message: str) -> None:
    """So that an experiment file reports them among its other errors."""
    with pytest.raises(InvalidValueError, match=message):
        parsed(scheme)


def test_scheme_that_does_not_fit_the_data() -> None:
    """A pool must not be partitioned by class, nor data without writers by writer."""
    with pytest.raises(DataError, match="training samples into the test data"):
        split(dataset(np.arange(100)), "classes=2", 5, 0)
    with pytest.raises(DataError, match="writers of 'small' are not known"):
        split(dataset(), "writers=2", 5, 0)
    with pytest.raises(DataError, match="need 300 writers but the data has 10"):
        split(dataset(np.arange(100) // 10), "writers=60", 5, 0)


@pytest.mark.parametrize(("classes", "clients", "each"), [(10, 10, 10), (4, 4, 3), (10, 10, 9)])
def test_nearly_all_classes_per_client(classes: int, clients: int, each: int) -> None:
    """The partition comes to an end although most exchanges of classes are not allowed."""
    labels = np.repeat(np.arange(classes), 40)
    for seed in range(4):
        shares = by_classes(labels, labels, clients, each, generator(seed, "partition"))
        assert [len(np.unique(labels[share.train])) for share in shares] == [each] * clients
        owners = np.bincount(np.concatenate([np.unique(labels[share.train]) for share in shares]))
        assert owners.max() - owners.min() <= 1


def test_by_person_keeps_the_split() -> None:
    """A client has all training and all test samples of its people, and shares none of them."""
    train, test = np.repeat([3, 5, 8, 9], [4, 2, 3, 1]), np.repeat([3, 5, 8, 9], [1, 2, 2, 5])
    shares = by_person(train, test, 2, 2, generator(0, "partition"))
    check_all_dealt([share.train for share in shares], len(train))
    check_all_dealt([share.test for share in shares], len(test))
    for share in shares:
        assert set(train[share.train]) == set(test[share.test])
        assert len(set(train[share.train])) == 2
    with pytest.raises(DataError, match="3 clients with 2 people each need 6 people but the data has 4"):
        by_person(train, test, 3, 2, generator(0, "partition"))


def test_people_must_be_known() -> None:
    samples = TensorSamples(torch.zeros(6, 1), torch.arange(6) % 2)
    people = np.repeat([1, 2, 3], 2), np.repeat([3, 2, 1], 2)
    known = Dataset("known", samples, samples, 2, (1,), people=people)
    shares = split(known, "people=1", 3, 0)
    assert sorted(tuple(share.train) for share in shares) == [(0, 1), (2, 3), (4, 5)]
    assert all(people[0][share.train[0]] == people[1][share.test[0]] for share in shares)
    with pytest.raises(DataError, match="people of 'unknown' are not known"):
        split(Dataset("unknown", samples, samples, 2, (1,)), "people=1", 3, 0)
