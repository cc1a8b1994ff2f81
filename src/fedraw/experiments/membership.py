"""Who takes part, as a log tells it: sites join, leave and declare new labels at any time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from fedraw.core.types import ClientId
from fedraw.disk.event_log import Record


@dataclass
class Changes:
    """What happened beside updates once training was under way: how often, by client."""

    joined: Counter[ClientId] = field(default_factory=Counter)
    returned: Counter[ClientId] = field(default_factory=Counter)
    left: Counter[ClientId] = field(default_factory=Counter)
    declared: Counter[ClientId] = field(default_factory=Counter)
    restarts: int = 0
    down: float = 0.0  # seconds, of all restarts together

    def as_dict(self) -> dict[str, Any]:
        """Empty where nothing happened, as in every simulation."""
        if not (self.clients or self.restarts):
            return {}
        by_client = {
            "joined": self.joined,
            "left": self.left,
            "returned": self.returned,
            "declared": self.declared,
        }
        told = {key: {str(c): n for c, n in times.items()} for key, times in by_client.items()}
        return {**told, "restarts": self.restarts, "down": self.down}

    @property
    def clients(self) -> set[ClientId]:
        """Those who were not there all the time, or not with the same labels."""
        return {*self.joined, *self.left, *self.returned, *self.declared}


class Membership:
    """Takes in records of changes one by one.

    A client that has left is remembered with what it last told: it still counts for what it sent.
    """

    def __init__(self, rare_labels: Collection[str] = ()) -> None:
        self.counts: dict[ClientId, Mapping[str, int]] = {}
        self.members: dict[ClientId, None] = {}
        self.changes = Changes()
        self._rare_labels = frozenset(rare_labels)

    def joined(self, record: Record) -> None:
        client = record["client"]
        known = client in self.counts
        self.counts[client] = held(record["counts"])
        self.members[client] = None
        if record.get("event") or record.get("time"):  # the founders come before everything
            (self.changes.returned if known else self.changes.joined)[client] += 1

    def left(self, record: Record) -> None:
        self.members.pop(record["client"], None)
        self.changes.left[record["client"]] += 1

    def declared(self, record: Record) -> None:
        self.counts[record["client"]] = held(record["counts"])
        self.changes.declared[record["client"]] += 1

    def restarted(self, record: Record) -> None:
        self.changes.restarts += 1
        self.changes.down += record.get("gap") or 0.0

    def is_rare(self, client: ClientId) -> bool:
        """Whether it holds a rare label, by what it last told."""
        return not self._rare_labels.isdisjoint(self.counts[client])

    @property
    def rare(self) -> list[ClientId]:
        rare = self._rare_labels
        return [client for client, counts in self.counts.items() if not rare.isdisjoint(counts)]


def held(counts: Mapping[str, int]) -> Mapping[str, int]:
    """Without the labels of which a client says that it has none.

    >>> held({"cat": 2, "owl": 0})
    {'cat': 2}
    """
    return counts if all(counts.values()) else {label: n for label, n in counts.items() if n}
