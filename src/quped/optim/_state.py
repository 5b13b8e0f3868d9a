"""States of optimizers as plain data, and whether a saved one fits."""

from collections.abc import Mapping
from reprlib import repr as brief
from typing import Any

from torch import Tensor

from quped.errors import InvalidValueError, RunError

Shapes = Mapping[str, tuple[int, ...]]


def plain(value: Any) -> Any:
    """Copy nested data with strings for keys and lists for tuples, as JSON has them; tensors are cloned."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise InvalidValueError(f"The state of the base optimizer holds a {type(value).__name__}, which cannot be saved.")


def check_state(state: Mapping[str, Any], identity: Mapping[str, Any], tensors: Mapping[str, Shapes]) -> None:
    """Raise an error unless a state is of the same method and network, complete, and with tensors of these shapes."""
    for key, own in identity.items():
        if state.get(key) != own:
            raise RunError(
                f"The state is not one of this optimizer and network: its '{key}' is {brief(state.get(key))}, here "
                f"it is {brief(own)}. Build both as they were when it was saved."
            )
    for key, shapes in tensors.items():
        saved = {name: tuple(tensor.shape) for name, tensor in state.get(key, {}).items()}
        if saved != shapes:
            raise RunError(
                f"The '{key}' of the state have the shapes {brief(saved)}, here they have {brief(shapes)}: it is "
                "one of another optimizer or network."
            )
    for name, assigned in state["assigned"].items():
        if int(assigned.max()) >= tensors["centers"][name][1]:
            raise RunError(f"The assignment of '{name}' in the state is to centers that do not exist: it is damaged.")
    if missing := {"epoch", "eta2", "base"} - state.keys():
        raise RunError(f"The state lacks '{min(missing)}': it is incomplete.")
    if len(state["eta2"]) != len(identity["quantized"]):
        raise RunError(f"The state has {len(state['eta2'])} 'eta2', here are {len(identity['quantized'])} groups.")
