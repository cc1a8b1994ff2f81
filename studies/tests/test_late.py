"""The study "Lost, or late?": its runs, the marks on a made-up curve, and the fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedraw.eventlog.goals import RARE_GOALS
from fedraw_studies.artefacts import LATE, Scale
from fedraw_studies.cells import CellFiles, CellRecord
from fedraw_studies.execute import Machine
from fedraw_studies.late import LateRow, late_rows
from fedraw_studies.late_render import write_late
from fedraw_studies.late_results import (
    LateResults,
    censored_line,
    for_good,
    late_results,
    reached_by,
)
from fedraw_studies.late_standings import federation, read_standings
from fedraw_studies.outcomes import outcomes
from fedraw_studies.plan import key_of, load_artefacts, settings_of

CPU = Scale.named("cpu")
EVERY, LENGTH = 75, 15_000


def rows(*methods: str, setting: str = "2x") -> list[LateRow]:
    every = late_rows("digits", CPU)
    return [r for r in every if r.setting.name == setting and r.method.name in methods]


def cell(row: LateRow, seed: int, rare: list[float]) -> CellRecord:
    """A run of 15,000 arrivals, one a second, in which both rare labels have this recall."""
    events = range(EVERY, EVERY * (len(rare) + 1), EVERY)
    content: dict[str, Any] = {
        "metrics": {}, "tail": {}, "recall": {}, "influence": {},
        "data": {}, "fedraw": "0",
        "seconds": 1.0, "date": "", "cores": 2, "machine": "",
    }  # fmt: skip
    return CellRecord(
        key=key_of(row.spec), seed=seed, spec=settings_of(row.spec),
        curve=[(e, 80.0, v) for e, v in zip(events, rare, strict=True)],
        times=[float(e) for e in events], rare_curves={"8": rare, "9": rare}, **content,
    )  # fmt: skip


def result(tmp_path: Path, *cells: CellRecord) -> LateResults:
    for own in cells:
        CellFiles(tmp_path).write(own, "paper")
    (outcome,) = outcomes(CellFiles(tmp_path), CPU, ["late-digits"])
    return late_results("digits", CPU, outcome, read_standings(tmp_path))


def test_the_first_tenth_of_each_run_is_the_arenas_run() -> None:
    arena = {key_of(r.spec): r for r in load_artefacts(["arena-digits"], CPU)[0].rows}
    short = rows("FedFa", "CA2FL")
    for row in short:
        run = {"run.events": row.early, "run.evaluate_every": EVERY}
        assert key_of(row.spec.with_changes(run)) in arena
        assert (row.early, row.spec.run.events) == (1500, LENGTH)


def test_a_label_is_kept_late_or_lost(tmp_path: Path) -> None:
    """Marks are passed at the first of five evaluations whose mean is above them."""
    fedfa, ca2fl, replay = rows("FedFa", "CA2FL", "Replay")
    found = result(
        tmp_path,
        cell(fedfa, 9101, [0.0] * 200),
        cell(ca2fl, 9101, [0.0] * 100 + [60.0] * 100),
        cell(replay, 9101, [0.0, 90.0, 0.0, 0.0] + [85.0] * 196),
    )
    by_method = {score.row.method.name: score for score in found.scores}
    assert {name: own.verdict for name, own in by_method.items()} == {
        "FedFa": "lost", "CA2FL": "late", "Replay": "kept",
    }  # fmt: skip
    goal = next(iter(by_method["CA2FL"].reached))
    # Four of the five evaluations from number 100 on have 60, so their mean is 48; from 101 on, 60.
    assert by_method["CA2FL"].reached[goal].median("arrivals") == 101 * EVERY
    # The evaluations from number 2 on are 90, 0, 0, 85, 85: 52.
    assert by_method["Replay"].reached[goal].median("arrivals") == 2 * EVERY
    assert by_method["CA2FL"].early.mean == 0.0
    assert by_method["CA2FL"].late.mean == 60.0


def test_a_mark_that_is_passed_can_be_lost_again() -> None:
    """The last five evaluations below 50 on average are 0 and four of 60, numbers 55 to 59."""
    (fedfa,) = rows("FedFa")
    falls = cell(fedfa, 9101, [60.0] * 50 + [0.0] * 5 + [60.0] * 145)
    rises = cell(fedfa, 9102, [60.0] * 200)
    ends_low = cell(fedfa, 9103, [60.0] * 199 + [0.0])
    half, _ = RARE_GOALS
    for run, first, last in ((falls, 1, 56), (rises, 1, 1), (ends_low, 1, None)):
        assert reached_by({1: run}, half).median("arrivals") == first * EVERY
        expected = None if last is None else last * EVERY
        assert for_good({1: run}, half).median("arrivals") == expected
    assert str(for_good({1: ends_low}, half)) == "not within 15,000"


def test_fedfa_has_caught_up_if_nothing_says_otherwise(tmp_path: Path) -> None:
    fedfa, ca2fl = rows("FedFa", "CA2FL")
    cells = [cell(fedfa, s, [own] * 200) for s, own in ((9101, 60.0), (9102, 64.0))]
    cells += [cell(ca2fl, s, [own] * 200) for s, own in ((9101, 70.0), (9102, 72.0))]
    (difference,) = result(tmp_path, *cells).caught_up()
    assert difference[:2] == ("2x", "CA2FL")
    assert difference[2] == pytest.approx((-9.0, -9 - 12.706, -9 + 12.706), abs=1e-3)


def test_the_document_names_the_missing_runs_and_the_standing(tmp_path: Path) -> None:
    fedfa, ca2fl = rows("FedFa", "CA2FL")
    standing = {"fedfa": {"8": 0.1, "9": 0.2}, "ca2fl": {"8": 0.4, "9": 0.4}}
    known = {federation(fedfa, 9101): standing}
    (tmp_path / "late-standings.json").write_text(json.dumps(known))
    CellFiles(tmp_path).write(cell(fedfa, 9101, [0.0] * 100 + [60.0] * 100), "paper")
    CellFiles(tmp_path).write(cell(ca2fl, 9101, [60.0] * 200), "paper")
    text = write_late(outcomes(CellFiles(tmp_path), CPU, LATE), CPU, tmp_path, Machine())
    assert "**Unfinished: 118 runs are missing.**" in text
    assert "4 of 4" in text
    assert (tmp_path / "late.md").read_text() == text


def test_a_censored_value_is_larger_than_it_looks() -> None:
    """Half of the values are cut off at 3: the line that ignores this is too flat."""
    rng = np.random.default_rng(1)
    x = rng.uniform(-2, 0, 2000)
    y = 1 - 2 * x + rng.normal(0, 0.3, x.size)
    cut = np.minimum(y, 3.0)
    a, b, sd = censored_line(x, cut, y > 3.0)
    assert (a, b, sd) == pytest.approx((1.0, -2.0, 0.3), abs=0.05)
    assert censored_line(x, cut, np.zeros(x.size, bool))[1] > -1.5
