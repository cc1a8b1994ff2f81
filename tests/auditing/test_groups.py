from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.auditing.brute_force import CALM

from fedraw.auditing import presence as module
from fedraw.auditing.influence import influence
from fedraw.auditing.methods import RULES, Buffer, Rule
from fedraw.auditing.presence import BINS, Groups, group_presence, presence
from fedraw.core.types import Floats

RNG = np.random.default_rng


def federation(clients: int, seed: int = 0) -> tuple[Floats, Floats]:
    """Rates over three orders of magnitude; the slower, the rarer, but not strictly so."""
    rng = RNG(seed)
    rate = 10 ** rng.uniform(0, 3, clients)
    score = rate ** rng.uniform(-0.5, 0.1, clients)
    return rate, score


def test_a_few_clients_are_left_alone() -> None:
    rate, score = federation(module.MOST_GROUPS)
    groups = Groups.of(rate, score, np.zeros(rate.size, bool))
    assert groups.rate is rate
    assert groups.score is score
    assert groups.many.tolist() == [1] * rate.size
    assert groups.of_client.tolist() == list(range(rate.size))


@CALM
@given(st.integers(0, 100), st.integers(5000, 9000))
def test_arrivals_and_scores_are_those_of_the_federation(seed: int, clients: int) -> None:
    rate, score = federation(clients, seed)
    flag = RNG(seed).random(clients) < 0.1
    groups = Groups.of(rate, score, flag)
    assert groups.many.sum() == clients
    assert groups.many.size <= 2 * (2 * BINS - 1) ** 2
    assert np.bincount(groups.of_client).tolist() == groups.many.tolist()
    assert (groups.rate * groups.many).sum() == pytest.approx(rate.sum())
    assert (groups.score * groups.many).sum() == pytest.approx(score.sum())
    assert (groups.shares * groups.many).sum() == pytest.approx(1)
    # Nobody is in a group of others who differ by more than a bin.
    width = np.exp(np.ptp(np.log(rate)) / BINS)
    assert (rate / groups.rate[groups.of_client]).max() < width * (1 + 1e-9)


def test_those_with_the_flag_stay_among_themselves() -> None:
    rate, score = federation(20_000)
    flag = np.arange(20_000) % 7 == 0
    groups = Groups.of(rate, score, flag)
    inside = groups.members(flag)
    assert groups.many[inside].sum() == flag.sum()
    assert inside[groups.of_client].tolist() == flag.tolist()
    assert not groups.members(np.zeros(20_000, bool)).any()


def test_equal_clients_are_one_group() -> None:
    groups = Groups.of(np.full(10_000, 3.0), np.full(10_000, 0.2), np.zeros(10_000, bool))
    assert groups.many.tolist() == [10_000]
    assert groups.rate == pytest.approx(3)
    assert groups.shares == pytest.approx(1e-4)


@pytest.mark.parametrize("size", [5, 50, 500])
def test_grouping_twenty_thousand_clients_changes_less_than_a_percent(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rate, score = federation(20_000)
    rare = score > np.quantile(score, 0.98)
    order = np.argsort(np.argsort(rate)) / rate.size
    grouped = Groups.of(rate, score, rare)
    assert grouped.many.size < 2000
    monkeypatch.setattr(module, "MOST_GROUPS", 10**9)
    exact = Groups.of(rate, score, rare)
    buffers: list[Buffer] = ["window", "dedup"]
    for buffer in buffers:
        alone = presence(exact.shares, size, buffer)
        together = presence(grouped.shares, size, buffer, grouped.many)[grouped.of_client]
        for part in (rare, order < 1 / 3, order > 2 / 3):
            assert together[part].sum() == pytest.approx(alone[part].sum(), rel=0.01)
        # Where a group ends within a bin, it has a little of its neighbours' rates.
        for ten in range(10):
            part = (order * 10).astype(int) == ten
            assert together[part].sum() == pytest.approx(alone[part].sum(), rel=0.04)
        assert group_presence(
            grouped.shares, grouped.members(rare), size, buffer, grouped.many
        ) == pytest.approx(group_presence(exact.shares, rare, size, buffer), rel=0.01)


@pytest.mark.parametrize("name", ["fedfa", "fedraw-dedup-only", "fedraw-weight-only", "fedraw"])
def test_grouping_changes_the_influence_of_a_group_by_less_than_a_percent(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rate, score = federation(4000)
    rare = score > np.quantile(score, 0.95)
    thirds = np.argsort(np.argsort(rate)) * 3 // 4000
    exact = influence(Groups.of(rate, score, rare), 40, RULES[name])
    monkeypatch.setattr(module, "MOST_GROUPS", 100)
    groups = Groups.of(rate, score, rare)
    assert groups.many.max() > 10
    grouped = influence(groups, 40, RULES[name])[groups.of_client]
    for part in (rare, *(thirds == third for third in range(3))):
        assert grouped[part].sum() == pytest.approx(exact[part].sum(), rel=0.01)


@pytest.mark.parametrize("outlier", [1e-6, 1e6])
def test_a_client_unlike_all_others_does_not_blur_them(
    outlier: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = RNG(0)
    rate, score, nobody = (
        rng.uniform(1, 3, 6000),
        rng.uniform(0.02, 0.1, 6000),
        np.zeros(6000, bool),
    )
    rate[0], score[0] = outlier, 1.0
    groups = Groups.of(rate, score, nobody)
    grouped = influence(groups, 30, RULES["fedraw"])[groups.of_client]
    monkeypatch.setattr(module, "MOST_GROUPS", 10_000)
    exact = influence(Groups.of(rate, score, nobody), 30, RULES["fedraw"])
    for part in (rate < 5 / 3, rate > 7 / 3, score < 0.04, score > 0.08):
        assert grouped[part].sum() == pytest.approx(exact[part].sum(), rel=0.01)
    assert grouped[0] == pytest.approx(exact[0], rel=0.01)


def test_grouping_and_a_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    rate, score = federation(4000)
    rare = score > np.quantile(score, 0.95)
    rule = Rule("dedup", "rarity", "water-filling", 0.05)
    exact = influence(Groups.of(rate, score, rare), 40, rule)
    monkeypatch.setattr(module, "MOST_GROUPS", 100)
    groups = Groups.of(rate, score, rare)
    grouped = influence(groups, 40, rule)[groups.of_client]
    # Both are sampled, from 2,000 buffers or fewer.
    assert grouped[rare].sum() == pytest.approx(exact[rare].sum(), rel=0.03)
