"""Runs in which clients send sums: they end when everyone was heard, and order does not matter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.eventlog.logs import read_objects

import fedraw
from fedraw.core.sums import digest
from fedraw.errors import BadInput
from fedraw.eventlog.measures import Goal
from fedraw.experiment.options import Options
from fedraw.experiment.runner import run_seed
from fedraw.experiment.scenario import Scenario
from fedraw.experiment.training import executor_of

MAP = {"backbone": "relu", "width": 48}
TOY: dict[str, Any] = {
    "data": {"name": "digits"},
    "features": MAP,
    "partition": {"clients": 12, "rare_labels": [8, 9], "clients_per_common_label": 8},
    "strategy": {"name": "one-pass"},
    "run": {"events": 600, "evaluate_every": 100, "seeds": [7]},
}


def spec(**sections: Any) -> fedraw.Spec:
    return fedraw.Spec.from_dict({**TOY, **sections})


def totals(wanted: fedraw.Spec, executor: str = "inline") -> str:
    """The digest of the totals after a run."""
    options = Options(executor=executor, workers=2)  # type: ignore[arg-type]
    scenario = Scenario.of(wanted, 7, options=options)
    with executor_of(scenario, options) as running:
        simulation = scenario.simulation(running)
        while simulation.finished is None:
            simulation.step()
        return digest(simulation.state.totals)  # type: ignore[attr-defined]


def test_the_run_ends_when_every_client_was_heard(tmp_path: Path) -> None:
    result = run_seed(spec(), 7, tmp_path)
    summary = result.summary
    assert summary["events"] == 12
    assert summary["final"] == "every member was heard"
    assert "ended" not in summary
    assert summary["rejected"] == {}
    evaluations = [r for r in read_objects(tmp_path / "events.jsonl") if r["kind"] == "evaluation"]
    assert [own["event"] for own in evaluations] == list(range(1, 13))  # after each message
    assert [own.get("final", False) for own in evaluations] == [False] * 11 + [True]
    assert summary["tail"]["AvgRare"] == summary["metrics"]["AvgRare"] > 60
    assert any("do not train" in note for note in summary["notes"])


def test_its_value_for_a_longer_horizon_is_its_final_value() -> None:
    runs = [run_seed(spec(run={**TOY["run"], "events": n}), 7) for n in (600, 60_000)]
    one, other = (run.summary for run in runs)
    assert one["tail"] == other["tail"]
    assert one["reached"] == other["reached"]
    rows = fedraw.compare({"short": runs[0], "long": runs[1]}).rows
    assert [row.events for row in rows] == [(600,), (60_000,)]
    reached = [row.reached[Goal.parse("AvgRare>=50")] for row in rows]
    assert [own.within for own in reached] == [(600,), (60_000,)]
    assert reached[0].median("arrivals") == reached[1].median("arrivals") == 5


def test_with_fewer_events_than_clients_the_run_has_an_ordinary_end() -> None:
    summary = run_seed(spec(run={**TOY["run"], "events": 5}), 7).summary
    assert summary["events"] == 5
    assert "final" not in summary


SPEEDS: list[dict[str, Any]] = [
    {"speeds": {"kind": "equal"}},
    {"speeds": {"kind": "ratio", "ratio": 20.0}},
    {"speeds": {"kind": "correlated", "arrivals": "fixed"}},
    {"run": {**TOY["run"], "concurrency": 1}},
    {"run": {**TOY["run"], "concurrency": 3, "receivers": "rare-first"}},
    {"losses": {"lost": 0.3}},
    {"losses": {"twice": 0.5}},
]


@pytest.mark.parametrize("change", SPEEDS)
def test_speeds_and_losses_do_not_change_the_totals(change: dict[str, Any]) -> None:
    assert totals(spec(**change)) == totals(spec())


@pytest.mark.parametrize("executor", ["batched", "processes"])
def test_executors_do_not_change_a_byte(executor: str, tmp_path: Path) -> None:
    run_seed(spec(), 7, tmp_path / "inline")
    options = Options(executor=executor, workers=2)  # type: ignore[arg-type]
    run_seed(spec(), 7, tmp_path / "other", options=options)
    one, other = (tmp_path / name / "events.jsonl" for name in ("inline", "other"))
    assert one.read_bytes() == other.read_bytes()


def test_a_stopped_run_starts_again_and_ends_the_same(tmp_path: Path) -> None:
    calls = iter([False] * 5)
    with pytest.raises(fedraw.Interrupted):
        run_seed(spec(), 7, tmp_path / "cut", options=Options(stop=lambda: next(calls, True)))
    run_seed(spec(), 7, tmp_path / "cut", options=Options(resume=True))
    run_seed(spec(), 7, tmp_path / "whole")
    one, other = (tmp_path / name / "events.jsonl" for name in ("cut", "whole"))
    assert one.read_bytes() == other.read_bytes()


def test_who_joins_later_is_waited_for_and_asked() -> None:
    assert totals(spec(membership={"joining": 0.4, "within": 50.0})) == totals(spec())


def test_who_was_heard_stays_when_it_leaves() -> None:
    """All leave long after they were heard."""
    assert totals(spec(membership={"leaving": 1.0, "within": 1e6})) == totals(spec())


def test_clients_whose_data_change_are_asked_again() -> None:
    drifting = spec(drift={"label": 8, "kind": "move", "at": 0.01, "declared": "again"})
    assert totals(drifting) == totals(spec())  # the same samples, at other clients


def test_messages_count_in_the_costs() -> None:
    summary = run_seed(spec(costs={"upload_mbit": 8.0}), 7).summary
    labels, width = 10, 48
    message = 8 * (labels + labels * width + width * (width + 1) // 2)
    model = 4 * labels * (width + 1)
    assert summary["costs"]["bytes"] == 12 * (message + model)


CLAIM = {"label": 8, "share": 0.5, "form": "recounted"}


def test_a_client_that_claims_other_counts_is_refused(tmp_path: Path) -> None:
    wanted = spec(misreport=CLAIM, run={**TOY["run"], "events": 40})
    summary = run_seed(wanted, 7, tmp_path).summary
    assert len(summary["rejected"]) == 1
    reasons = [r["reason"] for r in read_objects(tmp_path / "events.jsonl")
               if r["kind"] == "rejected"]  # fmt: skip
    assert "declare the counts of the samples that are summed" in reasons[0]


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"training": {"kind": "none"}}, "training.kind = 'none' does not go with strategy 'one-pass'"),
    ({"calibration": {}}, ".calibration. does not go with strategy 'one-pass': its output layer"),
    ({"run": {**TOY["run"], "serve": "ema"}}, "run.serve = 'ema' does not go with strategy"),
    ({"summaries": {"mechanism": "secure-sum"}}, ".summaries. does not go with strategy"),
    ({"features": {"backbone": "relu", "width": 9000}}, "features.width = 9000 must be from 1 to"),
    ({"training": {"model": "text"}, "features": None},
     "samples of dataset 'digits' are texts, for which there is no default feature map"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "words"), REFUSED)
def test_what_has_no_meaning_without_training_is_refused(
    change: dict[str, Any], words: str
) -> None:
    tables = {key: value for key, value in {**TOY, **change}.items() if value is not None}
    with pytest.raises(BadInput, match=words):
        run_seed(fedraw.Spec.from_dict(tables), 7)


def own_features(scale: float) -> Any:
    def features(batch: Any) -> Any:
        return batch.reshape(len(batch), -1) * scale

    return features


def test_targets_of_a_regression_are_refused() -> None:
    inputs = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
    data = (inputs, np.linspace(0, 1, 60))
    with pytest.raises(BadInput, match="targets of a regression, and sums are of labels"):
        fedraw.simulate(strategy="one-pass", data=data, partition=fedraw.IID(clients=3),
                        metrics={"MAE": lambda o, t: float(abs(o - t).mean())}, seeds=[1],
                        progress=False)  # fmt: skip


def test_the_log_names_the_default_map() -> None:
    tables = {key: value for key, value in TOY.items() if key != "features"}
    summary = run_seed(fedraw.Spec.from_dict(tables), 7).summary
    assert any("feature map convolutions" in note for note in summary["notes"])
    assert summary["metrics"]["AvgRare"] > 90


NOISY = {"name": "one-pass", "epsilon": 20.0}


def test_noise_repeats_and_does_not_depend_on_speeds() -> None:
    assert totals(spec(strategy=NOISY)) == totals(spec(strategy=NOISY))
    assert totals(spec(strategy=NOISY)) != totals(spec())
    fast = spec(strategy=NOISY, speeds={"kind": "equal"}, losses={"twice": 0.5})
    assert totals(fast) == totals(spec(strategy=NOISY))


def test_workers_draw_the_same_noise() -> None:
    assert totals(spec(strategy=NOISY), "processes") == totals(spec(strategy=NOISY))


def test_noise_costs_accuracy_and_little_noise_little() -> None:
    found = [
        run_seed(spec(strategy={"name": "one-pass", "epsilon": own}), 7).summary["metrics"]
        for own in (0.5, 3.0, 100.0)
    ]
    accuracies = [own["GlobalAcc"] for own in found]
    assert accuracies == sorted(accuracies)
    assert accuracies[0] < 50
    assert accuracies[2] > 80
