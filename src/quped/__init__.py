"""quped: federated learning in which every device gets its own, compressed model.

>>> from quped import Client, Federation, QuPeD
"""

from quped.admission import Client
from quped.algorithms import FML, FedAvg, Local, PerFedAvg, PFedMe, Quantization, QuPeD, QuPeL
from quped.errors import InterruptedRunError, QupedError
from quped.federation import Federation
from quped.fit import Evaluation, Fit, Progress
from quped.quant import Linear

__all__ = [
    "FML",
    "Client",
    "Evaluation",
    "FedAvg",
    "Federation",
    "Fit",
    "InterruptedRunError",
    "Linear",
    "Local",
    "PFedMe",
    "PerFedAvg",
    "Progress",
    "QuPeD",
    "QuPeL",
    "Quantization",
    "QupedError",
]
