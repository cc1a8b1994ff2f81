"""Costs of a run: seconds of computing and sending, bytes, energy, and what a goal costs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.experiment.small_runs import same

import fedraw
from fedraw.errors import BadInput, Interrupted
from fedraw.eventlog.compare import compare
from fedraw.eventlog.goals import Goal
from fedraw.eventlog.records import LostRecord
from fedraw.experiment.options import Options
from fedraw.experiment.runner import run_seed
from fedraw.experiment.scenario import Scenario
from fedraw.experiment.spec import Spec
from fedraw.simulation.flights import WENT_OFFLINE

COSTS: dict[str, Any] = {
    "seconds_per_sample": 0.5,
    "upload_mbit": 8.0,
    "download_mbit": 16.0,
    "model_bytes": 3_000_000,
    "watts": 2.0,
    "joules_per_mb": 5.0,
}


def spec(name: str = "fedfa", costs: Any = COSTS, **sections: Any) -> Spec:
    return Spec.from_dict(
        {
            "partition": {"clients": 8, "rare_labels": [9], "clients_per_common_label": 5},
            "speeds": {"kind": "equal", "arrivals": "fixed"},
            "strategy": {"name": name},
            "training": {"kind": "none", "epochs": 2},
            "costs": costs,
            "run": {"events": 20, "evaluate_every": 10, "seeds": [1]},
            **sections,
        }
    )


def test_a_training_takes_its_samples_and_its_transfers() -> None:
    (run,) = fedraw.simulate(spec(), progress=False)
    samples = Scenario.of(spec(), 1).clients.table.totals()
    # 24 Mbit: 3 seconds to send, 1.5 to receive; half a second for each sample in two epochs.
    expected = samples * 0.5 * 2 + 4.5
    arrivals = fedraw.Result([run]).arrivals()
    for client, start, end in zip(
        arrivals["client"], arrivals["start_time"], arrivals["time"], strict=True
    ):
        assert end - start == pytest.approx(expected[client])
    computed = sum(expected[client] - 4.5 for client in arrivals["client"])
    assert run.summary["costs"] == {
        "hours": arrivals["time"][-1] / 3600,
        "bytes": 20 * 2 * 3_000_000,
        "joules": pytest.approx(2.0 * computed + 5.0 * 120),
    }


def test_lost_work_is_paid() -> None:
    conditions: dict[str, Any] = {
        "availability": {"online": 0.5, "cycle": 40.0, "interrupted": "lose"},
        "losses": {"lost": 0.2},
    }
    plain = {"model_bytes": 1000}
    (run,) = fedraw.simulate(
        spec(costs=plain, speeds={"kind": "uniform"}, **conditions), events=200, progress=False
    )
    kinds = []
    for record in run.records():
        kind = record.kind
        if isinstance(record, LostRecord) and record.reason == WENT_OFFLINE:
            kind = "offline"
        kinds.append(kind)
    sent = {"arrival": 2, "lost": 2, "offline": 1}
    assert all(kind in kinds for kind in sent)
    assert run.summary["costs"]["bytes"] == 1000 * sum(sent.get(kind, 0) for kind in kinds)
    assert "joules" not in run.summary["costs"]


def test_devices_come_from_a_table(tmp_path: Path) -> None:
    path = tmp_path / "devices.csv"
    rows = [f"{c},{0.1 * (c + 1)},{c + 1}" for c in range(8)]
    path.write_text("client,seconds_per_sample,upload_mbit\n" + "\n".join(rows) + "\n")
    scenario = Scenario.of(spec(costs={"trace": str(path), "model_bytes": 1_000_000}), 1)
    costs, samples = scenario.costs, scenario.clients.table.totals()
    assert costs is not None
    assert costs.upload == pytest.approx(8 / np.arange(1, 9))
    assert not costs.download.any()
    assert costs.seconds == pytest.approx(0.1 * np.arange(1, 9) * samples * 2)
    assert scenario.clients.seconds is costs.seconds


def test_bandwidths_are_spread_around_their_median() -> None:
    costs = {"upload_mbit": 8.0, "bandwidth_spread": 1.0, "model_bytes": 1_000_000}
    found = Scenario.of(spec(costs=costs, partition={"kind": "iid", "clients": 400}), 1).costs
    assert found is not None
    assert np.median(found.upload) == pytest.approx(1.0, rel=0.25)
    assert np.log(found.upload).std() == pytest.approx(1.0, rel=0.15)


def trained(name: str, **sections: Any) -> Spec:
    training = {"training": {"epochs": 1}, "speeds": {"kind": "uniform"}}
    return spec(name, {"upload_mbit": 1.0, "watts": 3.0}, **training, **sections)


def test_curves_and_comparisons_have_costs(tmp_path: Path) -> None:
    results = {
        name: fedraw.simulate(
            trained(name), events=40, evaluate_every=5, out=tmp_path / name, progress=False
        )
        for name in ("fedfa", "fedavg")
    }
    curves = results["fedfa"].curves
    assert curves["hours"] == pytest.approx(np.array(curves["time"]) / 3600)
    assert curves["MB"] == sorted(curves["MB"])
    assert curves["kJ"][-1] == results["fedfa"].summary["kJ"][0]
    rows = compare([tmp_path], until=["GlobalAcc>=0", "GlobalAcc>=101"])
    for row in rows:
        first = results[row.name].curves.rows()[0]
        reached, never = (row.reached[Goal("GlobalAcc", mark)] for mark in (0, 101))
        assert never.count == 0
        for unit in ("arrivals", "hours", "MB", "kJ"):
            value = "event" if unit == "arrivals" else unit
            assert reached.median(unit) == pytest.approx(first[value])
            assert never.median(unit) is None
    # FedAvg waits for everyone, so it pays in hours.
    goal = Goal("GlobalAcc", 0)
    hours = {row.name: row.reached[goal].median("hours") or 0.0 for row in rows}
    assert hours["fedavg"] > hours["fedfa"]
    in_memory = compare(results, until=["GlobalAcc>=0"])["fedfa"]
    assert in_memory.metrics == rows["fedfa"].metrics
    assert in_memory.reached[goal] == rows["fedfa"].reached[goal]
    from fedraw.report.figures import accuracy_over_hours
    from fedraw.report.report_data import read_report_data

    drawing = accuracy_over_hours(read_report_data([tmp_path]).evaluations)
    assert drawing is not None
    left, _ = drawing.draw().axes
    assert left.get_xlabel() == "virtual hours"
    assert left.get_xlim()[1] == pytest.approx(results["fedavg"].curves["hours"][-1])
    assert results["fedfa"].until("GlobalAcc >= 0")["event"] == [5]
    assert results["fedfa"].until("GlobalAcc>=101").rows()[0]["time"] is None
    axes = results["fedfa"].plot("GlobalAcc", over="hours")
    assert axes.get_xlabel() == "virtual hours"
    assert axes.lines[0].get_xdata().tolist() == curves["hours"]


def test_without_costs_a_goal_is_paid_in_hours(tmp_path: Path) -> None:
    tables = {k: v for k, v in trained("fedfa").to_dict().items() if k != "costs"}
    result = fedraw.simulate(Spec.from_dict(tables), evaluate_every=1, progress=False)
    (row,) = compare([result], until=["GlobalAcc>=0"])
    reached = row.reached[Goal("GlobalAcc", 0)]
    assert reached.median("hours") == result.curves["time"][0] / 3600
    assert reached.median("MB") is None
    with pytest.raises(
        BadInput, match="over = 'hours' is not an axis of this run; known: event, time"
    ):
        result.plot("GlobalAcc", over="hours")


def test_a_resumed_run_has_the_same_costs(tmp_path: Path) -> None:
    wanted = trained("fedbuff", losses={"lost": 0.2})
    run_seed(wanted, 1, tmp_path / "whole")
    asked = iter(range(100))
    with pytest.raises(Interrupted):
        run_seed(wanted, 1, tmp_path / "cut", options=Options(stop=lambda: next(asked) == 12))
    run_seed(wanted, 1, tmp_path / "cut", options=Options(resume=True))
    assert same(tmp_path / "whole", tmp_path / "cut")


@pytest.mark.parametrize(
    ("costs", "message"),
    [
        ({"upload_mbit": -1}, r"costs\.upload_mbit = -1 must be a positive number"),
        ({"download_mbit": 0}, r"costs\.download_mbit = 0 must be a positive number"),
        ({"upload_mbit": 1}, r"costs\.model_bytes is missing"),
        ({"bandwidth_spread": 1}, r"bandwidth_spread = 1.0 goes with upload_mbit or download_mbit"),
        ({"joules_per_mb": -2}, r"costs\.joules_per_mb = -2 must be at least 0"),
        ({"model_bytes": 0}, r"costs\.model_bytes = 0 must be at least 1"),
    ],
)
def test_wrong_costs_are_refused(costs: Any, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        Scenario.of(spec(costs=costs), 1)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("client,upload_mbit\n0,-4\n", r"column 'upload_mbit': '-4' is not from 1e-12"),
        ("client,upload_mbit\nx,4\n", r"line 2: 'x' is not a client"),
        ("client,upload_mbit\n0,4\n", r"has no row of client 1; add it"),
        ("client,speed\n0,4\n", r"needs a column seconds_per_sample, upload_mbit or download_mbit"),
    ],
)
def test_wrong_devices_are_refused(table: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "devices.csv"
    path.write_text(table)
    with pytest.raises(BadInput, match=message):
        Scenario.of(spec(costs={"trace": str(path), "model_bytes": 9}), 1)


@pytest.mark.parametrize("goal", ["AvgRare", "AvgRare>5", "AvgRare>=x", ">=5", "AvgRare>=1.2.3"])
def test_what_is_no_goal_is_refused(goal: str) -> None:
    with pytest.raises(BadInput, match="is not a goal; write a metric and a value"):
        compare(["nowhere"], until=[goal])


def test_a_goal_needs_a_metric_that_was_measured() -> None:
    result = fedraw.simulate(trained("fedfa"), evaluate_every=4, progress=False)
    with pytest.raises(BadInput, match="fedfa has no evaluation with the metric 'AvgRar'; did you"):
        compare([result], until=["AvgRar>=5"])
