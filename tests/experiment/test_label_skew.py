"""Losses for label skew in whole runs: the same in every executor, and open to own functions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.experiment.small_runs import same, spec

import fedraw
from fedraw.errors import BadInput
from fedraw.experiment.clients import LocalData
from fedraw.experiment.options import Options
from fedraw.experiment.parts import Parts
from fedraw.experiment.runner import run_seed
from fedraw.experiment.scenario import Scenario
from fedraw.experiment.spec import Spec

FEDLC = {"training.loss": "fedlc", "training.tau": 0.5}
GLOBAL = {"training.loss": "logit-adjusted", "training.prior": "global"}


def skewed(changes: dict[str, Any], events: int = 30) -> Spec:
    return spec(events=events).with_changes(changes)


@pytest.mark.parametrize("changes", [FEDLC, GLOBAL], ids=["fedlc", "global"])
def test_every_executor_comes_to_the_same_bytes(changes: dict[str, Any], tmp_path: Path) -> None:
    wanted = skewed(changes)
    for name in ("inline", "batched", "processes"):
        run_seed(wanted, 1, tmp_path / name, options=Options(name))
        assert same(tmp_path / "inline", tmp_path / name)
    plain = run_seed(spec(events=30), 1)
    assert not np.array_equal(plain.model, run_seed(wanted, 1).model)


def test_without_strength_a_run_is_plain(tmp_path: Path) -> None:
    plain = run_seed(spec(), 1).model
    assert np.array_equal(run_seed(skewed(FEDLC | {"training.tau": 0.0}, 60), 1).model, plain)


def test_settings_are_written_where_they_are_chosen() -> None:
    assert "loss" not in spec().to_dict()["training"]
    tables = skewed(FEDLC).to_dict()
    assert tables["training"]["loss"] == "fedlc"
    assert "prior" not in tables["training"]
    assert Spec.from_dict(tables).training == skewed(FEDLC).training
    sgd = fedraw.SGD(loss="logit-adjusted", tau=0.5, prior="global")
    result = fedraw.simulate(spec(events=15), train=sgd)
    assert result.spec["training"]["prior"] == "global"
    with pytest.raises(BadInput, match=r"training\.tau = 0\.5 goes with loss"):
        Spec.from_dict({"training": {"tau": 0.5}})


def test_counts_are_those_that_a_client_trains_on() -> None:
    scenario = Scenario.of(spec(), 1)
    data, table = LocalData.of(scenario.clients), scenario.clients.table
    names = scenario.clients.dataset.label_names
    for number, held in enumerate(table.counts().values()):
        counts = dict(zip(names, data.label_counts(number).tolist(), strict=True))
        assert {name: n for name, n in counts.items() if n} == held
    assert data.label_totals(3).sum() == len(data.targets)


def with_context(model: Any, data: Any, context: Any) -> dict[str, float]:
    optimizer = torch.optim.SGD(model.parameters(), context.lr)
    for _ in range(context.epochs):
        for x, y in data:
            optimizer.zero_grad()
            context.loss(model(x), y).backward()
            optimizer.step()
    _, labels = data.tensors()
    counted = np.bincount(labels.numpy(), minlength=10)
    return {"same": float((counted == context.label_counts).all()),
            "least": float((context.label_totals - context.label_counts).min())}  # fmt: skip


def ignores(model: Any, data: Any, context: Any) -> None:
    pass


@pytest.mark.parametrize("changes", [{}, FEDLC, GLOBAL], ids=["plain", "fedlc", "global"])
def test_own_functions_can_use_the_loss_of_the_run(changes: dict[str, Any]) -> None:
    wanted = skewed(changes | {"training.lr": 0.1})
    own = fedraw.simulate(wanted, train=with_context)
    built_in = run_seed(wanted, 1).model
    np.testing.assert_allclose(own.runs[0].model, built_in, atol=1e-5)
    rows = own.arrivals()
    assert set(rows["train same"]) == {1.0}
    assert min(rows["train least"]) >= 0


def test_own_functions_cannot_ignore_the_loss_of_the_run() -> None:
    with pytest.raises(BadInput, match="'fedlc', but the function ignores it; compute the loss"):
        run_seed(skewed(FEDLC), 1, parts=Parts(train=ignores))


def test_inferred_labels_come_with_a_caveat() -> None:
    inferred = {"strategy.labels": "inferred"}
    assert Scenario.of(skewed(inferred), 1).notes == ()
    (note,) = Scenario.of(skewed(inferred | FEDLC), 1).notes
    assert "calibrated with cross-entropy" in note
