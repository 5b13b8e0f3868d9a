from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from flwr.app import Context, Message

class NodeInfo(Protocol):
    @property
    def node_id(self) -> int: ...
    @property
    def name(self) -> str: ...

class Grid(Protocol):
    def get_nodes(self) -> Iterable[NodeInfo]: ...
    def push_messages(self, messages: Sequence[Message]) -> Iterable[str]: ...
    def pull_messages(self, message_ids: Sequence[str]) -> Iterable[Message]: ...

_Main = Callable[[Grid, Context], None]

class ServerApp:
    def main(self) -> Callable[[_Main], _Main]: ...
