"""A jump of the wall clock, during a run or between two runs, changes only displayed times."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message, RecordDict
from flwr.supercore.run import RunNotRunningException
from tests.flower.memory_grid import MemoryGrid, identity
from tests.flower.test_loop import a_grid, lead, log

pytestmark = pytest.mark.usefixtures("identity")
assert identity

HOUR, DAY = 3600.0, 86400.0


class Clock:
    """The machine's wall clock, shifted by `shift` seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.shift = 0.0
        real = time.time
        monkeypatch.setattr("time.time", lambda: real() + self.shift)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def at_look(grid: MemoryGrid, number: int, act: Callable[[], object], limit: int = 400) -> None:
    """Call a function at one turn of the loop; fail after too many turns."""
    looks: list[str] = []

    def before(call: str) -> None:
        looks.append(call)
        if call == "look" and looks.count("look") == number:
            act()
        assert looks.count("look") < limit, f"no end after {limit} turns"

    grid.before = before


def stop() -> None:
    raise RunNotRunningException


def test_snapshots_continue_when_the_clock_is_set_back(tmp_path: Path, clock: Clock) -> None:
    grid, seen = a_grid(), set[str]()
    at_look(grid, 6, lambda: setattr(clock, "shift", -HOUR))
    jump = grid.before

    def before(call: str) -> None:
        jump(call)
        if clock.shift:
            seen.update(path.name for path in (tmp_path / "checkpoint").glob("*[0-9]"))

    grid.before = before
    lead(grid, tmp_path, arrivals=30, snapshot_every=0.001)
    assert len(seen) > 4, "a snapshot a turn, also after the jump"


def test_a_site_in_back_off_is_asked_again_when_the_clock_is_set_back(
    tmp_path: Path, clock: Clock
) -> None:
    grid = a_grid()
    failed: list[Message] = []

    def tamper(reply: Message) -> Message:
        if reply.metadata.message_type == "train" and len(failed) < 3:
            failed.append(reply)
            reply.content = RecordDict()
        return reply

    def set_back() -> None:
        assert len(failed) == 3, "all three sites are in back-off"
        clock.shift = -DAY

    grid.tamper = tamper
    at_look(grid, 3, set_back)
    lead(grid, tmp_path)
    assert len(failed) == 3 and len(log(tmp_path, "arrival")) == 9


def test_a_clock_set_forward_does_not_end_a_federation(tmp_path: Path, clock: Clock) -> None:
    grid = a_grid()
    at_look(grid, 3, lambda: setattr(clock, "shift", DAY))
    lead(grid, tmp_path, seconds=HOUR)
    assert log(tmp_path, "end")[0]["reason"] == "9 updates accepted"
    times = [record["time"] for record in log(tmp_path) if "time" in record]
    assert times == sorted(times) and times[-1] < HOUR


@pytest.mark.parametrize("shift", [DAY, -DAY])
def test_a_clock_set_between_two_runs_does_not_end_a_federation(
    tmp_path: Path, clock: Clock, shift: float
) -> None:
    grid = a_grid()
    at_look(grid, 5, stop)
    limits: dict[str, Any] = {"seconds": HOUR, "arrivals": 12}
    with pytest.raises(RunNotRunningException):
        lead(grid, tmp_path, **limits)
    clock.shift = shift
    grid = a_grid()
    at_look(grid, 0, lambda: None)
    lead(grid, tmp_path, **limits)
    assert log(tmp_path, "end")[0]["reason"] == "12 updates accepted"
    (restarted,) = log(tmp_path, "restarted")
    # The one thing that wall time is used for: to tell how long the server was away.
    assert restarted["gap"] == pytest.approx(max(0.0, shift), abs=600)
    times = [record["time"] for record in log(tmp_path) if "time" in record]
    assert times == sorted(times) and 0 <= times[-1] < HOUR
