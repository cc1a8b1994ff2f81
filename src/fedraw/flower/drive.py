"""The loop between Flower's grid and the coordinator."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import httpx
from flwr.app import Message
from flwr.serverapp import Grid
from flwr.supercore.run import RunNotRunningException

from fedraw.flower.messages import MISHAPS, Post
from fedraw.flower.stop_signals import Stopped, StopSignals
from fedraw.server.coordinator import Coordinator
from fedraw.server.orders import Answer, Failure, Order

LOG = logging.getLogger("fedraw.server")

# Flower's grid waits by itself while the SuperLink is down; these come through all the same (TLS
# trouble while it starts, an internal error of the SuperLink).
UNREACHABLE = (httpx.HTTPError, ConnectionError, TimeoutError)


def drive(grid: Grid, coordinator: Coordinator, post: Post, poll: float) -> None:
    """Run a federation to its end, or until someone asks this process or this run to stop."""
    with StopSignals() as signals:
        loop = Loop(grid, coordinator, post, poll, signals)
        try:
            loop.run()
        except (Stopped, RunNotRunningException) as reason:
            LOG.info("asked to stop; a new run with the same folder goes on from here")
            loop.leave()
            if not isinstance(reason, Stopped):
                raise
        finally:
            coordinator.abandon()
    signals.pass_on()


class Loop:
    """One turn after another: look who is there, send, collect, let the clock decide.

    Replies are pulled one at a time. Flower hands each out once, so whatever goes wrong with one
    of them costs no other; and no more than one waits in memory while the disk is full.
    """

    def __init__(
        self,
        grid: Grid,
        coordinator: Coordinator,
        post: Post,
        poll: float,
        signals: StopSignals,
    ) -> None:
        self._grid = grid
        self._coordinator = coordinator
        self._post = post
        self._poll = poll
        self._signals = signals
        self._nodes: frozenset[int] = frozenset()
        self._unsent: list[tuple[Order, Message]] = []
        self._kept: tuple[str, Answer] | None = None
        self._due: dict[str, float] = {}
        self._troubles: set[str] = set()
        self._closed = False

    def run(self) -> None:
        while self._coordinator.finished is None:
            self.turn()
            self._sleep()
        LOG.info("training has ended: %s", self._coordinator.finished)
        # First of all: a site that hangs may keep this process waiting for long.
        while not self._written("the end", self._close):
            self._sleep()
        self._drain()

    def leave(self) -> None:
        if not self._closed:
            self._written("the snapshot", self._close)

    def _close(self) -> None:
        self._coordinator.close(time.monotonic())
        self._closed = True

    def turn(self) -> None:
        try:
            self._look()
            self._push()
            self._pull()
        except UNREACHABLE as problem:
            self._trouble("grid", "the SuperLink cannot be reached, trying on: %s", problem)
        else:
            self._better("grid", "the SuperLink is reached again")
        if self._coordinator.finished is None:
            self._written("the log", lambda: self._coordinator.tick(time.monotonic()))

    def _look(self) -> None:
        with self._signals.waiting():
            nodes = frozenset(self._grid.get_node_ids())
        now = time.monotonic()
        # If the SuperLink was away for long, its nodes were not: they are missed from now on.
        self._coordinator.online(self._nodes, now)
        self._coordinator.online(nodes, now)
        self._nodes = nodes

    def _push(self) -> None:
        now = time.monotonic()
        self._unsent += [
            (order, self._post.message(order)) for order in self._coordinator.orders(now)
        ]
        while self._unsent:
            order, message = self._unsent[0]
            try:
                # The same message again has the same id: a SuperLink that has it keeps it once.
                with self._signals.waiting():
                    ticket = next(iter(self._grid.push_messages([message])), None)
                reason = "Flower did not take the message"
            except UNREACHABLE as problem:
                if not isinstance(problem, httpx.HTTPStatusError):
                    raise
                ticket, reason = None, _first_line(problem)
            except Exception as problem:  # of this one message; the others can still be sent
                ticket, reason = None, f"{type(problem).__name__}: {_first_line(problem)}"
            del self._unsent[0]
            if ticket:
                self._coordinator.sent(order, ticket)
                self._due[ticket] = time.monotonic() + order.deadline
            else:
                self._coordinator.not_sent(order, reason, time.monotonic())

    def _pull(self) -> None:
        problem: httpx.HTTPStatusError | None = None
        for ticket in self._coordinator.tickets if self._hand_in() else ():
            try:
                self._kept = self._fetch(ticket)
            except httpx.HTTPStatusError as error:  # perhaps of this reply only
                problem = error
            if not self._hand_in() or self._coordinator.finished is not None:
                break
        if problem is not None:
            raise problem

    def _fetch(self, ticket: str) -> tuple[str, Answer] | None:
        """The reply to one message, if it is there."""
        try:
            with self._signals.waiting():
                replies = list(self._grid.pull_messages([ticket]))
        except UNREACHABLE:
            raise
        except KeyError as missing:  # how the grid of a simulation says "expired"
            expired = missing.args == (ticket,)
            reason = MISHAPS[3] if expired else f"unreadable reply: KeyError {missing}"
            return ticket, Failure(reason, to_blame=not expired)
        except Exception as problem:  # bytes that Flower itself cannot make a message of
            kind = type(problem).__name__
            return ticket, Failure(f"unreadable reply: {kind} {_first_line(problem)}")
        for reply in replies:
            # A reply that the SuperLink made up has another sender, but answers the same message.
            if reply.metadata.reply_to_message_id == ticket:
                return ticket, self._post.answer(reply)
        return None

    def _hand_in(self) -> bool:
        """Whether nothing is left to hand in."""
        if self._kept is not None:
            ticket, answer = self._kept
            hand_in = self._coordinator.answer
            if not self._written("an update", lambda: hand_in(ticket, answer, time.monotonic())):
                return False
            self._kept = None
            self._due.pop(ticket, None)
        return True

    def _drain(self) -> None:
        """Wait for what is still under way: left alone, it would leave client processes behind."""
        awaited = set(self._coordinator.tickets)
        self._due = {ticket: due for ticket, due in self._due.items() if ticket in awaited}
        if self._due:
            LOG.info("waiting for %d replies that are still under way", len(self._due))
        while self._due:
            for ticket, due in list(self._due.items()):
                try:
                    if self._fetch(ticket) is not None or time.monotonic() > due:
                        del self._due[ticket]
                except UNREACHABLE:
                    if time.monotonic() > due:
                        del self._due[ticket]
            if self._due:
                self._sleep()

    def _sleep(self) -> None:
        with self._signals.waiting():
            time.sleep(self._poll)

    def _written(self, what: str, act: Callable[[], None]) -> bool:
        """Do something that writes; whether the disk let it."""
        try:
            act()
        except OSError as problem:
            why = problem.strerror or problem
            self._trouble(what, f"{what} cannot be written, it is kept and tried again: %s", why)
            return False
        self._better(what, f"{what} could be written")
        return True

    def _trouble(self, key: str, text: str, problem: object) -> None:
        """Said once, until it is over."""
        if key not in self._troubles:
            self._troubles.add(key)
            LOG.warning(text, problem)

    def _better(self, key: str, text: str) -> None:
        if key in self._troubles:
            self._troubles.remove(key)
            LOG.info(text)


def _first_line(problem: Exception) -> str:
    return next(iter(str(problem).splitlines()), "")[:200]
