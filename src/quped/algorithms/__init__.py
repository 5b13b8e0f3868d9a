"""The algorithms: one file each, pure, under one interface."""

from quped.algorithms._sgd import SGD
from quped.algorithms.base import AnyAlgorithm, ClientSpec, Deployed, Empty, Global, GlobalNetwork
from quped.algorithms.fedavg import FedAvg
from quped.algorithms.fml import FML
from quped.algorithms.local import Local
from quped.algorithms.perfedavg import PerFedAvg
from quped.algorithms.pfedme import PFedMe
from quped.algorithms.quantization import Quantization
from quped.algorithms.quped import QuPeD
from quped.algorithms.qupel import QuPeL
from quped.quant import FULL_PRECISION

AlgorithmClass = type[Local] | type[FedAvg] | type[PFedMe] | type[PerFedAvg] | type[FML] | type[QuPeL] | type[QuPeD]

ALGORITHMS: dict[str, AlgorithmClass] = {a.name: a for a in (Local, FedAvg, PFedMe, PerFedAvg, FML, QuPeL, QuPeD)}
"""Every algorithm by its name."""

__all__ = [
    "ALGORITHMS",
    "FML",
    "FULL_PRECISION",
    "SGD",
    "AlgorithmClass",
    "AnyAlgorithm",
    "ClientSpec",
    "Deployed",
    "Empty",
    "FedAvg",
    "Global",
    "GlobalNetwork",
    "Local",
    "PFedMe",
    "PerFedAvg",
    "QuPeD",
    "QuPeL",
    "Quantization",
]
