from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.histograms import Counts, federations, score_by_hand

from fedraw.core.labels import LabelTable
from fedraw.core.rarity import rarity_scores, scores_of_rows


def test_a_label_of_ones_own_weighs_full_and_a_shared_one_by_its_holders() -> None:
    table = LabelTable.from_counts(
        {"a": {"cat": 4}, "b": {"cat": 3, "dog": 1}, "c": {"cat": 1, "fox": 1}}
    )
    # cat is held by three, dog and fox by one: 1/3, 3/4/3 + 1/4, 1/2/3 + 1/2.
    assert rarity_scores(table) == pytest.approx([1 / 3, 1 / 2, 2 / 3])


def test_only_the_mix_counts_not_the_amount() -> None:
    small = LabelTable.from_counts({1: {"cat": 1, "dog": 3}, 2: {"cat": 1}})
    large = LabelTable.from_counts({1: {"cat": 1000, "dog": 3000}, 2: {"cat": 9}})
    assert rarity_scores(small).tolist() == rarity_scores(large).tolist()


def common_and_rare(common_mix: list[int], rare_share: int) -> LabelTable:
    """Client 0 holds common labels only, 1 and 2 also a rare one; every common label has 20."""
    counts: Counts = {0: {f"common {i}": n for i, n in enumerate(common_mix)}}
    for client in (1, 2):
        counts[client] = {"common 0": 100 - rare_share, "rare": rare_share}
    for client in range(3, 30):
        held = [i for i in range(len(common_mix)) if client < (20 if i == 0 else 22)]
        counts[client] = {f"common {i}": 5 for i in held} or {"own": 1}
    return LabelTable.from_counts(counts)


@pytest.mark.parametrize("mix", [[1], [64, 32, 32], [7, 1, 1, 5], [999, 1]])
def test_a_common_only_client_has_a_twentieth_whatever_its_mix(mix: list[int]) -> None:
    table = common_and_rare(mix, 50)
    assert table.coverage()[: len(mix)].tolist() == [20] * len(mix)
    assert rarity_scores(table)[0] == pytest.approx(0.05, rel=1e-15)


@pytest.mark.parametrize(("percent", "score"), [(25, 0.1625), (66, 0.347), (100, 0.5)])
def test_a_rare_client_has_half_its_rare_share_and_a_twentieth_of_the_rest(
    percent: int, score: float
) -> None:
    counts: Counts = {i: {"common": 100} for i in range(18 if percent < 100 else 20)}
    common = {"common": 100 - percent} if percent < 100 else {}
    counts |= {"r1": {**common, "rare": percent}, "r2": {**common, "rare": percent}}
    assert rarity_scores(LabelTable.from_counts(counts))[-2:] == pytest.approx([score, score])


@given(federations)
def test_scores_are_the_plain_formula(counts: Counts) -> None:
    scores = rarity_scores(LabelTable.from_counts(counts))
    assert scores == pytest.approx([score_by_hand(c, counts) for c in counts], rel=1e-12)


@given(federations)
def test_scores_sum_to_the_mean_frequencies_among_holders(counts: Counts) -> None:
    table = LabelTable.from_counts(counts)
    frequencies = np.bincount(table.column, weights=table.share) / table.coverage()
    assert rarity_scores(table).sum() == pytest.approx(frequencies.sum(), rel=1e-12)


@pytest.mark.parametrize("longest", [3, 40, 700])
def test_a_client_alone_scores_to_the_bit_as_among_many(longest: int) -> None:
    rng = np.random.default_rng(longest)
    sizes = rng.integers(1, longest, size=60)
    counts: Counts = {
        i: dict(zip(rng.permutation(longest)[:n].tolist(), rng.integers(1, 999, n), strict=True))
        for i, n in enumerate(sizes.tolist())
    }
    table = LabelTable.from_counts(counts)
    together = rarity_scores(table)
    coverage = table.coverage()
    for i in range(len(table)):
        own = table.row(i)
        alone = scores_of_rows(np.array([0, 0]), table.column[own], table.share[own], coverage)
        assert alone[0] == together[i]


@given(federations, st.randoms(use_true_random=False))
def test_the_order_and_the_names_of_clients_do_not_matter(
    counts: Counts, shuffler: random.Random
) -> None:
    order = list(counts)
    shuffler.shuffle(order)
    before = dict(zip(counts, rarity_scores(LabelTable.from_counts(counts)), strict=True))
    renamed = LabelTable.from_counts({f"site {client!r}": counts[client] for client in order})
    # Another order of clients is another order of labels, hence of the additions.
    assert rarity_scores(renamed) == pytest.approx([before[c] for c in order], rel=1e-14)
