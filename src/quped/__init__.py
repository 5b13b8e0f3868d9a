"""quped: personalized federated learning with learned low-bit weights.

>>> from quped import Client, Federation, QuPeD
"""

from quped.algorithms import FML, FedAvg, Local, PerFedAvg, PFedMe, Quantization, QuPeD, QuPeL
from quped.client import Client
from quped.errors import InterruptedRunError, QupedError
from quped.federation import Federation
from quped.quant import LinearSchedule
from quped.result import ClientResult, Evaluation, FitResult
from quped.simulation import Observer, Round, TrainingOptions

__all__ = [
    "FML",
    "Client",
    "ClientResult",
    "Evaluation",
    "FedAvg",
    "Federation",
    "FitResult",
    "InterruptedRunError",
    "LinearSchedule",
    "Local",
    "Observer",
    "PFedMe",
    "PerFedAvg",
    "QuPeD",
    "QuPeL",
    "Quantization",
    "QupedError",
    "Round",
    "TrainingOptions",
]
