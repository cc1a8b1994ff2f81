from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedraw.data.splits import grouped_holdout, random_holdout

SEEDS = st.integers(0, 2**32)


@given(
    groups=st.lists(st.integers(0, 12), min_size=1, max_size=60).map(np.array),
    share=st.floats(0, 0.95),
    seed=SEEDS,
)
def test_no_group_is_on_both_sides(
    groups: np.ndarray[tuple[int], np.dtype[np.int64]], share: float, seed: int
) -> None:
    kept, held = grouped_holdout(groups, share, np.random.default_rng(seed))
    assert sorted([*kept, *held]) == list(range(len(groups)))
    assert not set(groups[kept]) & set(groups[held])
    assert len(kept) >= 1
    # Without the group that was drawn last the share would not have been reached.
    wanted, largest = round(share * len(groups)), np.bincount(groups).max()
    assert len(held) <= max(0, wanted - 1 + largest) if wanted else len(held) == 0
    assert len(held) >= wanted or len(set(groups[kept])) == 1


def test_groups_of_one_are_drawn_in_the_exact_share() -> None:
    kept, held = grouped_holdout(np.arange(100), 0.2, np.random.default_rng(0))
    assert (len(kept), len(held)) == (80, 20)


def test_a_single_group_is_kept() -> None:
    assert [len(p) for p in grouped_holdout(np.zeros(9, int), 0.5, np.random.default_rng(0))] == [
        9,
        0,
    ]


@given(n=st.integers(0, 50), share=st.floats(0, 0.99), seed=SEEDS)
def test_unstratified_parts_everything(n: int, share: float, seed: int) -> None:
    kept, held = random_holdout(n, share, np.random.default_rng(seed))
    assert sorted([*kept, *held]) == list(range(n))
    assert len(held) == round(share * n)


def test_the_draw_of_earlier_results_is_the_same() -> None:
    kept, held = random_holdout(10, 0.2, np.random.default_rng(0))
    drawn = np.random.default_rng(0).permutation(10)
    assert (kept.tolist(), held.tolist()) == (sorted(drawn[2:]), sorted(drawn[:2]))
    untouched = np.random.default_rng(0)
    random_holdout(10, 0.0, untouched)
    assert untouched.random() == np.random.default_rng(0).random()
