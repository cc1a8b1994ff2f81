"""The messages between a server and its sites: the same names and checks for both sides.

A message has scalars in one record, a model in another, and counts by label in more. Flower's
records hold neither nested tables nor keys other than text, so labels are texts. Nothing is ever
unpickled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import index
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MessageType, RecordDict

from fedraw.core.types import Vector
from fedraw.errors import BadInput, RefusedUpdate
from fedraw.flower.tensors import Template
from fedraw.server.admission import MOST_LABELS
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

# The most bytes of a reply beside the model, such as names and label counts.
LARGEST_REST = 1 << 20

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


class Fields:
    """The scalars of a message, each checked when it is read."""

    def __init__(self, content: RecordDict) -> None:
        self._record = _record(content, FIELDS, ConfigRecord)

    def text(self, name: str) -> str:
        """Return a text."""
        return str(self._get(name, str, "a text"))

    def whole(self, name: str) -> int:
        """Return an integer."""
        return int(self._get(name, int, "a whole number"))

    def number(self, name: str) -> float:
        """Return a number."""
        return float(self._get(name, (int, float), "a number"))

    def truth(self, name: str) -> bool:
        """Return a truth value."""
        return bool(self._get(name, bool, "true or false"))

    def texts(self, name: str) -> list[str]:
        """Return a list of texts."""
        value = self._get(name, list, wanted := "a list of texts")
        if not all(isinstance(item, str) for item in value):
            raise RefusedUpdate(f"{name} is {value!r:.60}, not {wanted}")
        return list(value)

    def __contains__(self, name: str) -> bool:
        return name in self._record

    def _get(self, name: str, kind: type | tuple[type, ...], wanted: str) -> Any:
        if name not in self._record:
            raise RefusedUpdate(f"{name} is missing")
        value = self._record[name]
        # A truth value counts as an integer in Python, but not here.
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise RefusedUpdate(f"{name} is {value!r:.60}, not {wanted}")
        return value


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
        fields = Fields(content)
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


def pack_counts(counts: Mapping[Any, Any], what: str) -> ConfigRecord:
    """Pack counts by label; labels may be of any type, counts may be NumPy integers.

    >>> pack_counts({3: 2, "cat": 1}, "label_counts")
    {'3': 2, 'cat': 1}
    """
    if not isinstance(counts, Mapping):
        raise BadInput(f"{what} gives {type(counts).__name__}, not a mapping from labels to counts")
    record = ConfigRecord()
    for label, count in counts.items():
        if str(label) in record:
            raise BadInput(f"{what} has label {str(label)!r} twice, as a number and as a text")
        try:
            record[str(label)] = index(count)
        except TypeError:
            raise BadInput(f"{what} has {count!r} for label {label!r}, not a number") from None
    return record


def read_counts(content: RecordDict, name: str) -> dict[str, int]:
    """Return the counts of a record; whether they are plausible is for the server to decide."""
    record = _record(content, name, ConfigRecord)
    if len(record) > MOST_LABELS:
        raise RefusedUpdate(f"record {name!r} has {len(record)} labels; {MOST_LABELS} is the most")
    for label, count in record.items():
        if isinstance(count, bool) or not isinstance(count, int):
            raise RefusedUpdate(f"{name} of label {label!r:.60} is {count!r:.60}, no whole number")
    return dict(record)


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
