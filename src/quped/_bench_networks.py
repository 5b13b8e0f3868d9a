"""The networks of the benchmark of engines, for images of 3x32x32, as one writes them down in PyTorch."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from quped.models import cnn1


def plain_cnn1() -> nn.Sequential:
    """Return CNN1 from PyTorch's own layers."""
    return nn.Sequential(
        nn.Conv2d(3, 6, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(400, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, 10),
    )


def batchnorm_cnn() -> nn.Sequential:
    """Return three convolutions with BatchNorm, of 16, 32 and 32 channels."""
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 16), (16, 32), (32, 32)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(32 * 4 * 4, 10))


def depthwise_cnn() -> nn.Sequential:
    """Return a CNN of depthwise-separable convolutions, as for phones."""
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.ReLU()]
    for inputs, outputs, stride in ((16, 32, 1), (32, 64, 2), (64, 64, 1)):
        layers += [
            nn.Conv2d(inputs, inputs, 3, stride=stride, padding=1, groups=inputs, bias=False),
            nn.BatchNorm2d(inputs),
            nn.ReLU(),
            nn.Conv2d(inputs, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
        ]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def plain_mlp() -> nn.Sequential:
    """Return an MLP with two hidden layers of 64."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(3072, 64),
        nn.ReLU(),
        nn.Linear(64, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


class Transformer(nn.Module):
    """A vision transformer of 2 layers of width 48, on 4x4 pixels at a time."""

    def __init__(self, width: int = 48, layers: int = 2) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, stride=4)
        self.positions = nn.Parameter(torch.zeros(64, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers)
        self.head = nn.Linear(width, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits."""
        tokens = self.patches(images).flatten(2).transpose(1, 2) + self.positions
        logits: Tensor = self.head(self.encoder(tokens).mean(1))
        return logits


NETWORKS: Mapping[str, Callable[[], nn.Module]] = {
    "cnn1": plain_cnn1,
    "batchnorm": batchnorm_cnn,
    "depthwise": depthwise_cnn,
    "mlp": plain_mlp,
    "transformer": Transformer,
}
"""By the names of `quped bench engine --network`."""


def ours(name: str) -> nn.Module:
    """Return a network as our engines get it: CNN1 from our own layers, any other as it was written down."""
    return cnn1((3, 32, 32), 10) if name == "cnn1" else NETWORKS[name]()
