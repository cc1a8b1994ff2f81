"""Progress: an estimate that is sane from its first appearance, and lines that name the data."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest

from fedraw.cli import console
from fedraw.experiment.cells import Cell
from fedraw.experiment.progress import RemainingTime
from fedraw.experiment.spec import Spec


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def errors_of_three_runs(clock: Clock, remaining: RemainingTime) -> list[float | None]:
    """Three runs of 100 events on two processes, which take ten seconds to start.

    Return the error of the estimate after each second, as a share of the true time left.
    """
    errors: list[float | None] = []
    for second in range(1, 200):
        clock.now = 10 + second
        for number, events in ((0, second), (1, second), (2, second - 100)):
            if 0 < events <= 100:
                remaining.report(number, events)
        seconds = remaining.seconds()
        errors.append(None if seconds is None else seconds / (200 - second) - 1)
    return errors


def test_the_estimate_is_right_from_the_start_and_never_jumps() -> None:
    clock = Clock()
    errors = errors_of_three_runs(clock, RemainingTime([100, 100, 100], jobs=2, clock=clock))
    assert errors[:2] == [None, None]
    known = [error for error in errors if error is not None]
    assert len(known) > 190
    assert max(map(abs, known)) < 0.02


def test_events_of_an_earlier_run_do_not_count_as_fast() -> None:
    clock = Clock()
    resumed = RemainingTime([1000], clock=clock)
    for second in range(31):
        clock.now = second
        resumed.report(0, 900 + second)
    assert resumed.seconds() == pytest.approx(70)
    assert str(resumed) == "about 1 min 10 s left"


def test_a_finished_run_that_is_kept_takes_no_time() -> None:
    clock = Clock()
    kept = RemainingTime([100, 100], clock=clock)
    kept.report(0, 100)
    for second in range(11):
        clock.now = second
        kept.report(1, second)
    assert kept.seconds() == pytest.approx(90)


@pytest.mark.parametrize("work", [[], [(0, 5.0)], [(0, 5.0), (0, 5.0)]])
def test_nothing_is_said_before_anything_was_measured(work: list[tuple[int, float]]) -> None:
    remaining = RemainingTime([10], clock=iter(range(0, 1000, 100)).__next__)
    for number, amount in work:
        remaining.report(number, amount)
    assert remaining.seconds() is None
    assert str(remaining) == ""


def test_lines_name_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    terminal = console.SafeConsole(file=screen, force_terminal=True, width=120)
    monkeypatch.setattr(console, "err", terminal)
    spec = Spec()
    own = replace(spec, data=replace(spec.data, name="npz", path="/data/lungs.npz"))
    for cells, words in (
        ([Cell(spec, 1), Cell(spec, 2)], "digits: 2 runs"),
        ([Cell(own, 1)], "lungs.npz: 1 run"),
    ):
        with console.cell_progress(cells, jobs=2) as progress:
            progress(0, 30)
        assert words in screen.getvalue()
        assert "30/" in screen.getvalue()


def test_a_slow_task_without_a_terminal_prints_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines, clock = io.StringIO(), Clock()
    monkeypatch.setattr(console, "err", console.SafeConsole(file=lines, width=120))
    with console.task_progress(clock) as progress:
        for second in range(0, 81, 5):
            clock.now = second
            progress("features", 10 * second, 1000)
    assert lines.getvalue().splitlines() == [
        "features: 100/1,000, about 1 min 30 s left",
        "features: 700/1,000, about 30 s left",
    ]


def test_a_quick_task_without_a_terminal_prints_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    lines, clock = io.StringIO(), Clock()
    monkeypatch.setattr(console, "err", console.SafeConsole(file=lines, width=120))
    with console.task_progress(clock) as progress:
        for second in range(10):
            clock.now = second
            progress("features", 100 * second, 900)
    assert not lines.getvalue()
