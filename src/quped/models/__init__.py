"""Networks, and which of their tensors are quantized."""

from quped.models.cnn import CNN, cnn1, cnn2
from quped.models.functional import FunctionalNetwork
from quped.models.mlp import MLP, mlp
from quped.models.registry import NETWORKS, build
from quped.models.resnet import ResNet, resnet
from quped.models.select import end_weights, quantizable
from quped.models.signal import CNN1D, cnn1d
from quped.models.text import TextClassifier, text

__all__ = [
    "CNN",
    "CNN1D",
    "MLP",
    "NETWORKS",
    "FunctionalNetwork",
    "ResNet",
    "TextClassifier",
    "build",
    "cnn1",
    "cnn1d",
    "cnn2",
    "end_weights",
    "mlp",
    "quantizable",
    "resnet",
    "text",
]
