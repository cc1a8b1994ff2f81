"""The two buffers of the asynchronous methods: one slot per client, and a plain sliding window."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Protocol

from fedraw.core.types import ClientId
from fedraw.core.update import Update


@dataclass(slots=True, eq=False)
class Slot:
    """A buffered update and the coefficient it has in the running sum."""

    update: Update
    coefficient: float


class Buffer(Protocol):
    """At most `capacity` slots, oldest first."""

    capacity: int

    @property
    def slots(self) -> Collection[Slot]: ...

    @property
    def clients(self) -> list[ClientId]:
        """Whose updates they are."""
        ...

    def add(self, slot: Slot) -> Slot | None:
        """Take the slot in; return the one that it replaced or pushed out."""
        ...


@dataclass(eq=False)
class OneSlotBuffer:
    """The latest update of each of at most `capacity` clients.

    A client already here is replaced where it stands, which does not renew its age: the first to
    have come is the first to go. Every operation is O(1): a dict keeps a known key in its place
    and puts a new one last.
    """

    capacity: int
    by_client: dict[ClientId, Slot] = field(default_factory=dict)

    @property
    def slots(self) -> Collection[Slot]:
        return self.by_client.values()

    @property
    def clients(self) -> list[ClientId]:
        return list(self.by_client)

    def add(self, slot: Slot) -> Slot | None:
        client = slot.update.client
        left = self.by_client.get(client)
        if left is None and len(self.by_client) == self.capacity:
            left = self.by_client.pop(next(iter(self.by_client)))
        self.by_client[client] = slot
        return left

    def remove(self, client: ClientId) -> Slot:
        """Take out a client's slot; nobody takes its place."""
        return self.by_client.pop(client)


@dataclass(eq=False)
class SlidingWindow:
    """The last `capacity` updates, whoever sent them: a fast client may hold several slots."""

    capacity: int
    latest: list[Slot] = field(default_factory=list)

    @property
    def slots(self) -> Collection[Slot]:
        return self.latest

    @property
    def clients(self) -> list[ClientId]:
        return [slot.update.client for slot in self.latest]

    def add(self, slot: Slot) -> Slot | None:
        self.latest.append(slot)
        return self.latest.pop(0) if len(self.latest) > self.capacity else None
