"""One SGD step on the cross-entropy, of a whole network or of a part of it."""

from collections.abc import Collection

from torch import Tensor

from quped.algorithms._autodiff import cross_entropy_gradient
from quped.algorithms._sgd import SGD
from quped.typing import Batch, ModelState, Network, Params


def sgd_step(
    sgd: SGD,
    network: Network,
    model: ModelState,
    velocity: Params,
    batch: Batch,
    lr: float,
    names: Collection[str] | None = None,
) -> tuple[ModelState, Params, Tensor]:
    """Step the named parameters, by default all, along -grad f; return the model, the velocity, and the loss before.

    The others stay as they are, weight decay and velocity included. Buffers are those after the pass.
    """
    grads, loss, buffers = cross_entropy_gradient(network, model, batch, names)
    moved, faster = sgd.step({k: model.params[k] for k in grads}, grads, velocity, lr)
    return ModelState(model.params | moved, buffers), velocity | faster, loss
