"""The tasks that an engine sends to nodes, the replies that it hands in, and pending tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from fedraw.core.types import Vector

# summary asks for the site's name and label counts; train and evaluate send a model along.
TaskKind = Literal["summary", "train", "evaluate"]

# A late reply is accepted for this many times the deadline.
LATE_FACTOR = 3


@dataclass(frozen=True, eq=False)
class Task:
    """A request to one node; a summary has no site and no model."""

    number: int
    kind: TaskKind
    node: int
    site: str | None
    deadline: float  # in seconds after the task is sent
    version: int = 0
    model: Vector | None = None
    # For train: the user's settings. For summary: the question of a private label summary.
    config: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class LabelSummary:
    """A site's name and its number of training samples by label.

    `counts` is empty if the site does not declare its labels. With private label summaries,
    `answer` is the site's answer to the question of the task.
    """

    site: str
    counts: Mapping[str, int]
    answer: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class TrainReply:
    """A site's update.

    `site`, `task` and `version` repeat those of the task; they are None if the site does not repeat
    them and the engine alone matches replies with tasks. If `is_model`, the vector is the trained
    model, and the coordinator computes the difference if the strategy needs one; otherwise the
    vector is what the strategy needs. `counts` are new label counts, if the site declares any, and
    `metrics` are the metrics of its training. A site that sends sums also sends the digest of its
    feature map.
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
    feature_map: str = ""


@dataclass(frozen=True, eq=False)
class EvaluateReply:
    """The model's results on a site's test samples; `site` and `task` are as in TrainReply.

    `right` and `total` are the numbers of correctly classified and of all test samples by label;
    they are empty if the site does not count by label. `metrics` are any other metrics, measured on
    `examples` samples.
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

    `site_fault` is False if the site did not cause the failure. `malformed` means that the site
    replied with something that no honest client app sends.
    """

    reason: str
    site_fault: bool = True
    malformed: bool = False


Reply = LabelSummary | TrainReply | EvaluateReply | Failure


@dataclass(eq=False)
class PendingTask:
    """A task without a reply so far."""

    task: Task
    time: float  # when the task was created
    event: int
    overdue: bool = False  # past its deadline; a late reply is still accepted
    replaced: bool = False  # another reply of the site arrived first

    @property
    def due(self) -> float:
        """The time of the deadline."""
        return self.time + self.task.deadline

    @property
    def expires(self) -> float:
        """The time after which a late reply is no longer accepted."""
        return self.time + LATE_FACTOR * self.task.deadline


class PendingTasks:
    """Pending tasks by the id of the engine's message, and tasks that are not sent yet."""

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
        """Add a task that is not sent yet, and return it."""
        self._unsent[pending.task.number] = pending
        return pending.task

    def sent(self, task: Task, message_id: str) -> None:
        """Record that the engine has sent the task as this message."""
        self._by_message[message_id] = self._unsent.pop(task.number)

    def not_sent(self, task: Task) -> None:
        """Drop a task that the engine could not send."""
        del self._unsent[task.number]

    def find(self, message_id: str) -> PendingTask | None:
        """Return the pending task of a message, or None."""
        return self._by_message.get(message_id)

    def close(self, message_id: str) -> None:
        """Drop the task of a message that has its reply."""
        del self._by_message[message_id]

    def replace_others(self, replied: PendingTask) -> None:
        """Mark the site's other training tasks as replaced by this reply."""
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
        """Return whether the node has a task of this kind whose deadline has not passed."""
        return any(p.task.node == node and p.task.kind == kind and not p.overdue for p in self)
