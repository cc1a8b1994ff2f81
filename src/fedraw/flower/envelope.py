"""What stands in a message beside the tensors: the same names for both ends of the wire.

Numbers by label are texts and whole numbers: Flower's records hold neither nested tables nor keys
other than text, and nothing that would have to be unpickled.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import index
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from fedraw.errors import BadInput, RefusedUpdate
from fedraw.server.admission import MOST_LABELS

# The records of a message.
FACTS = "fedraw"
ARRAYS = "arrays"
COUNTS = "counts"
RIGHT = "right"
TOTAL = "total"

# Bytes that a reply may have beside the model, such as names and label counts.
LARGEST_REST = 1 << 20


def pack_counts(counts: Mapping[Any, Any], what: str) -> ConfigRecord:
    """Numbers by label, as a site's own code has them: labels of any kind, NumPy's integers.

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


def check_size(content: RecordDict, model: int) -> None:
    """Refuse a reply that is much larger than a model of so many bytes."""
    size, most = sum(map(_size, content.values())), 2 * model + LARGEST_REST
    if size > most:
        raise RefusedUpdate(f"the reply has {size} bytes; {most} is the most")


def _size(record: Any) -> int:
    """Bytes of names and values; Flower's own count fails on an empty list."""
    names = sum(map(len, record))
    if isinstance(record, ArrayRecord):
        return names + sum(len(array.data) for array in record.values())
    lists = [value if isinstance(value, list) else [value] for value in record.values()]
    items = (item for values in lists for item in values)
    return names + sum(len(item) if isinstance(item, str | bytes) else 8 for item in items)


def read_counts(content: RecordDict, name: str) -> dict[str, int]:
    """What a site says it counted; whether that can be is for the server to judge."""
    record = _record(content, name, ConfigRecord)
    if len(record) > MOST_LABELS:
        raise RefusedUpdate(f"record {name!r} has {len(record)} labels; {MOST_LABELS} is the most")
    for label, count in record.items():
        if isinstance(count, bool) or not isinstance(count, int):
            raise RefusedUpdate(f"{name} of label {label!r:.60} is {count!r:.60}, no whole number")
    return dict(record)


def read_arrays(content: RecordDict) -> ArrayRecord:
    record: ArrayRecord = _record(content, ARRAYS, ArrayRecord)
    return record


class Facts:
    """The scalars of a message, each checked when it is asked for."""

    def __init__(self, content: RecordDict) -> None:
        self._record = _record(content, FACTS, ConfigRecord)

    def text(self, name: str) -> str:
        value = self._get(name)
        if not isinstance(value, str):
            raise RefusedUpdate(f"{name} is {value!r:.60}, not a text")
        return value

    def whole(self, name: str) -> int:
        value = self._get(name)
        if isinstance(value, bool) or not isinstance(value, int):
            raise RefusedUpdate(f"{name} is {value!r:.60}, not a whole number")
        return value

    def number(self, name: str) -> float:
        value = self._get(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise RefusedUpdate(f"{name} is {value!r:.60}, not a number")
        return float(value)

    def truth(self, name: str) -> bool:
        value = self._get(name)
        if not isinstance(value, bool):
            raise RefusedUpdate(f"{name} is {value!r:.60}, not true or false")
        return value

    def texts(self, name: str) -> list[str]:
        value = self._get(name)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise RefusedUpdate(f"{name} is {value!r:.60}, not a list of texts")
        return [str(item) for item in value]

    def __contains__(self, name: str) -> bool:
        return name in self._record

    def _get(self, name: str) -> object:
        if name not in self._record:
            raise RefusedUpdate(f"{name} is missing")
        value: object = self._record[name]
        return value


def _record(content: RecordDict, name: str, kind: type[Any]) -> Any:
    record = content.get(name)
    if not isinstance(record, kind):
        found = "missing" if record is None else f"of type {type(record).__name__}"
        raise RefusedUpdate(f"record {name!r} is {found}; are both sides fedraw's?")
    return record
