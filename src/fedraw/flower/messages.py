"""The messages between a server and its sites: the same names and checks for both sides.

A message has scalars in one record, a model in another, and counts by label in more. Flower's
records hold neither nested tables nor keys other than text, so labels are texts. Nothing is ever
unpickled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MessageType, RecordDict

from fedraw.core.types import Vector
from fedraw.errors import RefusedUpdate
from fedraw.flower.tensors import Template
from fedraw.server.messages import LARGEST_REST, Fields, check_count_types, plain_counts
from fedraw.server.tasks import (
    LATE_FACTOR,
    EvaluateReply,
    Failure,
    LabelSummary,
    Reply,
    Task,
    TrainReply,
)
from fedraw.strategies.protocol import Needs

# The records of a message.
FIELDS = "fedraw"
ARRAYS = "arrays"
COUNTS = "counts"
RIGHT = "right"
TOTAL = "total"

MESSAGE_TYPES = {
    "summary": MessageType.QUERY,
    "train": MessageType.TRAIN,
    "evaluate": MessageType.EVALUATE,
}

# Flower's error codes that a site causes, and those that it cannot help.
SITE_ERRORS = {
    1: "its client app cannot be loaded",
    2: "its client app raised an exception",
    6: "a mod of its client app refused the message",
    7: "its app bundle is invalid",
    8: "its client app crashed",
}
TRANSPORT_ERRORS = {
    3: "the message or its reply has expired",
    4: "the reply has expired",
    5: "the node is out of reach",
}

# Seconds added to a message's time to live, for queues and for the difference between two clocks.
RESERVE = 60.0

# The most characters of a site's error message. Its end is kept, where a traceback has the
# exception.
LONGEST_REASON = 300


@dataclass
class MessageCodec:
    """Writes tasks as messages and reads replies, for one model and one strategy's needs.

    All sites that get a version get the same ArrayRecord, so it is written once, and Flower
    computes its hashes once.
    """

    template: Template
    needs: Needs
    _model: Vector | None = field(default=None, init=False, repr=False)
    _record: ArrayRecord = field(default_factory=ArrayRecord, init=False, repr=False)

    def record(self, model: Vector) -> ArrayRecord:
        """Return the model as Flower's record."""
        if model is not self._model:
            self._record = self.template.write(model)
            self._model = model
        return self._record

    def message(self, task: Task) -> Message:
        """Write a task as a message."""
        fields = ConfigRecord({"task": task.number, "version": task.version})
        content = RecordDict({FIELDS: fields})
        if task.model is not None:
            content[ARRAYS] = self.record(task.model)
        if task.kind == "train":
            fields["sends"] = self.needs.sends
            fields["loss"] = self.needs.loss
            fields["proximal"] = float(self.needs.proximal)
            if statistics := self.template.statistics:  # Flower cannot size an empty list
                fields["statistics"] = statistics
        return Message(
            content,
            dst_node_id=task.node,
            message_type=MESSAGE_TYPES[task.kind],
            ttl=time_to_live(task.deadline),
            group_id=str(task.version),
        )

    def read_reply(self, message: Message) -> Reply:
        """Read a reply; this does not raise, whatever a site has sent."""
        try:
            if message.has_error():
                return failure(message.error)
            return self._read(message)
        except RefusedUpdate as error:
            return Failure(f"unreadable reply: {error}", malformed=True)
        except Exception as error:  # a site's bytes must not end the server
            reason = f"unreadable reply: {type(error).__name__} {error!s:.200}"
            return Failure(reason, malformed=True)

    def _read(self, message: Message) -> Reply:
        content, kind = message.content, message.metadata.message_type
        check_size(content, self.template.nbytes if kind == MessageType.TRAIN else 0)
        fields = fields_of(content)
        site = fields.text("site")
        match kind:
            case MessageType.QUERY:
                return LabelSummary(site, read_counts(content, COUNTS) if COUNTS in content else {})
            case MessageType.TRAIN:
                return TrainReply(
                    site,
                    fields.whole("task"),
                    fields.whole("version"),
                    self.template.read(read_arrays(content)),
                    fields.whole("examples"),
                    fields.number("loss") if "loss" in fields else None,
                    read_counts(content, COUNTS) if COUNTS in content else None,
                )
            case MessageType.EVALUATE:
                right, total = read_counts(content, RIGHT), read_counts(content, TOTAL)
                return EvaluateReply(site, fields.whole("task"), right, total)
            case other:
                raise RefusedUpdate(f"a message of type {other!r:.60} was not asked for")


def time_to_live(deadline: float) -> float:
    """Return how long a message lives: as long as the server accepts its reply, and a little more.

    >>> time_to_live(100.0)
    360.0
    """
    return LATE_FACTOR * deadline + RESERVE


def failure(error: Error) -> Failure:
    r"""Describe an error of Flower in a sentence.

    >>> failure(Error(2, "Traceback (most recent call last):\n ...\nValueError: no data\n")).reason
    'its client app raised an exception: ValueError: no data'
    """
    code = error.code
    what = SITE_ERRORS.get(code) or TRANSPORT_ERRORS.get(code) or f"Flower's error {code}"
    lines = [line.strip() for line in (error.reason or "").splitlines() if line.strip()]
    # The text of a transport error adds nothing to its code; of an exception, the end matters most.
    if lines and code not in TRANSPORT_ERRORS:
        what += f": {lines[-1][-LONGEST_REASON:]}"
    return Failure(what, to_blame=code not in TRANSPORT_ERRORS)


def fields_of(content: RecordDict) -> Fields:
    """Return the scalars of a message."""
    return Fields(_record(content, FIELDS, ConfigRecord))


def pack_counts(counts: Mapping[Any, Any], what: str) -> ConfigRecord:
    """Pack counts by label; labels may be of any type, counts may be NumPy integers."""
    return ConfigRecord(plain_counts(counts, what))


def read_counts(content: RecordDict, name: str) -> dict[str, int]:
    """Return the counts of a record; whether they are plausible is for the server to decide."""
    return check_count_types(_record(content, name, ConfigRecord), name)


def read_arrays(content: RecordDict) -> ArrayRecord:
    """Return the model of a message."""
    record: ArrayRecord = _record(content, ARRAYS, ArrayRecord)
    return record


def check_size(content: RecordDict, model_bytes: int) -> None:
    """Refuse a reply that is much larger than the model."""
    size, most = sum(map(_size, content.values())), 2 * model_bytes + LARGEST_REST
    if size > most:
        raise RefusedUpdate(f"the reply has {size} bytes; {most} is the most")


def _size(record: Any) -> int:
    """Return the bytes of names and values; Flower's own count fails on an empty list."""
    names = sum(map(len, record))
    if isinstance(record, ArrayRecord):
        return names + sum(len(array.data) for array in record.values())
    lists = [value if isinstance(value, list) else [value] for value in record.values()]
    items = (item for values in lists for item in values)
    return names + sum(len(item) if isinstance(item, str | bytes) else 8 for item in items)


def _record(content: RecordDict, name: str, kind: type[Any]) -> Any:
    record = content.get(name)
    if not isinstance(record, kind):
        found = "missing" if record is None else f"of type {type(record).__name__}"
        raise RefusedUpdate(f"record {name!r} is {found}; are both sides fedraw's?")
    return record
