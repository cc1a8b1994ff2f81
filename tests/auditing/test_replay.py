"""Residual replay in closed form: against every round there is, the strategy and the simulator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.auditing.brute_force import CALM, measured, one_by_one, slot_law
from tests.simulation.scenes import add_one, simulation, steps

import fedraw
from fedraw.auditing import presence as grouping
from fedraw.auditing.influence import influence
from fedraw.auditing.methods import RULES
from fedraw.auditing.presence import Groups, arrival_shares, group_presence, presence
from fedraw.core.labels import LabelTable
from fedraw.core.randomness import Streams
from fedraw.core.rarity import rarest, rarity_scores, weights_of_rarest
from fedraw.core.types import Floats
from fedraw.simulation.arrivals import poisson

REPLAY = RULES["fedraw-replay"]

FEDERATIONS = st.dictionaries(
    st.integers(0, 40),
    st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 500), min_size=1),
    min_size=1,
    max_size=14,
)


@CALM
@given(FEDERATIONS, st.integers(1, 6))
def test_r_and_w_are_the_strategy_s(counts: dict[int, dict[str, int]], size: int) -> None:
    """The audit goes by the strategy's defaults."""
    table = LabelTable.from_counts(counts)
    scores = rarity_scores(table)
    found = rarest(scores, size)
    weight = weights_of_rarest(scores[found], float(scores.sum()))
    state, _ = fedraw.Replay(size).start(fedraw.Setup(np.zeros(1, np.float32), table))
    assert list(state.rare) == [table.clients[i] for i in found]
    assert list(state.rare.values()) == pytest.approx(weight.tolist())


CLIENTS = st.lists(
    st.tuples(st.floats(-3, 3), st.floats(-1, 4)), min_size=2, max_size=5
)  # rate and score, as logarithms


@CALM
@given(CLIENTS, st.integers(1, 4))
def test_influence_over_every_round_there_is(clients: list[tuple[float, float]], size: int) -> None:
    rate, score = (np.exp(column) for column in zip(*clients, strict=True))
    groups = one_by_one(rate, score)
    kept = rarest(score, size)
    weight = dict(
        zip(kept.tolist(), weights_of_rarest(score[kept], float(score.sum())), strict=True)
    )
    rho = sum(weight.values())
    truth = np.zeros(rate.size)
    for slots, chance in slot_law(groups.shares, size).items():
        common = [i for i in slots if i not in weight]
        for r, own in weight.items():
            truth[r] += chance * (own if common else own / rho)
        for i in common:
            truth[i] += chance * (1 - rho) / len(common)
    assert influence(groups, size, REPLAY) == pytest.approx(truth, rel=1e-9)


def ten() -> tuple[Floats, LabelTable]:
    """Eight common clients; two that hold a label of their own, and are slow."""
    counts: dict[int, dict[str, int]] = {i: {"x": 10, "y": 3 + i} for i in range(8)}
    counts |= {8: {"x": 10, "odd": 20}, 9: {"y": 5, "even": 5}}
    seconds = np.array([1, 2, 1.5, 0.7, 1, 3, 2, 1, 9, 6], float)
    return seconds, LabelTable.from_counts(counts)


@pytest.mark.parametrize("size", [1, 3, 6])
def test_the_simulator_agrees(size: int) -> None:
    seconds, table = ten()
    shares, kept = arrival_shares(seconds), rarest(rarity_scores(table), size)
    run = measured(fedraw.Replay(size), seconds, table, 20_000, seed=size)
    gap = np.abs(run.presence - presence(shares, size, "blocks", kept=kept))
    assert (gap <= 4.5 * run.presence_error).all()
    assert run.presence[kept].tolist() == [1.0] * kept.size
    groups = one_by_one(1 / seconds, rarity_scores(table))
    gap = np.abs(run.influence - influence(groups, size, REPLAY))
    rare = float(shares[kept].sum()) ** size  # rounds of rare arrivals alone: a run may meet none
    unseen = np.sqrt(rare * size / 20_000)
    assert (gap <= 4.5 * (run.influence_error + unseen)).all()


def test_heard_within_so_many_arrivals() -> None:
    """1 − (1 − p)^n, over 400 federations that begin anew."""
    seconds, table = ten()
    arrivals, kept = 20, rarest(rarity_scores(table), 3)
    assert kept.tolist() == [8, 9]
    seen = np.zeros((400, 2))
    for seed in range(400):
        run = simulation(fedraw.Replay(3), table, poisson(seconds, Streams(seed)), add_one)
        came = {step.client for step in steps(run, arrivals)}
        seen[seed] = [client in came for client in kept]
    closed = presence(arrival_shares(seconds), arrivals, "window")[kept]
    error = np.sqrt(closed * (1 - closed) / 400)
    assert (np.abs(seen.mean(0) - closed) < 4 * error).all()


def test_anyone_of_a_group_is_there_if_one_of_them_is_kept() -> None:
    shares, kept = np.array([0.5, 0.3, 0.2]), np.array([2])
    nobody = np.zeros(3, np.bool_)
    for group, chance in (([2], 1.0), ([0, 2], 1.0), ([1], 1 - 0.7**2), ([], 0.0)):
        inside = nobody.copy()
        inside[group] = True
        assert group_presence(shares, inside, 2, "blocks", kept=kept) == pytest.approx(chance)


def test_without_anyone_rare_it_is_fedbuff() -> None:
    groups = one_by_one([3.0, 2.0, 1.0], [1.0, 1.2, 1.4])
    assert groups.rarest.size == 0
    assert influence(groups, 2, REPLAY) == pytest.approx(influence(groups, 2, RULES["fedbuff"]))


def test_a_slower_holder_weighs_what_a_quick_one_does() -> None:
    scores = np.array([1.0, 1.0, 1.0, 1.0, 4.0])
    for seconds in (1.0, 10.0, 1000.0):
        rate = np.array([1, 1, 1, 1, 1 / seconds])
        q = float(arrival_shares(1 / rate)[4] ** 3)
        found = influence(one_by_one(rate, scores), 3, REPLAY)[4]
        assert found == pytest.approx(0.5 * (1 - q) + q)


def test_above_four_thousand_clients_the_rarest_stay_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    clients = 6000
    rate, score = 10 ** rng.uniform(0, 2, clients), rng.uniform(0.9, 1.1, clients)
    score[rng.choice(clients, 70, replace=False)] *= rng.uniform(3, 30, 70)
    nobody = np.zeros(clients, np.bool_)
    together: Any = Groups.of(rate, score, nobody, slots=60)
    assert together.rarest.size == 60 and (together.many[together.rarest] == 1).all()
    np.testing.assert_array_equal(
        together.rarest, together.of_client[rarest(score, 60)], "the rarest first"
    )
    monkeypatch.setattr(grouping, "MOST_GROUPS", clients)
    alone = Groups.of(rate, score, nobody)
    for size in (5, 60):
        exact = influence(alone, size, REPLAY)
        near = influence(together, size, REPLAY)[together.of_client]
        kept = rarest(score, size)
        np.testing.assert_allclose(near[kept], exact[kept], rtol=1e-9)
        assert near.sum() == pytest.approx(1)
