# The part of onnxruntime that is used here; the package has no types of its own.
from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

class SessionOptions:
    log_severity_level: int

class NodeArg:
    name: str

class InferenceSession:
    def __init__(
        self, path_or_bytes: bytes | str, sess_options: SessionOptions, *, providers: Sequence[str]
    ) -> None: ...
    def get_inputs(self) -> list[NodeArg]: ...
    def run(self, output_names: Sequence[str], input_feed: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]: ...
