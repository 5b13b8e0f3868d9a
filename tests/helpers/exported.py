"""Networks whose weights hold few values, as they come out of training, and what is known of them."""

import torch
from torch import Tensor, nn

from quped._rng import torch_seeded
from quped.models import quantizable
from quped.quant import Codebook, nearest, place


def quantized(
    module: nn.Module, bits: int, *, per_channel: bool = False, names: tuple[str, ...] = ()
) -> dict[str, Codebook]:
    """Round a network's weights, or those of these names, to quantiles of theirs; return their codebooks."""
    params = dict(module.eval().named_parameters())
    books = {}
    for name in names or quantizable(module):
        weight = params[name].detach()
        rows = weight.reshape(len(weight) if per_channel else 1, -1)
        shares = (torch.arange(2**bits) + 0.5) / 2**bits
        centers = torch.quantile(rows, shares, dim=1).T.contiguous()
        indices = nearest(weight, centers)
        with torch.no_grad():
            params[name].copy_(place(centers, indices, weight.shape))
        books[name] = Codebook(centers, indices.to(torch.uint8))
    return books


def settled(module: nn.Module, *inputs: Tensor) -> nn.Module:
    """Give the BatchNorm layers of a network statistics and weights that are not those of its beginning."""
    with torch_seeded(1, "norms"), torch.no_grad():
        for part in module.modules():
            if isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d) and part.affine:
                part.weight.uniform_(-1, 2)
                part.bias.normal_()
        module.train()(*inputs)
    return module.eval()
