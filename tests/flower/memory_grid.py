"""Flower's grid in memory: real messages as Flower's bytes, real client apps, no processes.

It behaves like the deployed grid: a push to an offline node returns None, each reply is handed out
once, and an exception of a client app becomes an error reply. Faults can be injected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity

SERVER = 1


def context_of(node: int = 7, **node_config: Any) -> Context:
    return Context(1, node, dict(node_config), RecordDict(), {})


def over_the_wire(message: Message) -> Message:
    """The message after a round trip through its bytes."""
    name = message.metadata.message_id or message.object_id
    contents = {key: item.deflate() for key, item in get_all_nested_objects(message).items()}
    arrived: Message = inflate_object_from_contents(message.object_id, contents)
    arrived.metadata.__dict__["_message_id"] = name
    return arrived


@pytest.fixture
def identity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the identity of this process, which Flower's messages need."""
    for name, value in (("_task_id", 1), ("_run_id", 1), ("_node_id", SERVER)):
        monkeypatch.setattr(TaskIdentity, name, value)


@dataclass
class MemoryGrid(Grid):  # type: ignore[misc]
    """A grid with faults: `tamper` may change each reply, and `before` may raise an error.

    `before` is called with the name of each call.
    """

    app: ClientApp
    contexts: dict[int, Context]
    offline: set[int] = field(default_factory=set)
    slow: set[int] = field(default_factory=set)  # never reply
    tamper: Callable[[Message], Message | None] = lambda reply: reply
    before: Callable[[str], None] = lambda call: None
    pushed: list[Message] = field(default_factory=list)
    replies: dict[str, Message] = field(default_factory=dict)

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *_: Any, **__: Any) -> Message:
        raise NotImplementedError

    def send_and_receive(self, *_: Any, **__: Any) -> Iterable[Message]:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        self.before("look")
        return [node for node in self.contexts if node not in self.offline]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[Any]:
        self.before("push")
        return [self._push(message) for message in messages]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        self.before("pull")
        found = [
            self.replies.pop(message_id) for message_id in message_ids if message_id in self.replies
        ]
        return [reply for reply in map(self.tamper, found) if reply is not None]

    def _push(self, message: Message) -> str | None:
        node = message.metadata.dst_node_id
        if node in self.offline or node not in self.contexts:
            return None
        message_id = str(message.object_id)
        message.metadata.__dict__["_message_id"] = message_id
        self.pushed.append(message)
        if node not in self.slow:
            self.replies[message_id] = self._reply(over_the_wire(message), self.contexts[node])
        return message_id

    def _reply(self, message: Message, context: Context) -> Message:
        try:
            return over_the_wire(self.app(message, context))
        except Exception as error:
            return Message(
                Error(2, f"Traceback\n{type(error).__name__}: {error}"), reply_to=message
            )
