from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.auditing.brute_force import CALM, one_by_one

from fedraw.auditing import presence as groups_module
from fedraw.auditing import standing as module
from fedraw.auditing.methods import Weighting
from fedraw.auditing.presence import Groups
from fedraw.auditing.standing import LabelWeights
from fedraw.core.labels import LabelTable
from fedraw.eventlog.metrics import label_influence

COUNTS = st.lists(
    st.dictionaries(st.sampled_from("abcde"), st.integers(1, 500), min_size=1),
    min_size=1,
    max_size=8,
)


def table_of(counts: list[dict[str, int]]) -> LabelTable:
    return LabelTable.from_counts(dict(enumerate(counts)))


def alike(table: LabelTable) -> LabelWeights:
    ones = np.ones(len(table))
    return LabelWeights(table, one_by_one(ones), ones, ones)


def test_by_hand() -> None:
    table = LabelTable.from_counts({"a": {"cat": 2}, "b": {"cat": 1, "dog": 1}})
    shares = alike(table)
    # cats: (0.75 + 0.125) of 3/4 of all samples; dogs: 0.125 of a quarter.
    found = shares.of_clients(np.array([0.75, 0.25]))
    assert found.influence == pytest.approx([0.875 / 0.75, 0.5])
    # Fair shares 3/4 and 1/4, their median a half; cats are held by all, dogs by a quarter.
    assert found.standing == pytest.approx([(0.875 / 0.5) ** 0.5, (0.125 / 0.5 * 0.25) ** 0.5])
    grouped = shares.of_groups(np.array([0.75, 0.25]), "rarity")
    assert grouped.influence == pytest.approx(found.influence)
    assert grouped.standing == pytest.approx(found.standing)


@CALM
@given(COUNTS, st.data())
def test_as_measured_from_a_log(counts: list[dict[str, int]], data: st.DataObject) -> None:
    table = table_of(counts)
    raw = data.draw(st.lists(st.floats(0.01, 1), min_size=len(counts), max_size=len(counts)))
    influence = np.array(raw) / sum(raw)
    logged = label_influence(dict(enumerate(influence.tolist())), table)
    ratios = alike(table).of_clients(influence).influence
    expected = [logged[label].ratio for label in table.labels]
    assert ratios == pytest.approx(expected)
    # Weighed by the fair shares they average to one: what one label gains another loses.
    assert ratios @ table.fair_shares() == pytest.approx(1)


@CALM
@given(COUNTS)
def test_influence_in_proportion_to_samples_is_fair_to_every_label(
    counts: list[dict[str, int]],
) -> None:
    table = table_of(counts)
    shares = alike(table)
    assert shares.of_clients(table.totals() / table.totals().sum()).influence == pytest.approx(1)


def test_of_groups_is_of_their_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    counts: list[dict[str, Any]] = [
        {label: int(rng.integers(1, 50)) for label in rng.choice(list("abcdefgh"), 3, False)}
        for _ in range(200)
    ]
    table = table_of(counts)
    monkeypatch.setattr(groups_module, "MOST_GROUPS", 10)
    rate, score = rng.lognormal(0, 1, 200), rng.lognormal(0, 1, 200)
    groups = Groups.of(rate, score, rng.random(200) < 0.1)
    assert groups.many.max() > 1
    of_group, group = rng.random(groups.many.size), groups.of_client
    dense = LabelWeights(table, groups, rate, score)
    by_weighting = {
        "cached": of_group[group],
        "uniform": of_group[group] * rate / groups.rate[group],
        "rarity": of_group[group] * rate / groups.rate[group] * score / groups.score[group],
    }
    expected = {name: dense.of_clients(own).influence for name, own in by_weighting.items()}
    kinds: tuple[Weighting, ...] = ("cached", "uniform", "rarity")
    for kind in kinds:
        assert dense.of_groups(of_group, kind).influence == pytest.approx(expected[kind])
    monkeypatch.setattr(module, "DENSE_UP_TO", 0)
    for kind in kinds:
        assert dense.of_groups(of_group, kind).influence == pytest.approx(expected[kind])


def test_where_labels_are_on_few_clients_holders_count_against_that() -> None:
    """Forty clients with a label each, all alike: no label stands against labels that all hold."""
    table = LabelTable.from_counts({client: {client: 10} for client in range(40)})
    found = alike(table).of_clients(np.full(40, 1 / 40))
    # 1/40 of the weight, as fair; its holder's 1/40 against the tenth of 0.25 that is usual here.
    assert found.standing == pytest.approx((1 / 40 / (1 / 40 / 0.25)) ** 0.5)
