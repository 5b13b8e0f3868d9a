"""BatchNorm statistics for the weights that a network has now."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from quped.errors import DataError, NetworkError
from quped.optim._network import clones, write

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


@torch.no_grad()
def recalibrate(model: nn.Module, inputs: Iterable[Tensor | Sequence[Tensor]]) -> None:
    """Compute the BatchNorm statistics again: the mean over these batches, with the present weights.

    Use it after `harden`, or within `quantized()`, where the statistics last for the block only. Everything but
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
