"""A fleet of mixed devices with their own data: other networks, other bits, one shared model to learn from.

    python examples/fleet.py

Every device has recorded NumPy arrays. Put yours in place of `recorded`.
"""

import numpy as np
import torch
from torch import nn

from quped import Client, Federation, Local, Quantization, QuPeD

CLASSES, FEATURES = 4, 12
CENTERS = 1.6 * np.random.default_rng(0).normal(size=(CLASSES, FEATURES))


def recorded(device: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return sensor readings and their classes: each device measures with an offset of its own."""
    rng = np.random.default_rng([device, count])
    labels = rng.integers(0, CLASSES, count)
    offset = 0.5 * np.random.default_rng(device).normal(size=FEATURES)
    return CENTERS[labels] + offset + 1.6 * rng.normal(size=(count, FEATURES)), labels


def network(width: int) -> nn.Module:
    """Return a small network; wider ones are for stronger devices."""
    return nn.Sequential(
        nn.Linear(FEATURES, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, CLASSES)
    )


torch.manual_seed(0)
# Clients with the same module start from the same weights.
small, medium, large = network(16), network(32), network(64)
kinds = {
    "watch": {"model": small, "bits": 1, "end_bits": 8},
    "phone": {"model": medium, "budget": "2 kB"},  # the bits of each layer follow from the size of the file
    "laptop": {"model": large},  # full precision
}
clients = [
    Client(f"{kind}-{i}", train=recorded(3 * i + k, 50), test=recorded(3 * i + k, 300), **options)
    for k, (kind, options) in enumerate(kinds.items())
    for i in range(4)
]

straight = Quantization(straight_through=True)
together = Federation(clients, QuPeD(lambda_p=0.6, warmup_epochs=15, quantization=straight), global_model=small)
alone = Federation(clients, Local(quantization=straight))
ours, theirs = (federation.fit(epochs=30, local_steps=2, lr=0.2) for federation in (together, alone))

print(f"{'device':<10} {'accuracy':>9} {'alone':>7} {'file':>8} {'as float32':>11}")
for client in ours.clients:
    sizes = f"{client.bytes_file:>6} B {client.bytes_float32:>9} B"
    print(f"{client.name:<10} {client.accuracy:>9.1%} {theirs.accuracy[client.name]:>7.1%} {sizes}")
