"""What the file of a client's model says."""

from typing import Any

import torch

from quped._rng import torch_seeded
from quped.algorithms import Deployed
from quped.data import Samples
from quped.export import PackedModel
from quped.models import FunctionalNetwork
from quped.simulation.setup import Setup, SimClient


def packed_model(setup: Setup, client: SimClient, model: Deployed, accuracy: float | None) -> PackedModel:
    """Return a client's model as its file holds it."""
    info = file_info(client.name, setup.algorithm.name, client.network, client.train, setup.seed)
    if accuracy is not None:
        info["accuracy"] = round(accuracy, 6)
    return PackedModel.of(client.network.module(model.state), model.codebooks, **info)


def file_info(name: str, method: str, network: FunctionalNetwork, samples: Samples, seed: int) -> dict[str, Any]:
    """Return what a file says of a client; of a network that can be built by its name, the file has this name."""
    info: dict[str, Any] = {"client": name, "method": method}
    if network.built_from is None:
        with torch_seeded(seed, "kind"), torch.no_grad():  # PyTorch data sets may be random
            inputs = samples.batch(torch.zeros(1, dtype=torch.long)).inputs
            logits, _ = network(*network.initial, inputs, train=False)
        info |= {"module": network.name, "classes": logits.shape[1]}
        if len(inputs) == 1:
            info["input_shape"] = list(inputs[0].shape[1:])
    return info
