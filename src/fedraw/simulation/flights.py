"""Flights: what becomes of a training between the hand-out of the model and its end.

The arrival law says how long a training takes. A flight says when its update arrives, if it does:
clients go offline, leave, transfer slowly, and updates are lost. The end of a
flight is known when it begins, because everything that decides it is a pure function of the seed,
the client and the time. So no executor ever trains for an update that does not arrive.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, NamedTuple, Protocol

from fedraw.simulation.arrivals import Drawn
from fedraw.simulation.availability import OnlineProcess

# What a client that goes offline does with its work: it goes on when it is back, or starts anew.
Interrupted = Literal["pause", "lose"]

WENT_OFFLINE = "it went offline and lost its work"
LOST = "its update was lost on the way"
LEFT = "it left"


class Flight(NamedTuple):
    """When a training ends, and whether its update then reaches the server.

    `reason` says why it does not; it is empty if the update arrives. `paused` are the seconds that
    the client was offline meanwhile. A flight that never ends has an infinite end.
    """

    ends: float
    reason: str = ""
    paused: float = 0.0


class Conditions(Protocol):
    """Says when clients can be handed the model, and what becomes of their trainings."""

    @property
    def why_never(self) -> str:
        """Why nobody comes online any more, if that is so."""
        ...

    def ready(self, client: int, now: float) -> float:
        """From when on the client can be handed the model: `now`, later, or never (infinity)."""
        ...

    def flight(self, client: int, training: int, now: float, seconds: float) -> Flight:
        """Return what becomes of a training of so many seconds that begins now."""
        ...


class LossLaw:
    """Updates that are lost with the same probability each.

    Args:
        uniform: A number from 0 to 1 for each client and training, as `Drawn` makes them.
        lost: The probability that an update is lost.

    """

    def __init__(self, uniform: Drawn, lost: float) -> None:
        self._uniform = uniform
        self._lost = lost

    def loses(self, client: int, training: int) -> bool:
        """Return whether the update of a training is lost."""
        return self._uniform.duration(client, training) < self._lost


class Flights:
    """The conditions of a run, put together from those that its spec names.

    Args:
        online: When clients are online; by default always.
        interrupted: What a client that goes offline does with its work.
        losses: Which updates are lost.
        leaves: When the client at a position leaves next, after a time; infinite if never.
        transfer: How long the client at a position takes to download and upload the model.
        why_never: Why nobody comes online any more, if that happens.

    """

    def __init__(
        self,
        online: OnlineProcess | None = None,
        interrupted: Interrupted = "pause",
        losses: LossLaw | None = None,
        leaves: Callable[[int, float], float] | None = None,
        transfer: Callable[[int], float] | None = None,
        why_never: str = "no client comes online again",
    ) -> None:
        self._online = online
        self._interrupted = interrupted
        self._losses = losses
        self._leaves = leaves
        self._transfer = transfer
        self.why_never = why_never

    def ready(self, client: int, now: float) -> float:
        """From when on the client can be handed the model."""
        if self._online is None:
            return now
        online, until = self._online.phase(client, now)
        return now if online else until

    def flight(self, client: int, training: int, now: float, seconds: float) -> Flight:
        """Return what becomes of a training."""
        leaves = math.inf if self._leaves is None else self._leaves(client, now)
        if self._transfer is not None:
            seconds += self._transfer(client)
        flight = Flight(now + seconds)
        if self._online is not None:
            flight = self._finish(self._online, client, now, seconds, leaves)
        if leaves <= flight.ends:
            return Flight(leaves, LEFT)
        if not flight.reason and self._losses is not None and self._losses.loses(client, training):
            return flight._replace(reason=LOST)
        return flight

    def _finish(
        self, process: OnlineProcess, client: int, now: float, left: float, leaves: float
    ) -> Flight:
        """Return the end of so many seconds of work, for which the client has to be online."""
        time, paused = now, 0.0
        while time < leaves:
            online, until = process.phase(client, time)
            if online:
                if left <= until - time:
                    return Flight(time + left, paused=paused)
                left -= until - time
            elif self._interrupted == "lose":
                return Flight(time, WENT_OFFLINE)
            else:
                paused += until - time
            time = until
        return Flight(time, paused=paused)
