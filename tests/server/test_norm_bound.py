"""The bound on an update's norm, from the first update on and whatever other sites send."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from statistics import median_low
from typing import Any

import numpy as np
import pytest
from tests.server.conftest import MakeEngine
from tests.server.engine import LAYOUT, SIZE

from fedraw.core.layout import Layout
from fedraw.core.types import Vector
from fedraw.server.admission import check_norm, scale_of
from fedraw.server.tasks import Reply, Task, TrainReply
from fedraw.strategies.fedbuff import FedBuff
from fedraw.strategies.fedfa import FedFa
from fedraw.strategies.fedraw import FedRAW
from fedraw.strategies.protocol import Strategy
from fedraw.strategies.qfedavg import QFedAvg

Lie = Callable[[Task, TrainReply], Reply]


def sending(number: float) -> Lie:
    """Set every parameter to this value, or change it by this value if differences are sent."""

    def lie(task: Task, honest: TrainReply) -> Reply:
        return replace(honest, vector=np.full(SIZE, number, np.float32))

    return lie


def started_from(number: float) -> Lie:
    """The model of the task, with every parameter changed by this value."""

    def lie(task: Task, honest: TrainReply) -> Reply:
        assert task.model is not None
        return replace(honest, vector=task.model + np.float32(number))

    return lie


@pytest.mark.parametrize("strategy", [FedFa(buffer=2), FedBuff(buffer=2)], ids=["model", "delta"])
@pytest.mark.parametrize("number", [1e30, 1e15, 100.0])
def test_a_huge_update_is_refused_from_the_first_one_on(
    make_engine: MakeEngine, strategy: Strategy[Any], number: float
) -> None:
    engine = make_engine(strategy, patience=9, back_off=0.1)
    engine.sites["north"].reply = sending(number)  # the fastest site, so the first to be heard
    engine.accept(12)
    assert {r["client"] for r in engine.log("arrival")} == {"south", "east", "west"}
    refused = engine.log("rejected")
    assert refused and {r["client"] for r in refused} == {"north"}
    assert "(norm), more than 10 times the 2 of the initial model" in refused[0]["reason"]
    assert np.abs(engine.coordinator._store.strategy_state.model).max() < 10


def test_the_log_has_no_numbers_beyond_json(make_engine: MakeEngine) -> None:
    engine = make_engine(FedFa(buffer=2), patience=99, back_off=0.1)
    engine.sites["north"].reply = sending(3e38)  # its square is beyond a float
    engine.sites["south"].reply = lambda _, honest: replace(honest, loss=float("nan"))
    engine.accept(12)

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    text = (engine.settings.folder / "events.jsonl").read_text()
    for line in text.splitlines():
        json.loads(line, parse_constant=refuse)
    updates = [path.read_bytes() for path in (engine.settings.folder / "updates").iterdir()]
    assert updates and not any(b"NaN" in update or b"Infinity" in update for update in updates)
    engine.restart()
    engine.accept(16)


def test_a_site_that_changes_nothing_does_not_switch_the_bound_off(make_engine: MakeEngine) -> None:
    engine = make_engine(
        FedFa(buffer=2), patience=99, back_off=0.1, model=np.ones(SIZE, np.float32)
    )
    for name in ("north", "south", "east"):  # three of four: the median of all norms is 0
        engine.sites[name].reply = started_from(0.0)
    engine.sites["west"].reply = sending(1e6)
    engine.accept(80)
    assert "west" not in {r["client"] for r in engine.log("arrival")}
    assert (engine.coordinator._store.strategy_state.model == 1).all()


def test_one_fast_site_does_not_decide_the_median(make_engine: MakeEngine) -> None:
    """`north` sends a hundred times as often as the others, and changes almost nothing."""
    engine = make_engine(FedFa(buffer=2), patience=99, back_off=0.1)
    engine.sites["north"].seconds = 0.5
    engine.sites["north"].reply = started_from(1e-6)
    for name in ("south", "east", "west"):
        engine.sites[name].seconds = 50.0
    engine.accept(220)
    assert not engine.log("rejected")
    assert {r["client"] for r in engine.log("arrival")} == set(engine.sites)


def test_large_steps_of_most_sites_become_accepted(make_engine: MakeEngine) -> None:
    """Large steps are accepted once three sites have sent one, although the first are refused."""
    engine = make_engine(FedFa(buffer=2), patience=4, back_off=1.0)
    for site in engine.sites.values():
        site.reply = sending(1000.0)
    engine.sites["west"].reply = sending(1e7)
    engine.accept(10)
    clients = [r["client"] for r in engine.log("rejected")]
    assert all(clients.count(name) <= 1 for name in ("north", "south", "east"))
    engine.restart()
    engine.accept(14)
    assert "west" not in {r["client"] for r in engine.log("arrival")}


def test_refused_norms_survive_a_restart(make_engine: MakeEngine) -> None:
    engine = make_engine(FedFa(buffer=2), patience=9, back_off=0.1, snapshot_every=1e9)
    engine.sites["north"].reply = sending(500.0)
    engine.accept(3)
    before = dict(engine.coordinator._store.state.norms)
    assert before["north"] == 1000.0
    engine.restart()
    assert engine.coordinator._store.state.norms == before


def test_a_departed_site_does_not_count_in_the_median(make_engine: MakeEngine) -> None:
    engine = make_engine(FedFa(buffer=2), absence=5)
    engine.accept(12)
    assert set(engine.coordinator._store.state.norms) == set(engine.sites)
    engine.online.remove("west")
    engine.run(lambda: "west" not in engine.coordinator.members)
    assert set(engine.coordinator._store.state.norms) == {"north", "south", "east"}


@pytest.mark.parametrize(
    ("norms", "largest"),
    [
        ([], 40.0),  # ten times the initial model's norm of 4
        ([0.5, 0.5], 40.0),  # of two sites, one may lie
        ([1.0, 2.0, 3.0], 20.0),
        ([1.0, 2.0, 1e30, 1e30], 20.0),  # half of them lie
        ([1e-9, 2.0, 3.0], 20.0),
        ([0.0, 0.0, 3.0], 0.4),  # a hundredth of the initial model, ten times
    ],
)
def test_the_bound_by_hand(norms: list[float], largest: float) -> None:
    check_norm("north", 0.99 * largest, norms, scale=4.0, bound=10)
    with pytest.raises(Exception, match="client 'north' changed the model by"):
        check_norm("north", 1.01 * largest, norms, scale=4.0, bound=10)


def test_the_scale_of_a_model_counts_tensors_of_zeros_as_ones() -> None:
    layout = Layout.of([("w", (2, 2)), ("b", (5,))], [("running_var", (1,))])
    vector: Vector = np.array([2, 2, 2, 2, 0, 0, 0, 0, 0, 900], np.float32)
    assert scale_of(vector, layout) == pytest.approx((16 + 5) ** 0.5)
    assert scale_of(np.zeros(SIZE, np.float32), LAYOUT) == 2.0
    assert np.isfinite(scale_of(np.full(10, 3e38, np.float32), layout))


def test_a_loss_is_checked_only_if_the_strategy_uses_it(
    make_engine: MakeEngine,
) -> None:
    engine = make_engine(QFedAvg(lr=0.1), patience=9, back_off=0.1)
    engine.sites["west"].reply = lambda _, honest: replace(honest, loss=float("inf"))
    engine.run(lambda: bool(engine.log("rejected")))
    assert "sent the loss inf, not a number from 0 on" in engine.log("rejected")[0]["reason"]


def test_a_robust_mean_limits_updates_just_below_the_bound(make_engine: MakeEngine) -> None:
    """`south` sends 9.9 times the median norm, always in the same direction, and is accepted."""

    def pushed(**robust: Any) -> float:
        engine = make_engine(
            FedRAW(buffer=4, **robust), folder=str(robust.get("robust")), arrivals=400
        )

        def push(task: Task, honest: TrainReply) -> TrainReply:
            assert task.model is not None
            norms = engine.coordinator._store.state.norms.values()
            usual = median_low(norms) if len(norms) > 2 else 1.0
            away = np.array([9.9 * usual, 0, 0, 0], np.float32)
            return replace(honest, vector=task.model + away)

        engine.sites["south"].reply = push
        engine.accept(120)
        assert len(engine.log("rejected")) < 6  # the median fell while it was on its way
        return float(abs(engine.coordinator._store.strategy_state.model[0]))

    plain, clip, trim = pushed(), pushed(robust="clip"), pushed(robust="trim")
    assert 20 < plain < 25 and clip < 10 and trim < 15
