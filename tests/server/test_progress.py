"""The line about the progress of a federation that a server logs at an interval."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest
from tests.eventlog.federation_log import STORY, write
from tests.server.conftest import MakeEngine

from fedraw.eventlog.live import LabelRisk
from fedraw.server.progress import ServerProgress, progress_text


def test_progress_is_logged_at_an_interval(
    make_engine: MakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "fedraw.server"):
        engine = make_engine(progress_every=30.0)
        engine.accept(1)
        engine.wait(100.0)
    lines = [r.message for r in caplog.records if "arrivals; version" in r.message]
    assert len(lines) == 3
    assert re.fullmatch(r"\d+ of 1,000 arrivals; version \d+; 4 sites; no label at risk", lines[0])


def test_the_text_of_a_progress_line(tmp_path: Path) -> None:
    log = write(tmp_path / "events.jsonl", STORY)
    line = ServerProgress(log.parent, 60.0)
    follower = line._follower
    follower.poll()
    detail = follower.detail()
    assert isinstance(detail.at_risk[0], LabelRisk)
    assert progress_text(follower.status(0.0), detail) == (
        "5 arrivals; version 5; GlobalAcc 80.0; AvgRare 60.0; 2 sites; "
        "labels at risk: owl (last holder gone)"
    )
