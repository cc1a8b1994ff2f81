"""The loop between Flower's grid and the coordinator; a stop signal takes effect at a wait."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import httpx
from flwr.app import Message
from flwr.serverapp import Grid
from flwr.supercore.run import RunNotRunningException

from fedraw.flower.messages import TRANSPORT_ERRORS, FlowerCodec
from fedraw.server.coordinator import Coordinator
from fedraw.server.problems import Problems
from fedraw.server.tasks import Failure, Reply, Task

LOGGER = logging.getLogger("fedraw.server")

# Flower's grid waits while the SuperLink is down, but still raises these errors for TLS errors at
# the start and for internal errors of the SuperLink.
UNREACHABLE = (httpx.HTTPError, ConnectionError, TimeoutError)

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Stopped(BaseException):
    """Ends a wait after a stop signal; a BaseException, so that no handler of errors catches it."""


class StopSignals:
    """Replaces Flower's signal handlers until the federation is on disk.

    Flower's handlers end the process at once, even in the middle of a write. Here a signal raises
    Stopped while the process is `waiting` (for the SuperLink, or for the next turn). At other
    times the next wait raises it.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._waiting = False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        # In a simulation the ServerApp runs in a thread, which receives no signals.
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._handle) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Let a signal raise Stopped at once in this block."""
        self._waiting = True
        try:
            # After a crash of a simulation, the thread of its ServerApp is still running.
            if self.received is not None or not threading.main_thread().is_alive():
                raise Stopped
            yield
        finally:
            self._waiting = False

    def pass_on(self) -> None:
        """Raise the signal again for the previous handler."""
        if self.received is not None:
            signal.raise_signal(self.received)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        self.received = number
        if self._waiting:
            raise Stopped


def run_federation(grid: Grid, coordinator: Coordinator, codec: FlowerCodec, poll: float) -> None:
    """Run a federation until it ends, or until this process or this run is asked to stop."""
    with StopSignals() as signals:
        loop = ServerLoop(grid, coordinator, codec, poll, signals)
        try:
            loop.run()
        except (Stopped, RunNotRunningException) as reason:
            LOGGER.info(
                "received a stop signal; a new run with the same folder continues from here"
            )
            loop.close()
            if not isinstance(reason, Stopped):
                raise
        finally:
            coordinator.abandon()
    signals.pass_on()


class ServerLoop:
    """Repeats one turn: list the nodes, send tasks, collect replies, check deadlines.

    Replies are pulled one at a time. Flower hands out each reply only once, so a problem with one
    reply must not lose another, and at most one reply waits in memory while the disk is full.
    """

    def __init__(
        self,
        grid: Grid,
        coordinator: Coordinator,
        codec: FlowerCodec,
        poll: float,
        signals: StopSignals,
    ) -> None:
        self._grid = grid
        self._coordinator = coordinator
        self._codec = codec
        self._poll = poll
        self._signals = signals
        self._nodes: frozenset[int] = frozenset()
        self._unsent: list[tuple[Task, Message]] = []
        self._waiting_reply: tuple[str, Reply] | None = None
        self._due: dict[str, float] = {}
        self._problems = Problems()
        self._closed = False

    def run(self) -> None:
        """Run until the federation has ended and no reply is outstanding."""
        while self._coordinator.finished is None:
            self.turn()
            self._sleep()
        LOGGER.info("training has ended: %s", self._coordinator.finished)
        # The end is written before waiting for replies, because a site may not reply for long.
        while not self._problems.try_write("the end", self._close):
            self._sleep()
        self._drain()

    def close(self) -> None:
        """Write a snapshot before the process stops."""
        if not self._closed:
            self._problems.try_write("the snapshot", self._close)

    def _close(self) -> None:
        self._coordinator.close(time.monotonic())
        self._closed = True

    def turn(self) -> None:
        """Do one turn."""
        try:
            self._list_nodes()
            self._push()
            self._pull()
        except UNREACHABLE as problem:
            text = "the SuperLink is unreachable and will be tried again: %s"
            self._problems.report("grid", text, problem)
        else:
            self._problems.resolved("grid", "the SuperLink is reachable again")
        if self._coordinator.finished is None:
            # A node counts as online until a list lacks it: a reply may take long to handle.
            now = time.monotonic()
            self._coordinator.online(self._nodes, now)
            self._problems.try_write("the log", lambda: self._coordinator.tick(now))

    def _list_nodes(self) -> None:
        with self._signals.waiting():
            nodes = frozenset(self._grid.get_node_ids())
        now = time.monotonic()
        # While the SuperLink was unreachable, its nodes were not absent.
        self._coordinator.online(self._nodes, now)
        self._coordinator.online(nodes, now)
        self._nodes = nodes

    def _push(self) -> None:
        now = time.monotonic()
        self._unsent += [(task, self._codec.message(task)) for task in self._coordinator.tasks(now)]
        while self._unsent:
            task, message = self._unsent[0]
            try:
                # A repeated message has the same id, so the SuperLink stores it once.
                with self._signals.waiting():
                    message_id = next(iter(self._grid.push_messages([message])), None)
                reason = "Flower did not accept the message"
            except UNREACHABLE as problem:
                if not isinstance(problem, httpx.HTTPStatusError):
                    raise
                message_id, reason = None, _first_line(problem)
            except Exception as problem:  # only this message failed; the others can still be sent
                message_id, reason = None, f"{type(problem).__name__}: {_first_line(problem)}"
            del self._unsent[0]
            if message_id:
                self._coordinator.sent(task, message_id)
                self._due[message_id] = time.monotonic() + task.deadline
            else:
                self._coordinator.not_sent(task, reason, time.monotonic())

    def _pull(self) -> None:
        problem: httpx.HTTPStatusError | None = None
        for message_id in self._coordinator.message_ids if self._hand_in() else ():
            try:
                self._waiting_reply = self._fetch(message_id)
            except httpx.HTTPStatusError as error:  # the other replies may be readable
                problem = error
            if not self._hand_in() or self._coordinator.finished is not None:
                break
        if problem is not None:
            raise problem

    def _fetch(self, message_id: str) -> tuple[str, Reply] | None:
        """Return the reply to a message, or None if there is no reply yet."""
        try:
            with self._signals.waiting():
                replies = list(self._grid.pull_messages([message_id]))
        except UNREACHABLE:
            raise
        except KeyError as missing:  # the grid of a simulation raises this for an expired message
            expired = missing.args == (message_id,)
            reason = TRANSPORT_ERRORS[3] if expired else f"unreadable reply: KeyError {missing}"
            return message_id, Failure(reason, site_fault=not expired)
        except Exception as problem:  # Flower cannot read the bytes
            kind = type(problem).__name__
            return message_id, Failure(f"unreadable reply: {kind} {_first_line(problem)}")
        for reply in replies:
            # A reply of the SuperLink itself has another sender, but the same message id.
            if reply.metadata.reply_to_message_id == message_id:
                return message_id, self._codec.read_reply(reply)
        return None

    def _hand_in(self) -> bool:
        """Hand in the waiting reply, if any; return False if it could not be written."""
        if self._waiting_reply is not None:
            message_id, reply = self._waiting_reply
            hand_in = self._coordinator.receive
            if not self._problems.try_write(
                "an update", lambda: hand_in(message_id, reply, time.monotonic())
            ):
                return False
            self._waiting_reply = None
            self._due.pop(message_id, None)
        return True

    def _drain(self) -> None:
        """Wait for outstanding replies, because their client processes would otherwise remain."""
        awaited = set(self._coordinator.message_ids)
        self._due = {
            message_id: due for message_id, due in self._due.items() if message_id in awaited
        }
        if self._due:
            LOGGER.info("waiting for %d outstanding replies", len(self._due))
        while self._due:
            for message_id, due in list(self._due.items()):
                try:
                    replied = self._fetch(message_id) is not None
                except UNREACHABLE:
                    replied = False
                if replied or time.monotonic() > due:
                    del self._due[message_id]
            if self._due:
                self._sleep()

    def _sleep(self) -> None:
        with self._signals.waiting():
            time.sleep(self._poll)


def _first_line(problem: Exception) -> str:
    return next(iter(str(problem).splitlines()), "")[:200]
