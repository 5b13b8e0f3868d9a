"""Networks as they come out of training: few values, BatchNorm with statistics of its own."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from quped._rng import torch_seeded
from quped.export import PackedModel
from quped.models import quantizable
from quped.quant import Codebook, nearest, place

Widths = Mapping[str, tuple[int, bool]]
"""For parameters their bits, and whether each channel has its own centers."""


def quantized(module: nn.Module, widths: Widths | int) -> PackedModel:
    """Round weights of a network to a few quantiles of theirs, in place; return its packed model."""
    if isinstance(widths, int):
        widths = dict.fromkeys(quantizable(module), (widths, False))
    params = dict(module.eval().named_parameters())
    books = {}
    for name, (bits, per_channel) in widths.items():
        weight = params[name].detach()
        rows = weight.reshape(len(weight) if per_channel else 1, -1)
        shares = (torch.arange(2**bits) + 0.5) / 2**bits
        centers = torch.quantile(rows, shares, dim=1).T.contiguous()
        books[name] = Codebook(centers, nearest(weight, centers))
        with torch.no_grad():
            params[name].copy_(place(*books[name], weight.shape))
    return PackedModel.of(module, books)


def settled(module: nn.Module, *inputs: Tensor) -> nn.Module:
    """Give the BatchNorm layers of a network statistics and weights that are not those of its beginning."""
    with torch_seeded(1, "norms"), torch.no_grad():
        for part in module.modules():
            if isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d) and part.affine:
                part.weight.uniform_(-1, 2)
                part.bias.normal_()
        module.train()(*inputs)
    return module.eval()
