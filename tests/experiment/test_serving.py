"""The average that is served, and metrics of the user's own, beside those of the last model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from tests.experiment.small_runs import same, spec

from fedraw.core.aggregation import ServingAverage
from fedraw.errors import BadInput, Interrupted
from fedraw.eventlog.log_file import read_log
from fedraw.eventlog.records import EvaluationRecord
from fedraw.experiment.options import Options
from fedraw.experiment.parts import Parts
from fedraw.experiment.runner import run_seed
from fedraw.experiment.spec import Spec


def serving(decay: float = 0.9) -> Spec:
    tables = spec().to_dict()
    tables["run"] |= {"serve": "ema", "ema_decay": decay, "evaluate_every": 20}
    return Spec.from_dict(tables)


def evaluations(folder: Path) -> list[EvaluationRecord]:
    return [r for r in read_log(folder / "events.jsonl") if isinstance(r, EvaluationRecord)]


def test_the_average_forgets_by_its_decay() -> None:
    average = ServingAverage(np.zeros(2, np.float32), 0.5)
    for _ in range(9):
        average.observe(np.array([4, 8], np.float32))
    average.observe(np.array([0, 0], np.float32))
    before = average.model.copy()
    average.observe(np.array([0, 0], np.float32))  # more than nine arrivals: the decay is 0.5
    np.testing.assert_allclose(average.model, before / 2)


def test_the_average_is_evaluated_and_written_and_changes_nothing_else(tmp_path: Path) -> None:
    plain = run_seed(spec(), 1, tmp_path / "plain")
    served = run_seed(serving(), 1, tmp_path / "served")
    assert np.array_equal(plain.model, served.model)
    assert not (tmp_path / "plain" / "serving.safetensors").exists()
    assert "serving" not in plain.summary
    found = evaluations(tmp_path / "served")
    assert [e.event for e in found] == [20, 40, 60]
    assert all(e.serving is not None and e.serving["metrics"] != e.metrics for e in found)
    summary = served.summary["serving"]
    assert found[-1].serving is not None
    assert summary["metrics"] == found[-1].serving["metrics"]
    values = [e.serving["metrics"]["GlobalAcc"] for e in found if e.serving is not None]
    assert summary["tail"]["GlobalAcc"] == pytest.approx(sum(v or 0 for v in values) / 3)
    last, average = (
        load_file(tmp_path / "served" / f"{name}.safetensors") for name in ("model", "serving")
    )
    assert set(last) == set(average)
    assert any((last[name] != average[name]).any() for name in last)


def test_a_resumed_run_has_the_same_average(tmp_path: Path) -> None:
    run_seed(serving(), 1, tmp_path / "whole")
    events = iter(range(1000))
    cut, stop = tmp_path / "cut", Options(stop=lambda: next(events) == 33)
    with pytest.raises(Interrupted):
        run_seed(serving(), 1, cut, options=stop)
    run_seed(serving(), 1, cut, options=Options(resume=True))
    assert same(tmp_path / "whole", cut)
    averages = [(tmp_path / n / "serving.safetensors").read_bytes() for n in ("whole", "cut")]
    assert averages[0] == averages[1]
    (cut / "serving.safetensors").write_bytes(b"other")
    with pytest.raises(BadInput, match=r"serving.safetensors was altered"):
        run_seed(serving(), 1, cut, options=Options(resume=True))


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ({"run": {"serve": "mean"}}, "run.serve = 'mean' must be"),
        ({"run": {"serve": "ema", "ema_decay": 1.0}}, "run.ema_decay = 1.0 must be between"),
        ({"run": {"ema_decay": 0.9}}, "run.ema_decay goes with serve = 'ema'"),
        ({"run": {"serve": "ema"}, "training": {"kind": "none"}}, "run.serve = 'ema' averages"),
    ],
)
def test_what_cannot_be_served_is_refused(tables: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        Spec.from_dict(tables)


def accuracy(outputs: Any, targets: Any) -> float:
    return float(100 * (outputs.argmax(1) == targets).mean())


def test_own_metrics_are_logged_overall_and_for_rare_labels(tmp_path: Path) -> None:
    own = Parts(metrics={"accuracy": accuracy, "undefined": lambda *_: float("nan")})
    plain = run_seed(spec(), 1, tmp_path / "plain")
    result = run_seed(serving(), 1, tmp_path / "own", own)
    assert np.array_equal(plain.model, result.model)
    metrics = result.summary["metrics"]
    assert result.summary["own"] == {"accuracy": metrics["GlobalAcc"], "undefined": None}
    assert result.summary["own_rare"]["accuracy"] == pytest.approx(metrics["AvgRare"])
    average = result.summary["serving"]
    assert average["own"]["accuracy"] == pytest.approx(average["metrics"]["GlobalAcc"])
    assert "own" not in plain.summary


def test_a_metric_that_writes_into_its_arrays_changes_nothing_else() -> None:
    def careless(outputs: Any, targets: Any) -> float:
        outputs[:] = 0
        targets[:] = 7
        return 0.0

    plain = run_seed(spec(), 1, parts=Parts(metrics={"accuracy": accuracy}))
    own = run_seed(spec(), 1, parts=Parts(metrics={"careless": careless, "accuracy": accuracy}))
    assert own.summary["metrics"] == plain.summary["metrics"]
    for key in ("own", "own_rare"):
        assert own.summary[key] == {"careless": 0.0, **plain.summary[key]}


def test_a_metric_that_fails_is_named_with_its_traceback() -> None:
    text: Any = lambda *_: "high"  # noqa: E731
    with pytest.raises(BadInput, match=r"(?s)metrics\['text'\] .*shape \(.*, 10\).*ValueError: .*"):
        run_seed(spec(), 1, parts=Parts(metrics={"text": text}))
