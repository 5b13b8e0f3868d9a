"""quped: personalized federated learning with learned low-bit weights.

>>> from quped import Client, Federation, QuPeD
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quped._evaluate import Evaluation
    from quped.algorithms import (
        FML,
        Ditto,
        FedAvg,
        FedAvgFT,
        FedRep,
        Local,
        PerFedAvg,
        PFedMe,
        Quantization,
        QuPeD,
        QuPeDPlus,
        QuPeL,
    )
    from quped.client import Client
    from quped.errors import InterruptedRunError, QupedError
    from quped.export import load, save
    from quped.federation import Federation
    from quped.quant import LinearSchedule
    from quped.result import ClientResult, FitResult
    from quped.simulation import Observer, Round, TrainingOptions
    from quped.tuning import Trial, Tuning

_MODULES = {
    "quped._evaluate": ("Evaluation",),
    "quped.algorithms": (
        "FML",
        "Ditto",
        "FedAvg",
        "FedAvgFT",
        "FedRep",
        "Local",
        "PFedMe",
        "PerFedAvg",
        "QuPeD",
        "QuPeDPlus",
        "QuPeL",
        "Quantization",
    ),
    "quped.client": ("Client",),
    "quped.errors": ("InterruptedRunError", "QupedError"),
    "quped.export": ("load", "save"),
    "quped.federation": ("Federation",),
    "quped.quant": ("LinearSchedule",),
    "quped.result": ("ClientResult", "FitResult"),
    "quped.simulation": ("Observer", "Round", "TrainingOptions"),
    "quped.tuning": ("Trial", "Tuning"),
}

__all__ = [
    "FML",
    "Client",
    "ClientResult",
    "Ditto",
    "Evaluation",
    "FedAvg",
    "FedAvgFT",
    "FedRep",
    "Federation",
    "FitResult",
    "InterruptedRunError",
    "LinearSchedule",
    "Local",
    "Observer",
    "PFedMe",
    "PerFedAvg",
    "QuPeD",
    "QuPeDPlus",
    "QuPeL",
    "Quantization",
    "QupedError",
    "Round",
    "TrainingOptions",
    "Trial",
    "Tuning",
    "load",
    "save",
]


def __getattr__(name: str) -> object:
    """Import a public name when it is first used: PyTorch takes a second to load, and `quped --version` needs none."""
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module 'quped' has no attribute '{name}'")
