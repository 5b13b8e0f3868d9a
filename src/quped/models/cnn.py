"""The paper's CNN1 and CNN2.

The paper gives two convolutional and three fully connected layers (CNN1) and one more convolution with 32 filters
(CNN2), but not the widths; those of LeNet fit the description and its accuracies (docs/paper/method.md).
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import cast

from torch import Tensor, nn

from quped._native import conv_pool
from quped.errors import NetworkError

KERNEL = 5
SMALL_SIDE = 16
"""Images smaller than this are padded, so that two 5x5 convolutions with pooling fit."""


class ConvPool(nn.Module):
    """A convolution, 2x2 max pooling and ReLU, computed as one operation."""

    def __init__(self, channels: int, filters: int, kernel: int, padding: int = 0) -> None:
        """Take the weights of an ordinary convolution."""
        super().__init__()
        conv = nn.Conv2d(channels, filters, kernel)
        self.weight = conv.weight
        self.bias = cast(nn.Parameter, conv.bias)
        self.padding = padding

    def forward(self, images: Tensor) -> Tensor:
        """Return the pooled features."""
        return conv_pool(images, self.weight, self.bias, self.padding)


class CNN(nn.Module):
    """Convolutions 5x5 with ReLU, the first two followed by 2x2 max pooling, then fully connected layers.

    `convs` and `hidden` are the widths of both parts. Convolutions after the second keep the image's size.
    """

    def __init__(
        self, name: str, input_shape: Sequence[int], classes: int, convs: Sequence[int], hidden: Sequence[int]
    ) -> None:
        """Build the layers for images of `input_shape` (channels, height, width)."""
        super().__init__()
        self.name = name
        if len(input_shape) != 3:
            raise NetworkError(f"The network {name} takes images, not inputs of shape {tuple(input_shape)}.")
        channels, height, width = input_shape
        layers: list[nn.Module] = []
        for i, filters in enumerate(convs):
            pools = i < 2
            padding = KERNEL // 2 if not pools or min(input_shape[1:]) < SMALL_SIDE else 0
            height, width = (side + 2 * padding - KERNEL + 1 for side in (height, width))
            if pools:
                layers.append(ConvPool(channels, filters, KERNEL, padding))
                height, width = height // 2, width // 2
            else:
                layers += [nn.Conv2d(channels, filters, KERNEL, padding=padding), nn.ReLU()]
            channels = filters
        if min(height, width) < 1:
            raise NetworkError(f"Images of {tuple(input_shape)} are too small for {len(convs)} convolutions of 5x5.")
        self.features = nn.Sequential(*layers, nn.Flatten())
        self.classifier = fully_connected([channels * height * width, *hidden, classes])

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits."""
        logits: Tensor = self.classifier(self.features(images))
        return logits


def fully_connected(widths: Sequence[int]) -> nn.Sequential:
    """Linear layers through `widths` with ReLU between them."""
    layers: list[nn.Module] = []
    for i, (fan_in, fan_out) in enumerate(pairwise(widths)):
        layers += ([nn.ReLU()] if i else []) + [nn.Linear(fan_in, fan_out)]
    return nn.Sequential(*layers)


def cnn1(input_shape: Sequence[int], classes: int, width: float = 1.0) -> CNN:
    """CNN1: conv 6 and 16, fully connected 120 and 84; `width` scales all of them."""
    return CNN("cnn1", input_shape, classes, scaled((6, 16), width), scaled((120, 84), width))


def cnn2(input_shape: Sequence[int], classes: int, width: float = 1.0) -> CNN:
    """CNN2: CNN1 with a third convolution of 32 filters."""
    return CNN("cnn2", input_shape, classes, scaled((6, 16, 32), width), scaled((120, 84), width))


def scaled(widths: Sequence[int], factor: float) -> list[int]:
    """Scale layer widths, each at least 1."""
    return [max(1, round(w * factor)) for w in widths]
