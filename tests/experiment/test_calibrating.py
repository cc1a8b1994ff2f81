"""A calibrated model beside the last one: evaluated, written, and without effect on the run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from tests.experiment.small_runs import same, spec

import fedraw
from fedraw.errors import BadInput, Interrupted
from fedraw.experiment.options import Options
from fedraw.experiment.runner import run_seed
from fedraw.experiment.spec import Spec


def calibrating() -> Spec:
    return Spec.from_dict(spec().to_dict() | {"calibration": {"samples": 20, "epochs": 5}})


def test_the_calibrated_model_stands_beside_the_last_one(tmp_path: Path) -> None:
    plain = run_seed(spec(), 1)
    found = run_seed(calibrating(), 1, tmp_path / "one")
    assert np.array_equal(plain.model, found.model)
    assert found.summary["calibrated"]["metrics"] != found.summary["metrics"]
    assert "calibrated" not in plain.summary
    last, new = (load_file(tmp_path / "one" / f"{n}.safetensors") for n in ("model", "calibrated"))
    changed = {name for name in last if not np.array_equal(last[name], new[name])}
    assert changed == {"3.weight", "3.bias"}
    result = fedraw.load(tmp_path / "one")
    assert result.summary["calibrated GlobalAcc"][0] != result.summary["GlobalAcc"][0]


def test_a_resumed_run_comes_to_the_same_calibrated_model(tmp_path: Path) -> None:
    run_seed(calibrating(), 1, tmp_path / "whole")
    asked = iter(range(100))
    with pytest.raises(Interrupted):
        options = Options("batched", stop=lambda: next(asked) >= 30)
        run_seed(calibrating(), 1, tmp_path / "parts", options=options)
    run_seed(calibrating(), 1, tmp_path / "parts", options=Options(resume=True))
    assert same(tmp_path / "whole", tmp_path / "parts")


def test_a_label_with_few_samples_is_left_out_and_named() -> None:
    rng = np.random.default_rng(0)
    labels = np.array([0] * 30 + [1] * 30 + [2] * 4)
    data = fedraw.from_arrays(
        rng.normal(size=(64, 2)).astype(np.float32) + labels[:, None], labels, holdout=0.2,
        rng=rng,
    )  # fmt: skip
    result = fedraw.simulate(
        data=data, model="linear", partition=fedraw.IID(clients=3), strategy="fedfa", seeds=1,
        calibration=fedraw.Calibration(samples=10), local_test=0, events=12, progress=False,
    )  # fmt: skip
    (run,) = result.runs
    assert "calibration leaves out 2: fewer than 5 samples in all" in run.summary["notes"]


def test_what_cannot_be_calibrated_is_refused() -> None:
    tables = spec().to_dict() | {"calibration": {}}
    with pytest.raises(BadInput, match="trains the output layer of a model"):
        Spec.from_dict(tables | {"training": {"kind": "none"}})
    with pytest.raises(BadInput, match=r"calibration\.samples = 0"):
        fedraw.Calibration(samples=0)
    with pytest.raises(BadInput, match=r"calibration\.lr = -1"):
        fedraw.Calibration(lr=-1.0)
    regression = fedraw.from_arrays(
        np.ones((40, 2), np.float32), np.arange(40.0), groups=np.arange(40) % 2,
        rng=np.random.default_rng(0),
    )  # fmt: skip
    with pytest.raises(BadInput, match="needs labels"):
        fedraw.simulate(
            data=regression, model="linear", train=lambda model, data, context: None,
            metrics={"MAE": lambda outputs, targets: 0.0}, partition=fedraw.IID(clients=4),
            calibration=fedraw.Calibration(), strategy="fedfa", events=5,
        )  # fmt: skip
