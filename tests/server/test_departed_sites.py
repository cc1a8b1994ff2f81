"""A rare site leaves after its first update; the federation must continue without it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.server.conftest import MakeEngine
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


def without_west(make_engine: MakeEngine, strategy: Any) -> Engine:
    """A federation that `west` has left after its first update."""
    engine = make_engine(strategy, absence=10)
    sends_models = strategy.needs.sends == "model"
    for name, site in engine.sites.items():
        site.reply = towards(RARE if name == "west" else COMMON, sends_models)
    engine.run(lambda: any(r["client"] == "west" for r in engine.log("arrival")))
    engine.online.remove("west")
    engine.run(lambda: bool(engine.log("left")))
    return engine


@pytest.mark.parametrize("strategy", METHODS.values(), ids=METHODS.keys())
def test_the_model_converges_to_the_remaining_sites(make_engine: MakeEngine, strategy: Any) -> None:
    engine = without_west(make_engine, strategy)
    engine.accept(engine.coordinator.accepted + 100)
    assert engine.coordinator._store.strategy_state.model == pytest.approx([COMMON] * SIZE, abs=0.3)
    assert engine.log("arrival")[-1]["version"] > 20


def test_replay_keeps_the_update_of_a_departed_rare_site(
    make_engine: MakeEngine,
) -> None:
    """Replay keeps them on purpose; `mass` leaves the common sites at least half the weight."""
    engine = without_west(make_engine, Replay(K))
    version = engine.coordinator._store.strategy_state.version
    engine.accept(engine.coordinator.accepted + 100)
    state = engine.coordinator._store.strategy_state
    assert "west" in state.contents.clients
    assert state.version >= version + 100 // K
    assert np.all(np.abs(state.model - (COMMON + RARE) / 2) < (COMMON - RARE) / 2)


@pytest.mark.parametrize("dedup", [True, False])
def test_the_slot_of_a_departed_site_expires_after_k_arrivals(
    make_engine: MakeEngine, dedup: bool
) -> None:
    engine = without_west(make_engine, FedRAW(K, dedup=dedup))
    (left,) = engine.log("left")
    engine.accept(engine.coordinator.accepted + 2 * K)
    later = [r for r in engine.log("arrival") if r["event"] > left["event"]]
    assert all("west" not in r["buffer"] for r in later[K - 1 :])
    assert all(r["aggregated"] and sum(r["weights"]) == pytest.approx(1) for r in later)
    if dedup:
        assert all("west" in r["buffer"] for r in later[: K - 1])


def test_the_expiry_count_survives_a_restart(make_engine: MakeEngine) -> None:
    engine = without_west(make_engine, FedRAW(K))
    engine.accept(engine.coordinator.accepted + 2)
    before = packed(engine)
    engine.restart(away=100.0)
    assert packed(engine) == before
    engine.accept(engine.coordinator.accepted + 2)
    assert "west" not in engine.log("arrival")[-1]["buffer"]


def test_a_site_that_rejoins_before_expiry_keeps_its_slot(make_engine: MakeEngine) -> None:
    engine = without_west(make_engine, FedRAW(K))
    for name, site in engine.sites.items():
        site.seconds = 1000.0 if name == "west" else 10.0
    engine.online.add("west")
    engine.run(lambda: "west" in engine.coordinator.members)
    engine.accept(engine.coordinator.accepted + 3 * K)
    assert "west" in engine.log("arrival")[-1]["buffer"]


def test_a_rejoined_site_in_training_does_not_block_the_others(
    make_engine: MakeEngine,
) -> None:
    engine = without_west(make_engine, FedRAW(K))
    engine.accept(engine.coordinator.accepted + 2 * K)
    engine.sites["west"].seconds = 1000.0
    engine.online.add("west")
    engine.run(lambda: "west" in engine.coordinator.members)
    version = engine.coordinator._store.strategy_state.version
    engine.accept(engine.coordinator.accepted + K)
    assert engine.coordinator._store.strategy_state.version == version + K
