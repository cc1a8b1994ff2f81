from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.auditing.brute_force import (
    CALM,
    Law,
    expected,
    one_by_one,
    slot_law,
    subset_law,
    together,
)

from fedraw.auditing import influence as capped
from fedraw.auditing.influence import capped_influence, influence
from fedraw.auditing.methods import RULES, Buffer, Rule
from fedraw.auditing.presence import Groups
from fedraw.core.types import Floats
from fedraw.core.weighting import Cap, weights, weights_of_rows

CAPS: list[Cap] = ["naive", "water-filling"]
SCORES = st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=12)


def exact(groups: Groups, size: int, buffer: Buffer, cap: Cap, cap_at: float) -> Floats:
    """All buffers, with the weights that the strategies use."""
    law: Law = (subset_law if buffer == "dedup" else slot_law)(groups.shares, size)
    score = groups.score

    def weigh(slots: object) -> Floats:
        return weights(score[list(slots)].tolist(), cap, cap_at)  # type: ignore[call-overload]

    return expected(law, score.size, weigh)


@CALM
@given(SCORES, st.sampled_from(CAPS), st.floats(0, 1))
def test_rows_have_the_weights_of_the_strategies(
    scores: list[float], cap: Cap, part: float
) -> None:
    # From 1/K, where all weights are equal, to 1, where nothing is cut.
    cap_at = 1 / len(scores) + part * (1 - 1 / len(scores))
    expected_row = weights(scores, cap, cap_at)
    row = weights_of_rows(np.array([scores]), cap, cap_at)[0]
    assert row == pytest.approx(expected_row, rel=1e-8)
    assert row.sum() == pytest.approx(1)


@pytest.mark.parametrize("cap", CAPS)
def test_many_rows_at_once_are_weighed_one_by_one(cap: Cap) -> None:
    rows = np.random.default_rng(0).lognormal(0, 3, (200, 7))
    together_ = weights_of_rows(rows, cap, 0.2)
    for row, weighed in zip(rows, together_, strict=True):
        assert weighed == pytest.approx(weights(row.tolist(), cap, 0.2), rel=1e-9, abs=1e-14)


@pytest.mark.parametrize("slots", [1, 2, 3, 7, 10, 49])
def test_a_cap_of_one_slots_share_makes_all_weights_equal(slots: int) -> None:
    rows = np.random.default_rng(slots).lognormal(0, 4, (50, slots))
    weighed = weights_of_rows(rows, "water-filling", 1 / slots)
    assert weighed == pytest.approx(np.full(rows.shape, 1 / slots), rel=1e-9)


FIVE = one_by_one([16, 8, 4, 2, 1], [1, 1, 2, 4, 8])


@pytest.mark.parametrize("size", [2, 3, 4, 5])
@pytest.mark.parametrize("cap", CAPS)
@pytest.mark.parametrize("buffer", ["dedup", "window"])
def test_all_buffers(buffer: Buffer, cap: Cap, size: int) -> None:
    cap_at = 1 / size + 0.05
    estimate = capped_influence(FIVE, size, buffer, cap, cap_at)
    truth = exact(FIVE, size, buffer, cap, cap_at)
    assert estimate == pytest.approx(truth, rel=0.03)
    assert influence(FIVE, size, Rule(buffer, "rarity", cap, cap_at)) == pytest.approx(
        truth, rel=0.03
    )


@pytest.mark.parametrize("ratio", [1e2, 1e4, 1e8])
def test_clients_that_are_hardly_ever_out_still_weigh(ratio: float) -> None:
    groups = one_by_one([3 * ratio, 2 * ratio, ratio, 1, 1, 1], [1, 1, 1, 2, 3, 4])
    for size in (4, 5, 6):
        estimate = capped_influence(groups, size, "dedup", "water-filling", 0.3)
        truth = exact(groups, size, "dedup", "water-filling", 0.3)
        assert estimate == pytest.approx(truth, rel=0.05)


def test_a_group_is_as_many_clients() -> None:
    groups = together([50, 4, 1], [1, 2, 6], [2, 3, 2])
    alone = one_by_one([50, 50, 4, 4, 4, 1, 1], [1, 1, 2, 2, 2, 6, 6])
    for size in (3, 5, 6, 7):
        estimate = capped_influence(groups, size, "dedup", "water-filling", 0.36)
        truth = exact(alone, size, "dedup", "water-filling", 0.36)[[0, 2, 5]]
        assert estimate == pytest.approx(truth, rel=0.03)


@pytest.mark.parametrize("buffer", ["dedup", "window"])
@pytest.mark.parametrize("cap", CAPS)
def test_a_buffer_of_one_has_nothing_to_cap(buffer: Buffer, cap: Cap) -> None:
    found = influence(FIVE, 1, Rule(buffer, "rarity", cap, 1.0))
    assert found == pytest.approx(FIVE.shares)


@pytest.mark.parametrize("buffer", ["dedup", "window"])
def test_a_cap_that_never_binds_changes_nothing(buffer: Buffer) -> None:
    estimate = capped_influence(FIVE, 3, buffer, "water-filling", 1.0)
    name = "fedraw" if buffer == "dedup" else "fedraw-weight-only"
    free = influence(FIVE, 3, RULES[name])
    assert estimate == pytest.approx(free, rel=0.03)


def test_the_tightest_cap_leaves_presence_alone() -> None:
    capped_at_most = influence(FIVE, 4, Rule("dedup", "rarity", "water-filling", 0.25))
    assert capped_at_most == pytest.approx(influence(FIVE, 4, RULES["fedraw-dedup-only"]))


@pytest.mark.parametrize("buffer", ["dedup", "window"])
def test_more_draws_change_little(buffer: Buffer, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    groups = one_by_one(rng.lognormal(0, 2, 60), rng.lognormal(0, 1, 60))
    usual = capped_influence(groups, 8, buffer, "water-filling", 0.2)
    monkeypatch.setattr(capped, "WORK", 10**8)
    monkeypatch.setattr(capped, "MOST_DRAWS", 40_000)
    many = capped_influence(groups, 8, buffer, "water-filling", 0.2, seed=1)
    assert usual == pytest.approx(many, rel=0.03)
