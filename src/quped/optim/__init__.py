"""Algorithm 1 of the paper for one network on one machine: a wrapper around a PyTorch optimizer, and its peers.

>>> from quped import LinearSchedule
>>> from quped.optim import CenterQuant, quantizable
>>> adam = torch.optim.Adam(model.parameters(), lr=1e-2)
>>> opt = CenterQuant(adam, quantizable(model), bits=1, lam=LinearSchedule(1e-4))
>>> for opt.epoch in range(1, 201):
...     for x, y in loader:
...         loss = opt.step(lambda: cross_entropy(model(x), y))
>>> opt.harden(model)

Learning-rate schedulers take the base optimizer, here the Adam. Its parameter groups are also `opt.param_groups`.
"""

from quped.optim._guards import Closure
from quped.optim.base import QuantizedOptimizer, Schedule
from quped.optim.binary_relax import BinaryRelax, geometric
from quped.optim.center_quant import CenterQuant
from quped.optim.kmeans import KMeans
from quped.optim.prox_quant import ProxQuant
from quped.optim.recalibrate import recalibrate
from quped.optim.selection import Group, GroupSpec, Selection, quantizable
from quped.optim.straight_centers import StraightCenters
from quped.optim.straight_through import StraightThrough

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
    "StraightCenters",
    "StraightThrough",
    "geometric",
    "quantizable",
    "recalibrate",
]
