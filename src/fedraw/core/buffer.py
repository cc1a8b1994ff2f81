"""The buffers of the asynchronous methods: one slot per client, or a sliding window."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Protocol

from fedraw.core.types import ClientId
from fedraw.core.update import Update


@dataclass(slots=True, eq=False)
class Slot:
    """A buffered update and its coefficient in the running sum."""

    update: Update
    coefficient: float


class Buffer(Protocol):
    """At most `capacity` slots, oldest first."""

    capacity: int

    @property
    def slots(self) -> Collection[Slot]:
        """The slots, oldest first."""
        ...

    @property
    def clients(self) -> list[ClientId]:
        """The client of each slot, oldest first."""
        ...

    def add(self, slot: Slot) -> Slot | None:
        """Insert a slot; return the slot that it replaces or evicts, if any."""
        ...


@dataclass(eq=False)
class OneSlotBuffer:
    """The latest update of each of at most `capacity` clients.

    A client's new update replaces its old one in place and does not reset the age of the slot:
    slots are evicted in the order in which their clients entered. Every operation is O(1), because
    a dict keeps the position of a known key and appends a new one.
    """

    capacity: int
    by_client: dict[ClientId, Slot] = field(default_factory=dict)

    @property
    def slots(self) -> Collection[Slot]:
        """The slots, oldest first."""
        return self.by_client.values()

    @property
    def clients(self) -> list[ClientId]:
        """The client of each slot, oldest first."""
        return list(self.by_client)

    def add(self, slot: Slot) -> Slot | None:
        """Insert a slot; return the slot that it replaces or evicts, if any."""
        client = slot.update.client
        left = self.by_client.get(client)
        if left is None and len(self.by_client) == self.capacity:
            left = self.by_client.pop(next(iter(self.by_client)))
        self.by_client[client] = slot
        return left

    def remove(self, client: ClientId) -> Slot:
        """Remove a client's slot."""
        return self.by_client.pop(client)


@dataclass(eq=False)
class SlidingWindow:
    """The last `capacity` updates; a fast client may have several slots."""

    capacity: int
    latest: list[Slot] = field(default_factory=list)

    @property
    def slots(self) -> Collection[Slot]:
        """The slots, oldest first."""
        return self.latest

    @property
    def clients(self) -> list[ClientId]:
        """The client of each slot, oldest first."""
        return [slot.update.client for slot in self.latest]

    def add(self, slot: Slot) -> Slot | None:
        """Insert a slot; return the slot that it replaces or evicts, if any."""
        self.latest.append(slot)
        return self.latest.pop(0) if len(self.latest) > self.capacity else None
