"""A network for signals that fits a watch."""

from collections.abc import Sequence

from torch import Tensor, nn

from quped.errors import NetworkError
from quped.models.cnn import fully_connected, scaled

KERNEL = 5
FILTERS, HIDDEN = (16, 32, 32), (32,)


class CNN1D(nn.Module):
    """Three convolutions along time, each with ReLU and max pooling by 2, then fully connected layers.

    A signal is an image of one row, so that all that is made for images takes it. With 2 bits, the network for the
    windows of HAPT (6 channels, 128 times) takes about 10 kB.
    """

    name = "cnn1d"

    def __init__(self, input_shape: Sequence[int], classes: int, width: float = 1.0) -> None:
        """Build the layers for signals of `input_shape` (channels, 1, times); `width` scales all of them."""
        super().__init__()
        if len(input_shape) != 3 or input_shape[1] != 1:
            shape = tuple(input_shape)
            raise NetworkError(f"The network cnn1d takes signals [channels, 1, times], not inputs of shape {shape}.")
        channels, _, times = input_shape
        layers: list[nn.Module] = []
        for filters in scaled(FILTERS, width):
            layers += [
                nn.Conv2d(channels, filters, (1, KERNEL), padding=(0, KERNEL // 2)),
                nn.MaxPool2d((1, 2)),
                nn.ReLU(),
            ]
            channels, times = filters, times // 2
        if times < 1:
            raise NetworkError(f"Signals of {tuple(input_shape)} are too short for three poolings by 2.")
        self.features = nn.Sequential(*layers, nn.Flatten())
        self.classifier = fully_connected([channels * times, *scaled(HIDDEN, width), classes])

    def forward(self, signals: Tensor) -> Tensor:
        """Return the logits."""
        logits: Tensor = self.classifier(self.features(signals))
        return logits


def cnn1d(input_shape: Sequence[int], classes: int, width: float = 1.0) -> CNN1D:
    """CNN1D: convolutions with 16, 32 and 32 filters, fully connected 32; `width` scales all of them."""
    return CNN1D(input_shape, classes, width)
