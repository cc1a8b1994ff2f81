from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedraw.core.aggregation import BLOCK, RunningSum, SpareMemory
from fedraw.core.buffer import SlidingWindow, Slot
from fedraw.core.labels import LabelTable
from fedraw.core.types import Vector
from fedraw.core.update import Update
from fedraw.core.weighting import Cap
from fedraw.strategies.fedraw import FedRAW, FedRAWState
from fedraw.strategies.protocol import Arrived, Setup


def vector(*values: float) -> Vector:
    return np.array(values, np.float32)


def test_terms_are_added_and_taken_off_again() -> None:
    total = RunningSum.zeros(2)
    total.add([(2.0, vector(1, 2)), (0.5, vector(4, 0))])
    assert total.total.tolist() == [4, 4]
    total.add([(-2.0, vector(1, 2))])
    assert total.total.tolist() == [2, 0]


def test_a_mean_is_a_new_model_each_time() -> None:
    total = RunningSum.zeros(1)
    first = total.add([(1.0, vector(3))], divisor=2)
    second = total.add([(1.0, vector(3))], divisor=2)
    assert (first.tolist(), second.tolist()) == ([1.5], [3.0])
    assert first.dtype == np.float32


def test_a_cleared_sum_is_zero_and_an_empty_one_too() -> None:
    total = RunningSum.zeros(2)
    total.add([(1.0, vector(1, 2))])
    total.clear()
    assert total.total.tolist() == [0, 0]
    assert RunningSum.zeros(0).add([], divisor=3).size == 0


@pytest.mark.parametrize("size", [1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 7])
def test_a_model_larger_than_a_block_is_summed_to_its_end(size: int) -> None:
    rng = np.random.default_rng(size)
    models = rng.normal(size=(3, size)).astype(np.float32)
    weights = [0.5, 1.25, 0.25]
    total = RunningSum.zeros(size)
    mean = total.add(list(zip(weights, models, strict=True)), divisor=2.0)
    a, b, c = models.astype(np.float64)
    expected = 0.5 * a + 1.25 * b + 0.25 * c
    assert np.array_equal(total.total, expected)
    assert np.array_equal(mean, (expected / 2).astype(np.float32))


@given(st.lists(st.tuples(st.floats(-4, 4), st.floats(-100, 100, width=32)), max_size=20))
def test_terms_one_by_one_are_terms_at_once(terms: list[tuple[float, float]]) -> None:
    single, at_once = RunningSum.zeros(1), RunningSum.zeros(1)
    for a, value in terms:
        single.add([(a, vector(value))])
    at_once.add([(a, vector(value)) for a, value in terms])
    assert single.total.tolist() == at_once.total.tolist()


def slot(value: float, coefficient: float = 1.0, size: int = 1) -> Slot:
    return Slot(Update(0, 0, np.full(size, value, np.float32), examples=1), coefficient)


def mean_of_window(values: list[float], capacity: int, size: int = 1) -> list[Vector]:
    """The running mean over a window, from its first time full on; version 0 sums anew."""
    window, total, means = SlidingWindow(capacity), RunningSum.zeros(size), list[Vector]()
    for value in values:
        new = slot(value, size=size)
        left = window.add(new)
        changes = [(1.0, new.update.vector)]
        changes += [] if left is None else [(-1.0, left.update.vector)]
        if len(window.slots) < capacity:
            total.add(changes)
        else:
            means.append(total.mean(changes, window.slots, len(means)))
    return means


@pytest.mark.parametrize("size", [1, BLOCK + 1])
def test_a_huge_term_leaves_no_error_behind(size: int) -> None:
    # The window of two holds 1e15 at two aggregations, and nothing of it at the third.
    means = mean_of_window([0.1, 0.3, 1e15, 0.7, 0.9], 2, size)
    for mean, expected in zip(means[-2:], [5e14, 0.8], strict=True):
        assert mean == pytest.approx(expected, rel=1e-6)


def test_neither_does_a_series_of_ever_smaller_ones() -> None:
    # Each is 100,000 times its successor, so that none dwarfs what is left when it leaves.
    values = [1.1 * 10.0**power for power in range(30, -1, -5)]
    means = mean_of_window([*values, 1.1, 1.1, 1.1], 3)
    assert means[-1] == pytest.approx([1.1], rel=1e-6)


@given(
    st.lists(st.tuples(st.floats(-12, 12), st.sampled_from([-1, 1])), min_size=1, max_size=30),
    st.integers(1, 4),
)
def test_a_running_mean_is_the_direct_one_whatever_has_left(
    drawn: list[tuple[float, int]], capacity: int
) -> None:
    values = [sign * 10.0**power for power, sign in drawn]
    means = mean_of_window(values, capacity)
    for i, mean in enumerate(means):
        held = np.array(values[i : i + capacity], np.float32).astype(np.float64)
        # Terms of both signs may cancel: then the largest of them sets what float64 can tell.
        slack = 1e-14 * np.abs(held).max()
        assert mean == pytest.approx([held.mean()], rel=1e-6, abs=slack)


@pytest.mark.parametrize(("times", "is_exact"), [(1.3, True), (0.7, False)])
def test_a_term_dwarfs_the_sum_from_a_million_times_its_size_on(
    times: float, is_exact: bool
) -> None:
    large, small = (1 / 3, vector(times * 2**20)), (1 / 3, vector(1.0))
    total = RunningSum.zeros(1)
    total.correct([large, small], [large, small])
    total.correct([(-1 / 3, large[1])], [small])
    assert bool(total.total[0] == 1 / 3) == is_exact


def test_ordinary_terms_are_never_summed_anew() -> None:
    """Committed results rest on the order of the additions."""
    total = RunningSum.zeros(1)
    total.mean([(1.0, vector(0.25)), (1.0, vector(0.5))], [slot(0.25), slot(0.5)], version=0)
    total.total += 1.0  # would be gone if the slots were summed anew
    changes = [(1.0, vector(1e-3)), (-1.0, vector(0.25))]
    assert total.mean(changes, [slot(0.5), slot(1e-3)], version=1) == pytest.approx([1.501 / 2])


@pytest.mark.parametrize(("version", "expected"), [(63, 1.625), (64, 0.625), (65, 1.625)])
def test_the_sum_is_recomputed_every_32_turns_of_the_buffer(version: int, expected: float) -> None:
    total = RunningSum(np.array([2.75]))  # 0.25 + 0.5, and an error of 2
    changes = [(1.0, vector(0.75)), (-1.0, vector(0.25))]
    assert total.mean(changes, [slot(0.5), slot(0.75)], version).tolist() == [expected]


def buffered(state: FedRAWState) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Coefficients and models of the slots."""
    slots = list(state.buffer.slots)
    return (
        np.array([slot.coefficient for slot in slots]),
        np.array([slot.update.vector for slot in slots], np.float64),
    )


@pytest.mark.parametrize(
    ("cap", "cap_at", "arrivals"), [("none", 1.0, 100_000), ("water-filling", 0.3, 20_000)]
)
def test_after_very_many_arrivals_the_sum_is_still_the_direct_one(
    cap: Cap, cap_at: float, arrivals: int
) -> None:
    size, clients = 50, 25
    rng = np.random.default_rng(3)
    counts = {i: {"common": 100, f"label {i // 2}": 1 + i * i} for i in range(clients)}
    strategy = FedRAW(buffer=10, cap=cap, cap_at=cap_at)
    state, _ = strategy.start(Setup(np.zeros(size, np.float32), LabelTable.from_counts(counts)))
    senders = rng.integers(clients, size=arrivals).tolist()
    models = rng.normal(1, 1, size=(997, size)).astype(np.float32)
    for turn, client in enumerate(senders):
        update = Update(client, state.version, models[turn % len(models)], examples=1)
        state, _ = strategy.step(state, Arrived(update))
    coefficients, held = buffered(state)
    direct = coefficients @ held
    error = np.abs(state.weighted_sum.total - direct).max() / np.abs(direct).max()
    assert error < 1e-6
    assert state.model == pytest.approx(direct / coefficients.sum(), rel=1e-5, abs=1e-6)


def test_memory_of_models_that_nobody_uses_is_used_again_and_no_other() -> None:
    size = SpareMemory.SMALLEST
    total, one = RunningSum.zeros(size), np.ones(size, np.float32)
    held = total.add([(1.0, one)], divisor=1.0)
    view = total.add([(1.0, one)], divisor=1.0)[5:9].reshape(2, 2)  # of a model that is gone
    foreign: Any = total.add([(1.0, one)], divisor=1.0)
    tensor = memoryview(foreign)
    del foreign
    address = total.add([(1.0, one)], divisor=1.0).ctypes.data
    later = [total.add([(1.0, one)], divisor=1.0) for _ in range(4)]
    assert [model[0] for model in later] == [5, 6, 7, 8]
    assert address in [model.ctypes.data for model in later], "the memory of the fourth came back"
    assert held.tolist() == [1] * size and view.tolist() == [[2, 2], [2, 2]]
    assert set(tensor.tolist()) == {3}
