"""Metrics of the user's own, beside the built-in ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.experiment.small_runs import spec

from fedraw.errors import BadInput
from fedraw.eventlog.compare import compare
from fedraw.experiment.parts import Parts
from fedraw.experiment.runner import run_seed


def accuracy(outputs: Any, targets: Any) -> float:
    return float(100 * (outputs.argmax(1) == targets).mean())


def test_own_metrics_are_logged_overall_and_for_rare_labels(tmp_path: Path) -> None:
    own = Parts(metrics={"accuracy": accuracy, "undefined": lambda *_: float("nan")})
    plain = run_seed(spec(), 1, tmp_path / "plain")
    result = run_seed(spec(), 1, tmp_path / "own", own)
    assert np.array_equal(plain.model, result.model)
    metrics = result.summary["metrics"]
    assert result.summary["own"] == {"accuracy": metrics["GlobalAcc"], "undefined": None}
    assert result.summary["own_rare"]["accuracy"] == pytest.approx(metrics["AvgRare"])
    assert "own" not in plain.summary
    (row,) = compare([result]).rows
    assert row.metrics["rare accuracy"].mean == pytest.approx(row.metrics["AvgRare"].mean)


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
