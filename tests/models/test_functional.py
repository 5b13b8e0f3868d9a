"""The order of memory in which a network computes."""

from typing import cast

import torch
from torch import Tensor, nn

from quped.models import FunctionalNetwork


class Viewing(nn.Module):
    """A convolution whose output is flattened by view(), which needs the usual order of memory."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.Linear(4 * 6 * 6, 5)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits."""
        features = self.norm(self.conv(images))
        logits: Tensor = self.head(features.view(len(images), -1))
        return logits


def test_a_network_may_flatten_with_view() -> None:
    """Channels go last where a network allows it; where not, the pass is as it was, statistics included."""
    torch.manual_seed(0)
    module, images = Viewing(), torch.randn(4, 3, 8, 8)
    network = FunctionalNetwork(module)
    for _ in range(2):
        logits, buffers = network(*network.initial, (images,), train=True)
    assert torch.equal(logits, module.train()(images))
    assert torch.equal(buffers["norm.running_mean"], cast(Tensor, module.norm.running_mean))
    assert int(buffers["norm.num_batches_tracked"]) == 1


def test_channels_last_are_the_same_up_to_rounding() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(72, 5))
    images = torch.randn(4, 3, 8, 8)
    network = FunctionalNetwork(module)
    logits, _ = network(*network.initial, (images,), train=True)
    torch.testing.assert_close(logits, module.train()(images))
