"""Flower's grid in this process: nodes that answer at once, and fail or lie as they are told."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from quped.flower.node import reply_to

Change = Callable[[Message, Callable[[], RecordDict]], RecordDict | Error | None]
"""Gets a message, and a function that returns the honest answer to it; returns another one, an error or nothing."""


def honest(message: Message, answer: Callable[[], RecordDict]) -> RecordDict:
    return answer()


@dataclass
class FakeNode:
    """A node: its configuration, and how it answers."""

    config: Mapping[str, Any]
    change: Change = honest
    registered: str = ""
    """The name that its key was registered with."""


@dataclass(frozen=True)
class Info:
    """What the SuperLink knows of a node."""

    node_id: int
    name: str


class FakeGrid:
    """Brings every message to its node at once, and keeps the answers."""

    def __init__(self, run_config: Mapping[str, Any], nodes: Mapping[int, FakeNode]) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
        self.run_config, self.nodes = dict(run_config), dict(nodes)
        self.requests: list[Message] = []
        self.replies: list[Message] = []
        self._answers: dict[str, Message] = {}

    def get_nodes(self) -> list[Info]:
        return [Info(number, node.registered) for number, node in self.nodes.items()]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        return [self._push(message) for message in messages]

    def _push(self, message: Message) -> str:
        number = f"message-{len(self.requests)}"
        message.metadata.__dict__["_message_id"] = number
        self.requests.append(message)
        node_id = message.metadata.dst_node_id
        node = self.nodes.get(node_id)
        if node is None:
            return number
        context = Context(
            run_id=1, node_id=node_id, node_config=dict(node.config), state=RecordDict(), run_config=self.run_config
        )
        content = node.change(message, lambda: reply_to(message, context))
        if content is not None:
            reply = Message(content, reply_to=message)
            self.replies.append(reply)
            self._answers[number] = reply
        return number

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return [self._answers.pop(number) for number in list(message_ids) if number in self._answers]


def write_app(folder: Path, module: str, code: str, nodes: Iterable[str], config: Mapping[str, Any]) -> Path:
    """Write an app with this module."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = ["[project]", 'name = "test-app"', 'version = "1.0.0"', "[tool.flwr.app]", 'publisher = "tests"']
    lines += ["[tool.flwr.app.components]"]
    lines += ['serverapp = "quped.flower:server_app"', 'clientapp = "quped.flower:client_app"']
    lines += ["[tool.flwr.app.config]", *(f"{key} = {toml(value)}" for key, value in config.items())]
    for node in nodes:
        lines += [f"[tool.quped.nodes.{node}]"]
    (folder / "pyproject.toml").write_text("\n".join(lines) + "\n")
    (folder / f"{module}.py").write_text(code)
    return folder


def toml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else f'"{value}"' if isinstance(value, str) else str(value)
