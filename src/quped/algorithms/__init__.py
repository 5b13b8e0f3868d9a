"""The algorithms: one file each, pure, under one interface.

FedProto (Tan et al., 2022) is not among them. It needs the features before the last layer, and a network here returns
logits only; it averages each class over the clients that have it, and a server here takes the mean of all payloads; it
predicts by the nearest prototype, and a client here deploys weights. Methods for different networks are FML and QuPeD.
"""

from quped.algorithms._algorithm1 import Learner
from quped.algorithms._sgd import SGD
from quped.algorithms.base import AnyAlgorithm, ClientSpec, Deployed, Empty, Global, GlobalNetwork
from quped.algorithms.ditto import Ditto
from quped.algorithms.fedavg import FedAvg
from quped.algorithms.fedavgft import FedAvgFT
from quped.algorithms.fedrep import FedRep
from quped.algorithms.fml import FML
from quped.algorithms.local import Local
from quped.algorithms.perfedavg import PerFedAvg
from quped.algorithms.pfedme import PFedMe
from quped.algorithms.quantization import Quantization
from quped.algorithms.quped import QuPeD
from quped.algorithms.qupedplus import QuPeDPlus
from quped.algorithms.qupel import QuPeL
from quped.quant import FULL_PRECISION

AlgorithmClass = (
    type[Local]
    | type[FedAvg]
    | type[FedAvgFT]
    | type[FedRep]
    | type[Ditto]
    | type[PFedMe]
    | type[PerFedAvg]
    | type[FML]
    | type[QuPeL]
    | type[QuPeD]
    | type[QuPeDPlus]
)

_ALL: tuple[AlgorithmClass, ...] = (
    Local,
    FedAvg,
    FedAvgFT,
    FedRep,
    Ditto,
    PFedMe,
    PerFedAvg,
    FML,
    QuPeL,
    QuPeD,
    QuPeDPlus,
)
ALGORITHMS: dict[str, AlgorithmClass] = {algorithm.name: algorithm for algorithm in _ALL}
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
    "Ditto",
    "Empty",
    "FedAvg",
    "FedAvgFT",
    "FedRep",
    "Global",
    "GlobalNetwork",
    "Learner",
    "Local",
    "PFedMe",
    "PerFedAvg",
    "QuPeD",
    "QuPeDPlus",
    "QuPeL",
    "Quantization",
]
