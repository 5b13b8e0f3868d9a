"""Every data set by its name."""

from collections.abc import Callable

from quped.data.datasets import digits
from quped.data.datasets.ag_news import AG_NEWS
from quped.data.datasets.audiomnist import AUDIOMNIST
from quped.data.datasets.cifar10 import CIFAR10
from quped.data.datasets.femnist import FEMNIST
from quped.data.datasets.hapt import HAPT
from quped.data.datasets.mnist import FASHION_MNIST, MNIST
from quped.data.download.remote import RemoteDataset
from quped.data.samples import Dataset
from quped.errors import InvalidValueError, did_you_mean

REMOTE: dict[str, RemoteDataset] = {
    d.name: d for d in (MNIST, FEMNIST, CIFAR10, AG_NEWS, FASHION_MNIST, HAPT, AUDIOMNIST)
}
"""Data sets that are fetched once and stored."""

DATASETS: dict[str, Callable[[], Dataset]] = {"digits": digits.digits} | {name: d.load for name, d in REMOTE.items()}
"""All data sets: call one to load it."""


def dataset_name(name: str) -> str:
    """Return the name under which a data set is listed; a user may write `ag-news` for `ag_news`."""
    listed = name.replace("-", "_")
    if listed not in DATASETS:
        raise InvalidValueError(f"There is no data set '{name}'. {did_you_mean(name, DATASETS)}")
    return listed
