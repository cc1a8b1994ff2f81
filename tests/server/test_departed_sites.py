"""A rare site sends one update and is never seen again; the others must go on without it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.server.conftest import Found
from tests.server.engine import SIZE, Engine
from tests.server.test_recovery import packed

from fedraw.server.tasks import Reply, Task, TrainReply
from fedraw.strategies.ca2fl import CA2FL
from fedraw.strategies.fedbuff import FedBuff
from fedraw.strategies.fedfa import FedFa
from fedraw.strategies.fedraw import FedRAW
from fedraw.strategies.replay import Replay

# As many places as sites: the fewest sites with which a server begins.
K = 4
METHODS = {
    "fedraw": FedRAW(K),
    "dedup-only": FedRAW(K, weighting="uniform"),
    "fedfa": FedFa(K),
    "fedbuff": FedBuff(K),
    "fedbuff unique": FedBuff(K, unique=True),
    "ca2fl": CA2FL(K),
}
# Where the training of the common sites leads, and that of the rare one.
COMMON, RARE = 1.0, -3.0


def towards(optimum: float, sends_models: bool) -> Callable[[Task, TrainReply], Reply]:
    """A site whose training halves the distance to its optimum, with a little noise."""

    def reply(task: Task, honest: TrainReply) -> Reply:
        assert task.model is not None
        start = task.model if sends_models else np.zeros(SIZE, np.float32)
        step = (optimum - task.model) / 2 + 0.1 * (honest.vector - start)
        vector = np.asarray(start + step, np.float32)
        return TrainReply(honest.site, honest.task, honest.version, vector, 10, 0.5)

    return reply


def without_west(found: Found, strategy: Any) -> Engine:
    """A federation that west has left after its first update."""
    engine = found(strategy, absence=10)
    sends_models = strategy.needs.sends == "model"
    for name, site in engine.sites.items():
        site.reply = towards(RARE if name == "west" else COMMON, sends_models)
    engine.run(lambda: any(r["client"] == "west" for r in engine.log("arrival")))
    engine.online.remove("west")
    engine.run(lambda: bool(engine.log("left")))
    return engine


@pytest.mark.parametrize("strategy", METHODS.values(), ids=METHODS.keys())
def test_the_model_is_that_of_the_sites_that_are_left(found: Found, strategy: Any) -> None:
    engine = without_west(found, strategy)
    engine.accept(engine.coordinator.accepted + 100)
    assert engine.coordinator._store.strategy_state.model == pytest.approx([COMMON] * SIZE, abs=0.3)
    assert engine.log("arrival")[-1]["version"] > 20


def test_replay_keeps_what_a_rare_site_sent_and_learns_from_the_others(found: Found) -> None:
    """That is its purpose, and `mass` bounds it: the common sites have at least half."""
    engine = without_west(found, Replay(K))
    version = engine.coordinator._store.strategy_state.version
    engine.accept(engine.coordinator.accepted + 100)
    state = engine.coordinator._store.strategy_state
    assert "west" in state.contents.clients
    assert state.version >= version + 100 // K
    assert np.all(np.abs(state.model - (COMMON + RARE) / 2) < (COMMON - RARE) / 2)


@pytest.mark.parametrize("dedup", [True, False])
def test_its_slot_is_gone_after_k_further_arrivals(found: Found, dedup: bool) -> None:
    engine = without_west(found, FedRAW(K, dedup=dedup))
    (left,) = engine.log("left")
    engine.accept(engine.coordinator.accepted + 2 * K)
    later = [r for r in engine.log("arrival") if r["event"] > left["event"]]
    assert all("west" not in r["buffer"] for r in later[K - 1 :])
    assert all(r["aggregated"] and sum(r["weights"]) == pytest.approx(1) for r in later)
    if dedup:
        assert all("west" in r["buffer"] for r in later[: K - 1])


def test_the_countdown_outlives_a_restart(found: Found) -> None:
    engine = without_west(found, FedRAW(K))
    engine.accept(engine.coordinator.accepted + 2)
    before = packed(engine)
    engine.restart(away=100.0)
    assert packed(engine) == before
    engine.accept(engine.coordinator.accepted + 2)
    assert "west" not in engine.log("arrival")[-1]["buffer"]


def test_a_site_that_is_back_in_time_keeps_its_slot(found: Found) -> None:
    engine = without_west(found, FedRAW(K))
    for name, site in engine.sites.items():
        site.seconds = 1000.0 if name == "west" else 10.0
    engine.online.add("west")
    engine.run(lambda: "west" in engine.coordinator.members)
    engine.accept(engine.coordinator.accepted + 3 * K)
    assert "west" in engine.log("arrival")[-1]["buffer"]


def test_the_others_are_not_stopped_by_a_site_that_is_back_and_still_trains(found: Found) -> None:
    engine = without_west(found, FedRAW(K))
    engine.accept(engine.coordinator.accepted + 2 * K)
    engine.sites["west"].seconds = 1000.0
    engine.online.add("west")
    engine.run(lambda: "west" in engine.coordinator.members)
    version = engine.coordinator._store.strategy_state.version
    engine.accept(engine.coordinator.accepted + K)
    assert engine.coordinator._store.strategy_state.version == version + K
