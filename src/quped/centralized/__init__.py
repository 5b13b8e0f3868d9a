"""Algorithm 1 of the paper for one network on one machine: a wrapper around a PyTorch optimizer; and its peers.

>>> from quped.centralized import CenterQuant, linear, quantizable
>>> opt = CenterQuant(torch.optim.Adam(model.parameters(), lr=1e-2), quantizable(model), bits=1, lam=linear(1e-4))
>>> for opt.t in range(1, 201):
...     for x, y in loader:
...         loss = opt.step(lambda q: cross_entropy(model(x), y))
>>> opt.harden(model)

Learning-rate schedulers take the base optimizer, here the Adam; its parameter groups are `opt.param_groups`, too.
"""

from quped.centralized.base import Closure, QuantizedOptimizer, Schedule, linear
from quped.centralized.binary_relax import BinaryRelax, geometric
from quped.centralized.center_quant import CenterQuant
from quped.centralized.kmeans import KMeans
from quped.centralized.prox_quant import ProxQuant
from quped.centralized.selection import Group, GroupSpec, Selection, quantizable
from quped.centralized.statistics import recalibrate
from quped.centralized.straight_through import StraightThrough

__all__ = [
    "BinaryRelax",
    "CenterQuant",
    "Closure",
    "Group",
    "GroupSpec",
    "KMeans",
    "ProxQuant",
    "QuantizedOptimizer",
    "Schedule",
    "Selection",
    "StraightThrough",
    "geometric",
    "linear",
    "quantizable",
    "recalibrate",
]
