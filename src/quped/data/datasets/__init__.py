"""Every data set by its name."""

from collections.abc import Callable

from quped.data.datasets.ag_news import AG_NEWS
from quped.data.datasets.cifar10 import CIFAR10
from quped.data.datasets.digits import digits
from quped.data.datasets.femnist import FEMNIST
from quped.data.datasets.mnist import FASHION_MNIST, MNIST
from quped.data.download.recipe import Recipe
from quped.data.samples import Dataset

RECIPES: dict[str, Recipe] = {recipe.name: recipe for recipe in (MNIST, FEMNIST, CIFAR10, AG_NEWS, FASHION_MNIST)}
"""Data sets that are fetched once and stored."""

DATASETS: dict[str, Callable[[], Dataset]] = {"digits": digits} | {name: r.load for name, r in RECIPES.items()}
"""All data sets: call one to load it."""
