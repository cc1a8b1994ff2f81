"""Gradients against the library's own training, and the bound on a short run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedraw.core.layout import Layout
from fedraw.errors import BadInput
from fedraw.experiment.scenario import Scenario
from fedraw.experiment.spec import Spec
from fedraw_studies.bound_report import BoundReport, bound_spec
from fedraw_studies.theory.bound import convergence_bound
from fedraw_studies.theory.dense import DenseNetwork
from fedraw_studies.theory.measured_bound import Measured, Trajectory, measure, record

EVENTS = 40


@pytest.fixture(scope="module")
def run() -> Trajectory:
    return record(bound_spec(0.1, EVENTS), 42)


@pytest.fixture(scope="module")
def measured(run: Trajectory) -> Measured:
    return measure(run, checkpoints=5)


@pytest.mark.parametrize("model", ["linear", "mlp"])
def test_one_step_of_the_library_is_one_gradient(model: str) -> None:
    tables = bound_spec(1.0, 10).to_dict()
    tables["training"] |= {"model": model, "batch": 1000}
    scenario = Scenario.of(Spec.from_dict(tables), 42)
    assert scenario.trainer is not None
    assert scenario.setup.layout is not None
    first = scenario.clients.epochs[0]
    inputs = scenario.clients.dataset.inputs.take(first.indices[0])
    start, labels = scenario.setup.model, first.labels[0]
    trained = scenario.trainer.train(start, inputs, labels, np.random.default_rng(0))
    network = DenseNetwork.of(scenario.setup.layout)
    flat = inputs.reshape(len(inputs), -1).astype(np.float64)
    own = network.gradient(start.astype(np.float64), flat, labels)
    assert start - trained == pytest.approx(own.gradient, abs=1e-5)
    assert own.loss == pytest.approx(scenario.trainer.mean_loss(start, inputs, labels), abs=1e-5)
    each = [network.gradient(start.astype(float), flat[[i]], labels[[i]]) for i in range(len(flat))]
    apart = [own.gradient - one.gradient for one in each]
    assert own.spread == pytest.approx(np.mean([x @ x for x in apart]))


def test_only_dense_networks_have_these_gradients() -> None:
    with pytest.raises(BadInput, match="not a dense network"):
        DenseNetwork.of(Layout.of([("conv", (3, 2, 1, 1)), ("bias", (3,))]))


def test_an_aggregation_is_its_buffer(run: Trajectory) -> None:
    assert run.influence.sum() == pytest.approx(1)
    assert len(run.models) == len(run.aggregations) + 1
    for t, own in enumerate(run.aggregations):
        assert len(set(own.clients)) == 10
        assert own.weights.sum() == pytest.approx(1)
        assert (own.starts <= t).all()


def test_the_constants_are_what_they_say(run: Trajectory, measured: Measured) -> None:
    assert measured.loss[1] < measured.loss[0] == measured.gap
    assert measured.curvature <= measured.smoothness
    assert measured.gradient <= measured.gradient_bound
    assert measured.second_moment <= measured.local_variance + measured.gradient_bound
    assert measured.worst_staleness == run.staleness.max() < len(run.aggregations)
    assert measured.worst_displacement <= measured.worst_drift
    assert 1 <= measured.rho_seen <= measured.rho + 1e-9
    assert (measured.local_steps, measured.fewest_steps) == (7, 2)


def test_a_rate_that_the_theorem_does_not_admit_is_refused(measured: Measured) -> None:
    with pytest.raises(BadInput, match="breaks η Q ≤"):
        measured.constants()
    admitted = replace(measured, rate=measured.admissible_rate)
    bound = convergence_bound(admitted.constants())
    assert bound.total > admitted.gradient
    text = BoundReport(measured, admitted, bound).markdown()
    assert f"| **measured** | mean ‖∇F̄‖² over the run | {measured.gradient:.3g} |" in text
    assert "| 4 L Q η | the theorem admits at most 1 | 1 | 18 |" in text


def test_a_network_without_a_smooth_loss_is_refused() -> None:
    tables = bound_spec(0.1, 30).to_dict()
    tables["training"]["model"] = "mlp"
    with pytest.raises(BadInput, match="'mlp' has ReLU layers"):
        measure(record(Spec.from_dict(tables), 42), checkpoints=2)


def test_a_run_too_short_to_aggregate_is_refused() -> None:
    with pytest.raises(BadInput, match="too few to fill the buffer"):
        record(bound_spec(0.1, 5), 42)
