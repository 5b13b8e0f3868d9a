"""ResNet for 32x32 images: He et al., Deep Residual Learning for Image Recognition, 2016, section 4.2.

Parameter names and the parameter-free shortcuts (subsample, pad with zero channels) are those of the usual CIFAR
checkpoints, so that these load.
"""

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional

from quped.errors import check


class Block(nn.Module):
    """Two 3x3 convolutions with BatchNorm and a shortcut without parameters."""

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        """Build the block; `stride` halves the image where channels double."""
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels_out, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels_out)
        self.conv2 = nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels_out)
        self.stride = stride
        self.extra = channels_out - channels_in

    def forward(self, images: Tensor) -> Tensor:
        """Return relu(block(images) + shortcut(images))."""
        out = functional.relu(self.bn1(self.conv1(images)))
        out = self.bn2(self.conv2(out))
        shortcut = images[:, :, :: self.stride, :: self.stride]
        before = self.extra // 2
        return functional.relu(out + functional.pad(shortcut, (0, 0, 0, 0, before, self.extra - before)))


class ResNet(nn.Module):
    """Three stages of `blocks` blocks with 16, 32 and 64 channels: depth 6 * blocks + 2."""

    def __init__(self, blocks: int, channels: int = 3, classes: int = 10) -> None:
        """Build the network."""
        super().__init__()
        self.name = f"resnet{6 * blocks + 2}"
        self.conv1 = nn.Conv2d(channels, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = stage(16, 16, blocks, stride=1)
        self.layer2 = stage(16, 32, blocks, stride=2)
        self.layer3 = stage(32, 64, blocks, stride=2)
        self.linear = nn.Linear(64, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(module.weight)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits."""
        out = functional.relu(self.bn1(self.conv1(images)))
        out = self.layer3(self.layer2(self.layer1(out)))
        logits: Tensor = self.linear(out.mean((2, 3)))
        return logits


def stage(channels_in: int, channels_out: int, blocks: int, stride: int) -> nn.Sequential:
    """Blocks of one width; the first one changes width and size."""
    rest = [Block(channels_out, channels_out, 1) for _ in range(blocks - 1)]
    return nn.Sequential(Block(channels_in, channels_out, stride), *rest)


def resnet(input_shape: Sequence[int], classes: int, depth: int = 20) -> ResNet:
    """ResNet of a depth 6n + 2: 8, 20, 32, 44, 56."""
    check(depth >= 8 and depth % 6 == 2, "depth of a ResNet", "6n + 2: 8, 20, 32, ...", depth)
    return ResNet((depth - 2) // 6, input_shape[0], classes)
