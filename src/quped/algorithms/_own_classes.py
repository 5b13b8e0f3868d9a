"""A client's class prior: the classes in its training data, as far as its batches have shown them.

A model that may only choose among them makes no mistake with the others. The prior acts on logits while a model learns.
In a deployed model it is part of the bias of the last layer, so every file and every export carries it.
"""

import torch
from torch import Tensor

from quped.algorithms.base import ClientSpec, Deployed
from quped.errors import InvalidValueError

ABSENT = -1e4
"""Added to the logit of a class that the client does not have: its probability is 0 in any float type."""


def check_own_classes(spec: ClientSpec, network: str = "the network") -> None:
    """Raise if a network has no place for the prior."""
    if spec.logit_bias is None:
        raise InvalidValueError(
            "A model that chooses among its client's own classes needs a last layer with a bias for each class, and "
            f"{network} has none: add the bias, or pass own_classes=False."
        )


def none_seen(spec: ClientSpec) -> Tensor:
    """Return which classes a client has seen before its first batch."""
    check_own_classes(spec)
    return torch.zeros(len(spec.initial.params[str(spec.logit_bias)]), dtype=torch.bool)


def see(seen: Tensor, labels: Tensor) -> Tensor:
    """Return which classes a client has seen after one more batch."""
    return seen.scatter(0, labels, True)


def class_prior(seen: Tensor) -> Tensor:
    """Return what is added to the logits."""
    return torch.where(seen, 0.0, ABSENT)


def restrict(model: Deployed, spec: ClientSpec, seen: Tensor) -> Deployed:
    """Return the model with the prior in its last layer; a client that has seen no class yet may choose any."""
    check_own_classes(spec)
    bias = str(spec.logit_bias)
    value = model.state.params[bias]
    known = seen | ~seen.any()
    params = model.state.params | {bias: torch.where(known, value, torch.full_like(value, ABSENT))}
    return model._replace(state=model.state._replace(params=params))
