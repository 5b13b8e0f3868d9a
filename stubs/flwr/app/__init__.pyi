from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

class Array:
    data: bytes
    def __init__(self, ndarray: np.ndarray[Any, Any]) -> None: ...
    def numpy(self) -> np.ndarray[Any, Any]: ...

class ArrayRecord(dict[str, Array]):
    def __init__(self, array_dict: dict[str, Array]) -> None: ...

class ConfigRecord(dict[str, Any]):
    def __init__(self, config_dict: dict[str, Any]) -> None: ...

class RecordDict(Mapping[str, ArrayRecord | ConfigRecord]):
    def __init__(self, records: Mapping[str, ArrayRecord | ConfigRecord] | None = None) -> None: ...
    def __getitem__(self, key: str) -> ArrayRecord | ConfigRecord: ...
    def __iter__(self) -> Iterator[str]: ...
    def __len__(self) -> int: ...

class Error:
    code: int
    reason: str | None
    def __init__(self, code: int, reason: str | None = None) -> None: ...

class Metadata:
    message_id: str
    message_type: str
    reply_to_message_id: str
    src_node_id: int
    dst_node_id: int

class Message:
    content: RecordDict
    error: Error
    metadata: Metadata
    def __init__(
        self,
        content: RecordDict | Error,
        dst_node_id: int | None = None,
        message_type: str | None = None,
        *,
        ttl: float | None = None,
        group_id: str | None = None,
        reply_to: Message | None = None,
    ) -> None: ...
    def has_error(self) -> bool: ...

class MessageType:
    TRAIN: str
    EVALUATE: str
    QUERY: str

class Context:
    node_config: dict[str, Any]
    run_config: dict[str, Any]
    def __init__(
        self,
        run_id: int,
        node_id: int,
        node_config: dict[str, Any],
        state: RecordDict,
        run_config: dict[str, Any],
    ) -> None: ...
