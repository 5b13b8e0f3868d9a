"""A multi-layer perceptron."""

import math
from collections.abc import Sequence

from torch import Tensor, nn

from quped.models.cnn import fully_connected


class MLP(nn.Module):
    """Flatten, then fully connected layers with ReLU. Two hidden layers give one quantized matrix between them."""

    name = "mlp"

    def __init__(self, input_shape: Sequence[int], classes: int, hidden: Sequence[int] = (128, 64)) -> None:
        """Build the layers for inputs of any shape."""
        super().__init__()
        self.layers = fully_connected([math.prod(input_shape), *hidden, classes])

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits."""
        logits: Tensor = self.layers(inputs.flatten(1))
        return logits


def mlp(input_shape: Sequence[int], classes: int, hidden: Sequence[int] = (128, 64)) -> MLP:
    """MLP with the given hidden widths."""
    return MLP(input_shape, classes, hidden)
