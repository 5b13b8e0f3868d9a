"""What an exported file says of its model."""

from torch import nn

from quped.algorithms import ALGORITHMS
from quped.export.packed import PackedModel
from quped.models.select import network_name


def facts(module: nn.Module, model: PackedModel) -> list[str]:
    """Return what is known of a model, in a few words each."""
    widths = sorted({tensor.bits for tensor in model.packed.values()})
    few = f"{widths[0]}-bit" if len(widths) == 1 else f"{widths[0]}- to {widths[-1]}-bit" if widths else "float32"
    words = [network_name(module), f"{few} weights"]
    method = model.info.get("method")
    if method in ALGORITHMS:
        words.append(f"trained by {ALGORITHMS[method].__name__}")
    accuracy = model.info.get("accuracy")
    if isinstance(accuracy, float):
        words.append(f"{accuracy:.1%} right on its test samples")
    return words
