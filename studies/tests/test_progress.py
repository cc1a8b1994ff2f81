"""What a plan says of itself: the time left from the start, and the summary at the end."""

from __future__ import annotations

from typing import Any

import pytest

from fedraw.errors import FedrawError
from fedraw_studies import progress
from fedraw_studies.artefacts import Scale
from fedraw_studies.execute import FailedRun
from fedraw_studies.plan import load_artefacts, make_plan
from fedraw_studies.progress import Closing, PlanProgress

PLAN = make_plan(load_artefacts(["table4"], Scale.named("smoke")))


class Bar:
    """A bar that keeps its last text."""

    text = ""

    def update(self, task: int, **fields: Any) -> None:
        self.text = fields["left"]


def test_the_time_left_starts_with_the_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    bar: Any = Bar()
    seconds = [60.0] * 6
    monkeypatch.setattr(progress, "_cost", lambda planned: seconds[PLAN.index(planned)])
    monkeypatch.setattr(progress, "total_seconds", lambda plan: sum(seconds))
    shown = PlanProgress(PLAN, 2, bar, bar)
    assert bar.text == "0/6 runs; about 3 min 00 s left, as estimated before the start"
    for number in range(6):
        shown.finished(number, FedrawError("no"))
    assert bar.text == "6/6 runs"


def test_a_summary_says_what_was_run_reused_and_failed() -> None:
    failed = FailedRun(PLAN[2], "the disk is full")
    closing = Closing(PLAN, PLAN[1:4], [failed], 125.0, "reused, 30 seeds")
    assert closing.lines() == [
        "failed: table4, 10x, FedFa, seed 42: the disk is full",
        "run: 2 runs (table4 2); reused: 3 finished runs; failed: 1",
        "dynamics: reused, 30 seeds",
        "done in 2 min 05 s",
    ]
    document = closing.as_json()
    assert document["ran"] == [PLAN[1].name, PLAN[3].name]
    assert document["failed"] == [{"run": PLAN[2].name, "why": "the disk is full"}]


def test_a_summary_of_nothing_to_do() -> None:
    lines = Closing(PLAN, [], [], 1.0).lines()
    assert lines == ["run: 0 runs; reused: 6 finished runs; failed: none", "done in 1 s"]
