"""Points in time as seconds: numbers, or ISO 8601 with or without a zone."""

from __future__ import annotations

from datetime import UTC, datetime

from fedraw.core.types import LONGEST_TIME
from fedraw.records.cells import Unreadable, number, shown

_REMEDY = "write seconds as a number from 0 on, or ISO 8601 such as 2026-01-31T08:00:00Z"
_KINDS = {"number": "a number", "zone": "ISO 8601 with a zone", "local": "ISO 8601 without a zone"}


class Clock:
    """Reads the timestamps of one file, which must all be of the first one's kind.

    >>> clock = Clock()
    >>> clock.seconds("2026-01-31T08:00:01+01:00") - clock.seconds("2026-01-31T07:00:00Z")
    1.0
    """

    def __init__(self) -> None:
        self.kind = ""

    def seconds(self, text: str) -> float:
        text = text.strip(" \t")
        kind, value = _read(text)
        if self.kind and kind != self.kind:
            raise Unreadable(
                f"{shown(text)} is {_KINDS[kind]}, but the first timestamp is {_KINDS[self.kind]}; "
                "write all of them alike"
            )
        self.kind = kind
        return value


def _read(text: str) -> tuple[str, float]:
    if not (text[:4].isdigit() and text[4:5] == "-"):
        return "number", _from_zero(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise Unreadable(f"{shown(text)} is not a timestamp; {_REMEDY}") from None
    if moment.tzinfo is not None:
        return "zone", moment.timestamp()
    # Only differences count, and the computer's own zone must not change them.
    return "local", moment.replace(tzinfo=UTC).timestamp()


def _from_zero(text: str) -> float:
    value = number(text, f"a timestamp; {_REMEDY}")
    if not 0 <= value <= LONGEST_TIME:
        raise Unreadable(f"{shown(text)} is negative or too large; {_REMEDY}")
    return value
