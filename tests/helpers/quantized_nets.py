"""A network with all kinds of tensors, quantized at random."""

import torch
from torch import Tensor, nn

from quped.quant import Codebook, place


class Everything(nn.Module):
    """A convolution, BatchNorm with its counter, tied weights, a frozen layer, and buffers of several types."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 5, 3)
        self.norm = nn.BatchNorm2d(5)
        self.middle = nn.Linear(5, 5, bias=False)
        self.twin = nn.Linear(5, 5)
        self.twin.weight = self.middle.weight
        self.frozen = nn.Linear(5, 3).requires_grad_(False)
        self.register_buffer("mask", torch.tensor([True, False, True]))
        self.register_buffer("exact", torch.tensor([0.5, -0.0]).double())
        self.register_buffer("scratch", torch.zeros(7), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        features = self.norm(self.conv(images)).amax((2, 3))
        scores: Tensor = self.frozen(self.twin(torch.relu(self.middle(features))))
        return scores


def quantize_at_random(
    module: nn.Module, centers: dict[str, int], *, per_channel: bool, seed: int
) -> dict[str, Codebook]:
    """Give parameters that many random values, in place, and return their codebooks.

    With an odd seed both zeros are among them.
    """
    rng = torch.Generator().manual_seed(seed)
    books = {}
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=rng))
        for name, m in centers.items():
            weight = module.get_parameter(name)
            groups = len(weight) if per_channel else 1
            rows = torch.randn(groups, m, generator=rng).sort(1).values
            if seed % 2:  # the two smallest become the two zeros
                rows = (rows - rows[:, :2].amax(1, keepdim=True)).clamp_min(0)
                rows[:, 0] = -0.0
            indices = torch.randint(m, (groups, weight.numel() // groups), generator=rng, dtype=torch.uint8)
            books[name] = Codebook(rows, indices)
            weight.copy_(place(*books[name], weight.shape))
    return books


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Say whether two tensors agree in dtype, shape and every bit."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return bool((a.detach().reshape(-1).view(torch.uint8) == b.detach().reshape(-1).view(torch.uint8)).all())


def same_states(a: nn.Module, b: nn.Module) -> bool:
    """Say whether two modules hold the same tensors, bit for bit."""
    left, right = a.state_dict(), b.state_dict()
    return left.keys() == right.keys() and all(same_bits(left[name], right[name]) for name in left)
