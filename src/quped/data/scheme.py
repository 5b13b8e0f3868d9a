"""A partition in one word: `classes=4`, `dirichlet=0.3`, `writers=3` or `iid`."""

from collections.abc import Callable

from quped.data.partition import Share, by_classes, by_dirichlet, by_writer, iid
from quped.data.samples import Dataset
from quped.errors import DataError, InvalidValueError
from quped.rng import generator

TEST_FRACTION = 0.1
"""The part of each writer's samples that a partition by writer keeps for testing."""

NUMBERS: dict[str, Callable[[str], float]] = {"classes": int, "dirichlet": float, "writers": int}


def split(dataset: Dataset, scheme: str, clients: int, seed: int) -> list[Share]:
    """Partition a data set among clients as the scheme says, at random from the seed."""
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
    raise DataError(f"The writers of '{dataset.name}' are not known: use classes=N, dirichlet=ALPHA or iid.")


def parsed(scheme: str) -> tuple[str, float]:
    """Read a scheme as its kind and its number (0 for iid, which has none)."""
    if scheme == "iid":
        return scheme, 0
    kind, _, number = scheme.partition("=")
    try:
        return kind, NUMBERS[kind](number)
    except (KeyError, ValueError):
        raise InvalidValueError(
            f"The partition must be classes=N, dirichlet=ALPHA, writers=N or iid, got {scheme!r}."
        ) from None
