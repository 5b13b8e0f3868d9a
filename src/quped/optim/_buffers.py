"""What a network holds beside its weights: buffers, most of them BatchNorm statistics."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from quped.errors import DataError, NetworkError
from quped.typing import Params

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


def clones(tensors: Mapping[str, Tensor]) -> Params:
    """Return copies."""
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


@torch.no_grad()
def write(live: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
    """Put values into tensors of a network, in place."""
    for name, value in values.items():
        live[name].copy_(value)


@contextmanager
def holding(live: Callable[[], Mapping[str, Tensor]], values: Mapping[str, Tensor]) -> Iterator[None]:
    """Let tensors of a network hold other values within the block; afterwards all are what they were before.

    `live` finds them: a module may put new tensors in the place of its buffers while it runs.
    """
    before = clones(live())
    try:
        write(live(), values)
        yield
    finally:
        write(live(), before)


@torch.no_grad()
def recalibrate(model: nn.Module, inputs: Iterable[Tensor | Sequence[Tensor]]) -> None:
    """Compute the BatchNorm statistics anew: the mean over these batches, with the weights that the network has now.

    Of use after `harden`, or within `quantized()`, where the statistics last for the block only. Everything but
    BatchNorm, such as dropout, is in evaluation mode meanwhile.
    """
    norms = [m for m in model.modules() if isinstance(m, BATCH_NORMS) and m.track_running_stats]
    if not norms:
        raise NetworkError(f"{type(model).__name__} has no BatchNorm statistics: there is nothing to recalibrate.")
    training = {m: m.training for m in model.modules()}
    momentum = [m.momentum for m in norms]
    buffers = dict(model.named_buffers())
    before, batches = clones(buffers), 0
    try:
        model.eval()
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # PyTorch's word for the mean over all batches
            norm.train()
        for batch in inputs:
            model(*((batch,) if isinstance(batch, Tensor) else batch))
            batches += 1
        if batches == 0:
            raise DataError("There is no batch to compute the BatchNorm statistics from: give at least one.")
    except BaseException:
        write(buffers, before)
        raise
    finally:
        for norm, value in zip(norms, momentum, strict=True):
            norm.momentum = value
        for module, mode in training.items():
            module.training = mode
