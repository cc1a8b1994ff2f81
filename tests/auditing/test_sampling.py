from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.auditing.brute_force import CALM, Law, one_by_one, slot_law, subset_law, together

from fedraw.auditing.influence import draw_buffers
from fedraw.auditing.methods import Buffer
from fedraw.auditing.presence import presence
from fedraw.core.types import Ints

DRAWS = 40_000
RATES = [8.0, 4.0, 2.0, 1.0, 1.0]


def chi_square(buffers: Ints, law: Law, sort: bool) -> float:
    """Squared deviations from the law; about one for each buffer that there is."""
    rows = np.sort(buffers, axis=1) if sort else buffers
    seen = Counter(map(tuple, rows.tolist()))
    assert set(seen) <= set(law)
    n = len(buffers)
    return sum((seen[held] - n * chance) ** 2 / (n * chance) for held, chance in law.items())


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_subsets_have_their_exact_law(size: int) -> None:
    groups = one_by_one(RATES)
    law = subset_law(groups.shares, size)
    buffers = draw_buffers(groups, size, "dedup", DRAWS, np.random.default_rng(size))
    free = len(law) - 1
    assert chi_square(buffers, law, sort=True) < free + 4 * np.sqrt(2 * free)


@pytest.mark.parametrize("buffer", ["window", "blocks"])
def test_slots_have_their_exact_law(buffer: Buffer) -> None:
    groups = one_by_one(RATES)
    law = slot_law(groups.shares, 2)
    buffers = draw_buffers(groups, 2, buffer, DRAWS, np.random.default_rng(0))
    free = len(law) - 1
    assert chi_square(buffers, law, sort=False) < free + 4 * np.sqrt(2 * free)


def test_groups_of_clients_have_the_law_of_their_clients() -> None:
    groups, alone = together([5, 1], [1, 1], [2, 3]), one_by_one([5, 5, 1, 1, 1])
    buffers = draw_buffers(groups, 3, "dedup", DRAWS, np.random.default_rng(0))
    of_first = Counter((buffers == 0).sum(axis=1).tolist())
    law: Counter[int] = Counter()
    for held, chance in subset_law(alone.shares, 3).items():
        law[sum(i < 2 for i in held)] += chance  # type: ignore[assignment]
    for many, chance in law.items():
        assert of_first[many] / DRAWS == pytest.approx(chance, abs=4 * np.sqrt(chance / DRAWS))


@pytest.mark.parametrize("rate", [1.0, 1e6, 1e20, 1e-20])
def test_a_full_house(rate: float) -> None:
    buffers = draw_buffers(together([rate, 1], [1, 1], [3, 2]), 5, "dedup", 50, _rng())
    assert np.sort(buffers, axis=1).tolist() == [[0, 0, 0, 1, 1]] * 50


def test_quick_clients_are_always_in() -> None:
    buffers = draw_buffers(together([1e20, 1], [1, 1], [3, 20]), 5, "dedup", 50, _rng())
    assert np.sort(buffers, axis=1).tolist() == [[0, 0, 0, 1, 1]] * 50


def test_a_buffer_without_slots() -> None:
    assert draw_buffers(one_by_one(RATES), 0, "dedup", 3, _rng()).shape == (3, 0)
    assert draw_buffers(one_by_one(RATES), 0, "window", 3, _rng()).shape == (3, 0)


@CALM
@given(st.lists(st.floats(-12, 12), min_size=1, max_size=12), st.data())
def test_never_a_client_twice_and_present_as_often_as_it_should(
    logs: list[float], data: st.DataObject
) -> None:
    groups = one_by_one(np.exp(logs))
    size = data.draw(st.integers(1, len(logs)))
    buffers = draw_buffers(groups, size, "dedup", 2000, _rng())
    assert all(len(set(row)) == size for row in buffers.tolist())
    share = np.bincount(buffers.ravel(), minlength=len(logs)) / 2000
    chance = presence(groups.shares, size, "dedup")
    error = np.sqrt(chance * (1 - chance) / 2000) + 1 / 2000
    assert (np.abs(share - chance) < 5 * error).all()


def test_the_same_generator_draws_the_same() -> None:
    once, again = (draw_buffers(one_by_one(RATES), 3, "dedup", 9, _rng()) for _ in range(2))
    assert once.tolist() == again.tolist()


def _rng() -> np.random.Generator:
    return np.random.default_rng(7)
