"""Networks, and which of their tensors are quantized."""

from quped.models.cnn import CNN, cnn1, cnn2
from quped.models.mlp import MLP, mlp
from quped.models.network import FunctionalNetwork, quantizable
from quped.models.resnet import ResNet, resnet
from quped.models.text import TextClassifier, text

__all__ = [
    "CNN",
    "MLP",
    "FunctionalNetwork",
    "ResNet",
    "TextClassifier",
    "cnn1",
    "cnn2",
    "mlp",
    "quantizable",
    "resnet",
    "text",
]
