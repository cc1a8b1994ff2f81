"""What was asked of whom and is not answered yet."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fedraw.server.orders import Order

# An answer that is late is still welcome for so many deadlines.
WELCOME = 3


@dataclass(eq=False)
class Dispatch:
    """An order under way."""

    order: Order
    time: float  # when it was made
    event: int
    overdue: bool = False  # an answer may still come, and is welcome
    replaced: bool = False  # another answer came first

    @property
    def due(self) -> float:
        return self.time + self.order.deadline

    @property
    def ends(self) -> float:
        return self.time + WELCOME * self.order.deadline


class Dispatches:
    """Orders under way, by the ticket under which the engine expects the answer."""

    def __init__(self) -> None:
        self._made: dict[int, Dispatch] = {}
        self._by_ticket: dict[str, Dispatch] = {}
        self._number = 0

    def __iter__(self) -> Iterator[Dispatch]:
        yield from [*self._made.values(), *self._by_ticket.values()]

    @property
    def tickets(self) -> list[str]:
        return list(self._by_ticket)

    def next_number(self) -> int:
        self._number += 1
        return self._number

    def make(self, dispatch: Dispatch) -> Order:
        self._made[dispatch.order.number] = dispatch
        return dispatch.order

    def sent(self, order: Order, ticket: str) -> None:
        self._by_ticket[ticket] = self._made.pop(order.number)

    def not_sent(self, order: Order) -> None:
        del self._made[order.number]

    def find(self, ticket: str) -> Dispatch | None:
        return self._by_ticket.get(ticket)

    def close(self, ticket: str) -> None:
        del self._by_ticket[ticket]

    def replace(self, answered: Dispatch) -> None:
        """Whatever else the site was asked to train is settled with this answer."""
        for other in self:
            if other.order.site == answered.order.site and other.order.kind == "train":
                other.replaced = other is not answered

    def age(self, now: float) -> None:
        """Mark what is overdue, and give up what is long overdue."""
        for dispatch in self:
            dispatch.overdue = dispatch.overdue or now > dispatch.due
        for ticket, dispatch in list(self._by_ticket.items()):
            if now > dispatch.ends:
                del self._by_ticket[ticket]

    def busy(self, node: int, kind: str) -> bool:
        """Whether the node has such an order and is still within its time."""
        return any(d.order.node == node and d.order.kind == kind and not d.overdue for d in self)
