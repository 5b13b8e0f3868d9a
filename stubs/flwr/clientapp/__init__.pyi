from collections.abc import Callable

from flwr.app import Context, Message

_Answer = Callable[[Message, Context], Message]

class ClientApp:
    def query(self) -> Callable[[_Answer], _Answer]: ...
    def train(self) -> Callable[[_Answer], _Answer]: ...
    def evaluate(self) -> Callable[[_Answer], _Answer]: ...
