"""Which parameters of a network are quantized."""

from torch import nn

from quped.errors import NetworkError, did_you_mean


def quantizable(module: nn.Module) -> tuple[str, ...]:
    """Name the tensors that are quantized unless a user says otherwise.

    A module may say so itself with an attribute `quantized`, a tuple of parameter names. Otherwise: every trainable
    weight with two or more dimensions (so no bias, no BatchNorm, no positions or tokens that are parameters themselves)
    but the first and the last, which the paper keeps in full precision, and what other weights are computed of
    (torch.nn.utils.parametrize). Frozen weights count, though they are not quantized. A tensor that several layers
    share is both the first and the last if it is the one's and the other's.
    """
    declared = getattr(module, "quantized", None)
    if isinstance(declared, str):
        kind = type(module).__name__
        raise NetworkError(f"The attribute 'quantized' of {kind} must be a tuple of parameter names: {declared!r}.")
    if isinstance(declared, list | tuple):  # anything else is the module's own affair
        return tuple(declared)
    weights = ordered_weights(module)
    return trainable(module, set(weights) - {*weights[:1], *weights[-1:]})


def end_weights(module: nn.Module) -> tuple[str, ...]:
    """Name the first and the last weight, if they could be quantized and by default are not."""
    weights = ordered_weights(module)
    ends = trainable(module, {*weights[:1], *weights[-1:]})
    return tuple(name for name in ends if name not in quantizable(module))


def ordered_weights(module: nn.Module) -> list[int]:
    """Return the ids of all weights with two or more dimensions, once for each layer that has them."""
    norms = {id(part.weight) for part in module.modules() if isinstance(part, nn.LayerNorm | nn.RMSNorm)}
    places = module.named_parameters(remove_duplicate=False)
    return [id(p) for name, p in places if "weight" in name and p.dim() >= 2 and id(p) not in norms]


def trainable(module: nn.Module, ids: set[int]) -> tuple[str, ...]:
    """Return the names of those parameters with these ids that are trained themselves, and have no row for padding."""
    rows = padded(module)
    own = ((k, p) for k, p in module.named_parameters() if "parametrizations." not in k and k not in rows)
    return tuple(k for k, p in own if id(p) in ids and p.requires_grad)


def last_layer(module: nn.Module) -> tuple[str, ...]:
    """Name the trainable parameters of the layer with the last weight: of a usual network its classifier, or head."""
    last = ordered_weights(module)[-1:]
    places = [(layer_of(name), id(p)) for name, p in module.named_parameters(remove_duplicate=False)]
    layers = [layer for layer, place in places if place in last]
    own = {place for layer, place in places if layer in layers[-1:]}
    return tuple(name for name, p in module.named_parameters() if id(p) in own and p.requires_grad)


def layer_of(name: str) -> str:
    """Return the name of the layer that has a parameter, also of one that is computed (torch.nn.utils.parametrize)."""
    layer, computed, _ = name.partition("parametrizations.")
    return layer.removesuffix(".") if computed else name.rpartition(".")[0]


def padded(module: nn.Module) -> set[str]:
    """Return the names of embeddings with a row of zeros for padding, which no center would keep."""
    parts = ((name, part) for name, part in module.named_modules() if isinstance(part, nn.Embedding | nn.EmbeddingBag))
    return {f"{name}.weight".lstrip(".") for name, part in parts if part.padding_idx is not None}


def check_quantizable(module: nn.Module, names: object) -> tuple[str, ...]:
    """Return the names of parameters to quantize, each once, or raise if one of them cannot be."""
    kind = network_name(module)
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise NetworkError(f"The parameters to quantize must be a list of names, got {names!r}.")
    params = dict(module.named_parameters())
    trained = {name: p for name, p in params.items() if p.requires_grad}
    rows = padded(module)
    for name in names:
        if name in params and name not in trained:
            raise NetworkError(f"The parameter '{name}' of {kind} is frozen: only parameters that train are quantized.")
        if name in rows:
            raise NetworkError(
                f"The parameter '{name}' of {kind} has a row for padding (padding_idx), whose zeros no center would "
                "keep: leave it unquantized."
            )
        if name not in trained:
            raise NetworkError(f"{kind} has no trainable parameter '{name}' to quantize. {did_you_mean(name, trained)}")
        if trained[name].numel() == 0:
            raise NetworkError(f"The parameter '{name}' of {kind} is empty: it cannot be quantized.")
    return tuple(dict.fromkeys(names))


def network_name(module: nn.Module) -> str:
    """Return the name that a network gives itself, or else its class's."""
    own = getattr(module, "name", None)
    return own if isinstance(own, str) else type(module).__name__
