"""How large packed files are, beside their information and beside float32."""

import copy
from collections.abc import Iterable, Iterator

import torch
from torch import nn
from torch.nn import functional

from quped._rng import generator, torch_seeded
from quped.data import Dataset
from quped.data.datasets.digits import digits
from quped.export import PackedModel, to_bytes
from quped.models import build, quantizable
from quped.quant import Codebook, initial_centers, nearest, place

NETWORKS = {"cnn1": 0.0, "mlp": 0.0, "resnet20": 3.0}
"""With their weight decay: in a deep network it lets the weights forget their random start as in long training."""
STEPS, BATCH_SIZE, LR = 100, 64, 0.01


def measure_files(networks: Iterable[str] = NETWORKS) -> dict[str, dict[str, int]]:
    """Return, for each case, the bytes of the file, of the information in it, and of the network in float32."""
    data = digits()
    sizes = {}
    for name in networks:
        network = trained(name, data)
        for bits in (1, 2):
            for per_channel in (False, True):
                model = quantized(network, bits, per_channel)
                case = f"{name}-{bits}bit-{'channel' if per_channel else 'layer'}"
                sizes[case] = {"file": len(to_bytes(model)), "floor": model.floor, "float32": model.float_bytes}
    return sizes


def trained(name: str, data: Dataset) -> nn.Module:
    """Return a network after a little training on handwritten digits."""
    with torch_seeded(0, "files", name):
        network = build(name, data.input_shape, data.classes).train()
        optimizer = torch.optim.AdamW(network.parameters(), lr=LR, weight_decay=NETWORKS[name])
        for indices in batches(len(data.train)):
            batch = data.train.batch(indices)
            optimizer.zero_grad()
            torch.autograd.backward(functional.cross_entropy(network(*batch.inputs), batch.labels))
            optimizer.step()
    return network


def batches(samples: int) -> Iterator[torch.Tensor]:
    """Yield the indices of random batches."""
    rng = generator(0, "files")
    for _ in range(STEPS):
        yield torch.from_numpy(rng.choice(samples, BATCH_SIZE, replace=False))


def quantized(network: nn.Module, bits: int, per_channel: bool) -> PackedModel:
    """Return a network with its weights at the centers of k-means, with a client's information."""
    copied, books = copy.deepcopy(network), {}
    for name in quantizable(copied):
        weight = copied.get_parameter(name).detach()
        centers = initial_centers(weight, 2**bits, "kmeans", per_channel=per_channel)
        books[name] = Codebook(centers, nearest(weight, centers))
        weight.copy_(place(*books[name], weight.shape))
    return PackedModel.of(copied, books, client="client-00", method="quped", accuracy=0.912345)
