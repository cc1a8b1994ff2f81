"""Every method decides what it decided when its run was pinned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tools.golden import (
    DEMO,
    EVALUATION_TOLERANCE,
    METHODS,
    WEIGHT_TOLERANCE,
    decision_trace,
    difference,
    golden_runs,
    outcome_of,
    pinned_logs,
    pinned_traces,
)

from fedraw.experiment.demo import demo_specs
from fedraw.experiment.spec import Spec
from fedraw.strategies.catalog import CATALOG

RUNS, TRACES, LOGS = golden_runs(), pinned_traces(), pinned_logs()


@pytest.mark.parametrize("name", RUNS)
def test_a_run_decides_what_it_decided_before(name: str) -> None:
    run = RUNS[name]
    outcome = outcome_of(run)
    problem = difference(TRACES[name], outcome.trace, exact=not run.trained)
    assert problem is None
    if not run.trained:
        remedy = "if this commit changes records on purpose: python tools/golden.py --pin"
        assert outcome.log == LOGS[name], remedy


def test_all_runs_are_pinned_and_nothing_else() -> None:
    assert set(TRACES) == set(RUNS)
    assert set(LOGS) == {name for name, run in RUNS.items() if not run.trained}


def test_every_method_of_the_catalogue_runs_in_the_federation_of_the_demo() -> None:
    golden_methods = [Spec.from_dict({"strategy": method}).strategy for method in METHODS.values()]
    trained = [spec.strategy for spec in demo_specs() if spec.strategy.name != "one-pass"]
    assert golden_methods == trained
    demo_methods = [method.name for method in CATALOG.values() if method.demo]
    assert [*METHODS, "one-pass"] == demo_methods
    golden, demo = Spec.from_dict(DEMO).to_dict(), demo_specs()[0].to_dict()
    for section in ("data", "partition", "speeds", "training"):
        assert golden[section] == demo[section]


def arrival(event: int, client: int, stale: int, **changes: Any) -> dict[str, Any]:
    record = {
        "kind": "arrival", "event": event, "time": 1.5, "client": client, "start_version": 0,
        "version": event, "staleness_events": stale, "staleness_versions": 0,
        "buffer": [client], "weights": [1.0],
    }  # fmt: skip
    return {**record, **changes}


def test_receivers_are_those_who_say_later_when_they_were_handed_the_model(tmp_path: Path) -> None:
    log = tmp_path / "events.jsonl"
    evaluation = {"metrics": {"AvgRare": 7.5, "GlobalAcc": 50.0}, "recall": {"b": 1.0, "a": 2.0}}
    records = [
        {"kind": "start", "seed": 1},
        arrival(1, 7, 1),
        arrival(2, 8, 2),
        {"kind": "rejected", "event": 3, "client": 7, "reason": "NaN"},
        arrival(4, 8, 2),  # handed the model at event 2
        arrival(5, 7, 2),  # handed the model at event 3
        {"kind": "evaluation", "event": 5, "version": 5, **evaluation},
    ]
    log.write_text("".join(json.dumps(record) + "\n" for record in records))
    undefined = [None] * 8
    assert decision_trace(log) == [
        ["start", ["7", "8"]],
        ["arrival", 1, "7", 1, 0, 1, [], ["7"], [1.0]],
        ["arrival", 2, "8", 2, 0, 2, ["8"], ["8"], [1.0]],
        ["refused", 3, "7", ["7"]],
        ["arrival", 4, "8", 2, 0, 4, [], ["8"], [1.0]],
        ["arrival", 5, "7", 2, 0, 5, [], ["7"], [1.0]],
        ["evaluation", 5, 5, [50.0, 7.5, *undefined], [1.0, 2.0]],
    ]


def test_a_difference_is_found_and_only_real_numbers_have_a_tolerance() -> None:
    row = ["arrival", 4, "8", 2, 0, 4, ["8"], ["7", "8"], [0.25, 0.75]]
    evaluation = ["evaluation", 4, 4, [50.0, None], [1.0]]
    pinned = [row, evaluation]

    def changed(place: int, value: Any) -> str | None:
        return difference(pinned, [[*row[:place], value, *row[place + 1 :]], evaluation], False)

    assert difference(pinned, pinned, True) is None
    for place, value in ((1, 5), (2, "9"), (3, 3), (5, 5), (6, []), (7, ["8", "7"]), (8, [1.0])):
        assert changed(place, value) is not None
    assert changed(8, [0.25 + WEIGHT_TOLERANCE / 2, 0.75]) is None
    assert changed(8, [0.25 + WEIGHT_TOLERANCE * 2, 0.75]) is not None
    near = ["evaluation", 4, 4, [50.0 + EVALUATION_TOLERANCE / 2, None], [1.0]]
    assert difference(pinned, [row, near], False) is None
    assert difference(pinned, [row, near], True) is not None
    far = ["evaluation", 4, 4, [50.0 + EVALUATION_TOLERANCE * 2, None], [1.0]]
    assert difference(pinned, [row, far], False) is not None
    assert difference(pinned, [row, ["evaluation", 4, 4, [50.0, 1.0], [1.0]]], False) is not None
    assert difference(pinned, [row], False) == '["evaluation",4,4,[50.0,null],[1.0]] is missing'
