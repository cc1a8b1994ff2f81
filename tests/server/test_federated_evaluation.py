"""Limits on the influence of one site's report in a federated evaluation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from sys import float_info

import pytest
from tests.server.conftest import MakeEngine

from fedraw.core.types import Vector
from fedraw.errors import BadInput
from fedraw.server.results import EvaluationResult, Recall, capped_samples, combine
from fedraw.server.tasks import EvaluateReply, Task

Lie = Callable[[Task, EvaluateReply], EvaluateReply]

ALIKE = {name: {"cat": 10} for name in ("north", "south", "east", "west")}


def all_right(samples: int) -> Lie:
    """A reply that claims this many test samples of the label cat, all classified correctly."""
    return lambda _, honest: replace(honest, right={"cat": samples}, total={"cat": samples})


def test_an_implausible_number_of_test_samples_is_refused(make_engine: MakeEngine) -> None:
    engine = make_engine(
        federated_evaluation=True, evaluate_every=2, target=90.0, patience=3, back_off=0.1
    )
    engine.sites["west"].evaluated = all_right(10**6)  # of 4 samples
    engine.run(lambda: bool(engine.log("left")))
    assert engine.coordinator.finished is None
    (left,) = engine.log("left")
    assert "tested 1000000 samples and declared 4 for training" in left["reason"]
    assert all(r["metrics"]["GlobalAcc"] <= 50 for r in engine.log("evaluation"))


def test_one_site_alone_cannot_reach_the_target(make_engine: MakeEngine) -> None:
    engine = make_engine(sites=ALIKE, federated_evaluation=True, evaluate_every=2, target=60.0)
    engine.sites["west"].evaluated = all_right(1000)  # 100 times what it declared
    engine.accept(20)
    records = engine.log("evaluation")
    # West counts as much as the other three together: half of everything, all right.
    assert [r["metrics"]["GlobalAcc"] for r in records] == [75.0] * len(records)
    assert engine.coordinator.finished is None
    assert "GlobalAcc reached 75.0, but not without the result of 'west'" in engine.reasons()


def test_several_sites_together_reach_the_target(make_engine: MakeEngine) -> None:
    engine = make_engine(sites=ALIKE, federated_evaluation=True, evaluate_every=2, target=60.0)
    for site in engine.sites.values():
        site.evaluated = all_right(10)
    engine.run(lambda: engine.coordinator.finished is not None)
    assert engine.coordinator.finished == "GlobalAcc reached 100.0"


def test_a_rare_label_at_one_site_needs_the_servers_own_test_set(make_engine: MakeEngine) -> None:
    chosen = {"target": 10.0, "target_metric": "AvgRare", "rare_labels": ("owl",)}
    engine = make_engine(federated_evaluation=True, evaluate_every=2, **chosen)
    engine.accept(6)
    assert engine.coordinator.finished is None
    assert "AvgRare reached 33.3, but not without the result of 'west'" in engine.reasons()
    assert engine.reasons().count("not without the result of") == 1  # logged once

    def evaluate(model: Vector) -> Recall:
        return Recall({"owl": 2}, {"owl": 10})

    engine = make_engine(
        folder="two", evaluate=evaluate, federated_evaluation=True, evaluate_every=2, **chosen
    )
    engine.run(lambda: engine.coordinator.finished is not None)
    assert engine.coordinator.finished == "AvgRare reached 20.0"


def test_a_target_without_any_evaluation_is_refused_at_the_start(make_engine: MakeEngine) -> None:
    with pytest.raises(BadInput, match="target = 60 cannot be reached without evaluations"):
        make_engine(target=60.0)


def test_a_single_site_does_not_reach_a_target(make_engine: MakeEngine) -> None:
    engine = make_engine(
        sites={"north": {"cat": 10}, "south": {"cat": 10}},
        federated_evaluation=True,
        evaluate_every=2,
        target=60.0,
    )
    engine.sites["south"].evaluated = lambda _, honest: replace(honest, right={}, total={})
    engine.sites["north"].evaluated = all_right(10)
    engine.accept(8)
    assert engine.coordinator.finished is None


@pytest.mark.parametrize(
    ("tested", "counted"),
    [
        ([10, 20, 30], [10, 20, 30]),
        ([10, 20, 90], [10, 20, 30]),  # as much as the others together
        ([1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 50], [1] * 12 + [10]),  # ten times the median
        ([10], [10]),
        ([0, 10], [0, 10]),  # nobody else has tested anything
    ],
)
def test_capped_samples_by_hand(tested: list[int], counted: list[int]) -> None:
    assert capped_samples(tested) == counted
    parts = [EvaluationResult(Recall({"cat": n // 2}, {"cat": n} if n else {})) for n in tested]
    assert combine(parts).samples == pytest.approx(sum(counted))


@pytest.mark.parametrize(
    ("values", "mean"),
    [
        ([1e308, 0.0], 5e307),  # 1e308 times 10 samples would be infinite
        ([1e308], 1e308),
        ([float_info.max] * 11, None),  # eleven rounded shares add up to infinity
    ],
)
def test_the_mean_of_large_values_by_hand(values: list[float], mean: float | None) -> None:
    parts = [EvaluationResult(Recall({}, {}), {"perplexity": v}, 10) for v in values]
    assert combine(parts).own == {"perplexity": mean}


def reporting(auc: float, examples: int = 10) -> Lie:
    """A reply with one metric and without counts by label."""
    return lambda _, honest: EvaluateReply(
        honest.site, honest.task, metrics={"auc": auc}, examples=examples
    )


def test_a_huge_metric_of_one_site_does_not_end_the_server(make_engine: MakeEngine) -> None:
    """Each of the four sites has 10 test samples, and counts for a quarter."""
    engine = make_engine(sites=ALIKE, federated_evaluation=True, evaluate_every=4)
    for name, site in engine.sites.items():
        site.evaluated = reporting(1e308 if name == "north" else 0.0)
    engine.accept(8)
    assert engine.log("evaluation")[0]["own"] == {"auc": 2.5e307}


def test_any_metric_of_the_sites_is_logged_and_can_end_training(make_engine: MakeEngine) -> None:
    """The mean is (3 · 0.8 + 0.4) / 4 = 0.7, and without any single site at least 0.66."""
    chosen = {"target": 0.66, "target_metric": "auc"}
    engine = make_engine(sites=ALIKE, federated_evaluation=True, evaluate_every=2, **chosen)
    for name, site in engine.sites.items():
        site.evaluated = reporting(0.4 if name == "west" else 0.8)
    engine.run(lambda: engine.coordinator.finished is not None)
    assert engine.coordinator.finished == "auc reached 0.7"
    record = engine.log("evaluation")[0]
    assert record["own"] == {"auc": pytest.approx(0.7)}
    assert record["recall"] == {}
    assert record["metrics"]["GlobalAcc"] is None


def test_a_loss_ends_training_from_above(make_engine: MakeEngine) -> None:
    chosen = {"target": 0.5, "target_metric": "auc", "target_below": True}
    engine = make_engine(sites=ALIKE, federated_evaluation=True, evaluate_every=2, **chosen)
    for name, site in engine.sites.items():
        site.evaluated = reporting(0.6 if name == "west" else 0.4)
    engine.run(lambda: engine.coordinator.finished is not None)
    assert engine.coordinator.finished == "auc reached 0.45"


def test_one_site_alone_cannot_reach_a_target_on_its_own_metric(make_engine: MakeEngine) -> None:
    chosen = {"target": 0.6, "target_metric": "auc"}
    engine = make_engine(sites=ALIKE, federated_evaluation=True, evaluate_every=2, **chosen)
    for name, site in engine.sites.items():
        site.evaluated = reporting(1.0, 1000) if name == "west" else reporting(0.5)
    engine.accept(6)
    assert engine.coordinator.finished is None  # west counts for 30 of 60 samples
    assert "auc reached 0.75, but not without the result of 'west'" in engine.reasons()


def test_an_unmeasured_target_metric_is_logged(make_engine: MakeEngine) -> None:
    engine = make_engine(
        sites=ALIKE,
        federated_evaluation=True,
        evaluate_every=2,
        target=1.0,
        target_metric="Accuracy",
    )
    engine.accept(8)
    assert engine.reasons().count("target_metric = 'Accuracy' was not measured") == 1
    assert "this evaluation has GlobalAcc, AvgRare" in engine.reasons()


@pytest.mark.parametrize(
    ("metrics", "words"),
    [
        ({"GlobalAcc": 1.0}, "'GlobalAcc' is a metric of fedraw"),
        ({f"m{i}": 1.0 for i in range(101)}, "client 'west' reports 101 metrics; the limit is 100"),
        ({"x" * 201: 1.0}, "a name must have 1 to 200 characters"),
    ],
)
def test_invalid_metrics_are_refused(
    make_engine: MakeEngine, metrics: dict[str, float], words: str
) -> None:
    engine = make_engine(sites=ALIKE, federated_evaluation=True, evaluate_every=2)
    engine.sites["west"].evaluated = lambda _, honest: EvaluateReply(
        honest.site, honest.task, metrics=metrics, examples=10
    )
    engine.accept(4)
    assert words in engine.reasons()
    assert engine.log("evaluation")[0]["sites"] == 3


def test_the_servers_own_evaluation_may_be_any_numbers(make_engine: MakeEngine) -> None:
    engine = make_engine(evaluate=lambda model: {"dice": 0.5, "r2": float("nan")}, evaluate_every=2)
    engine.accept(2)
    assert engine.log("evaluation")[0]["own"] == {"dice": 0.5, "r2": None}
    both = make_engine(
        folder="two", evaluate=lambda m: (Recall({}, {"cat": 1}), {"d": 1}), evaluate_every=2
    )
    both.accept(2)
    record = both.log("evaluation")[0]
    assert (record["metrics"]["GlobalAcc"], record["own"]) == (0.0, {"d": 1.0})
    wrong = make_engine(folder="three", evaluate=lambda model: 0.5, evaluate_every=2)
    wrong.accept(2)
    assert "returns float; it must return a Recall, a mapping" in wrong.reasons()
