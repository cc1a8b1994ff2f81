"""Tasks that an engine sends to nodes, the replies it hands back, and the tasks still pending."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from fedraw.core.types import Vector

# summary: name and label counts of the site; train, evaluate: with the model of the task
TaskKind = Literal["summary", "train", "evaluate"]

# A late reply is accepted for this many times the deadline.
LATE_FACTOR = 3


@dataclass(frozen=True, eq=False)
class Task:
    """A request to one node; `site` and `model` are None where the kind does not need them."""

    number: int
    kind: TaskKind
    node: int
    site: str | None
    deadline: float  # seconds from when it is sent
    version: int = 0
    model: Vector | None = None
    # The user's settings for a training; the question of a private label summary.
    config: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class LabelSummary:
    """A site's name and its training samples by label; empty if it does not declare its labels.

    With private label summaries, `answer` is the site's answer to the question of the task.
    """

    site: str
    counts: Mapping[str, int]
    answer: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class TrainReply:
    """A site's update.

    `site`, `task` and `version` are what the site repeats of its task; None if it repeats nothing
    and only the engine says which task the reply belongs to. The vector is what the strategy needs;
    if `is_model`, it is the trained model, and the coordinator forms a difference where the
    strategy needs one. `counts` are the site's label counts if it declares new ones, and `metrics`
    are what its training reports.
    """

    site: str | None
    task: int | None
    version: int | None
    vector: Vector
    examples: int
    loss: float | None = None
    counts: Mapping[str, int] | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    is_model: bool = False


@dataclass(frozen=True, eq=False)
class EvaluateReply:
    """What the model can do on a site's test samples; `site` and `task` are as in TrainReply.

    `right` and `total` count recognised and tested samples by label; they are empty if the site
    does not count them. `metrics` are any other numbers, measured on `examples` samples.
    """

    site: str | None
    task: int | None
    right: Mapping[str, int] = field(default_factory=dict)
    total: Mapping[str, int] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    examples: int = 0


@dataclass(frozen=True)
class Failure:
    """A task without a usable reply.

    `to_blame` is False if the site cannot help it. `malformed` means that the site did reply, with
    something that no honest client app sends.
    """

    reason: str
    to_blame: bool = True
    malformed: bool = False


Reply = LabelSummary | TrainReply | EvaluateReply | Failure


@dataclass(eq=False)
class PendingTask:
    """A task without a reply so far."""

    task: Task
    time: float  # when it was made
    event: int
    overdue: bool = False  # a reply is no longer waited for, but still accepted
    replaced: bool = False  # another reply of the site came first

    @property
    def due(self) -> float:
        """When the deadline ends."""
        return self.time + self.task.deadline

    @property
    def expires(self) -> float:
        """When a late reply is no longer accepted."""
        return self.time + LATE_FACTOR * self.task.deadline


class PendingTasks:
    """Pending tasks by the id of the engine's message, and those that are not sent yet."""

    def __init__(self) -> None:
        self._unsent: dict[int, PendingTask] = {}
        self._by_message: dict[str, PendingTask] = {}
        self._number = 0

    def __iter__(self) -> Iterator[PendingTask]:
        yield from [*self._unsent.values(), *self._by_message.values()]

    @property
    def message_ids(self) -> list[str]:
        """The ids of messages that may still get a reply."""
        return list(self._by_message)

    def next_number(self) -> int:
        """Return a number that no earlier task has."""
        self._number += 1
        return self._number

    def add(self, pending: PendingTask) -> Task:
        """Add a task that is about to be sent, and return it."""
        self._unsent[pending.task.number] = pending
        return pending.task

    def sent(self, task: Task, message_id: str) -> None:
        """The engine has sent the task as this message."""
        self._by_message[message_id] = self._unsent.pop(task.number)

    def not_sent(self, task: Task) -> None:
        """The engine could not send the task."""
        del self._unsent[task.number]

    def find(self, message_id: str) -> PendingTask | None:
        """Return the pending task of a message, or None."""
        return self._by_message.get(message_id)

    def close(self, message_id: str) -> None:
        """The task has its reply."""
        del self._by_message[message_id]

    def replace_others(self, replied: PendingTask) -> None:
        """Mark whatever else the site was asked to train as settled by this reply."""
        for other in self:
            if other.task.site == replied.task.site and other.task.kind == "train":
                other.replaced = other is not replied

    def expire(self, now: float) -> None:
        """Mark overdue tasks, and drop those whose replies would no longer be accepted."""
        for pending in self:
            pending.overdue = pending.overdue or now > pending.due
        for message_id, pending in list(self._by_message.items()):
            if now > pending.expires:
                del self._by_message[message_id]

    def is_busy(self, node: int, kind: TaskKind) -> bool:
        """Whether the node has such a task and its deadline is not over."""
        return any(p.task.node == node and p.task.kind == kind and not p.overdue for p in self)
