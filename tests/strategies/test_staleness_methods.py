"""FedStaleWeight and FADAS, which go by how stale the updates of a buffer are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.strategies.server import begun, fed, sent
from tests.strategies.streams import STREAM, steps

from fedraw.strategies.fadas import FADAS
from fedraw.strategies.fedbuff import FedBuff
from fedraw.strategies.fedstaleweight import WINDOW, FedStaleWeight
from fedraw.strategies.protocol import Event, Left

ABC = {client: {"x": 1} for client in "abc"}


@pytest.mark.parametrize(
    ("strategy", "models"),
    [
        (FedStaleWeight(2), [4.5, 5.5]),  # weights 1/3 and 2/3: a was 0 and 1 versions late, c 1
        (FedStaleWeight(2, offset=0.5), [4.5, 6.3]),
        (FADAS(2, server_lr=1, eps=0), [1, 2.3081]),
        (FADAS(2, server_lr=1, eps=0, corrected=True), [1, 1.9712]),
    ],
    ids=repr,
)
def test_the_stream_of_three_clients(strategy: Any, models: list[float]) -> None:
    assert steps(strategy, STREAM) == pytest.approx(models, abs=5e-5)


def late(strategy: Any, staleness: dict[str, int], values: Mapping[str, float]) -> float:
    """One step at version 20 with these arrivals, each so many versions late."""
    state = begun(strategy, ABC, 0)
    state.version = 20
    events = [sent(c, values[c], version=20 - staleness[c]) for c in staleness]
    return float(fed(strategy, state, events).model[0])


@given(st.integers(0, 9), st.lists(st.integers(-9, 9), min_size=3, max_size=3))
@settings(max_examples=30, deadline=None)
def test_clients_that_are_equally_stale_make_it_fedbuff(age: int, learned: list[int]) -> None:
    ages, values = dict.fromkeys("abc", age), dict(zip("abc", learned, strict=True))
    weighted, plain = late(FedStaleWeight(3), ages, values), late(FedBuff(3), ages, values)
    assert weighted == pytest.approx(plain, abs=1e-5)


@given(st.tuples(*[st.integers(0, 5)] * 3), st.integers(1, 4))
@settings(max_examples=50, deadline=None)
def test_weights_sum_to_one_and_do_not_depend_on_the_scale_of_staleness(
    ages: tuple[int, int, int], factor: int
) -> None:
    staleness = dict(zip("abc", ages, strict=True))
    values = {"a": 3.0, "b": -6.0, "c": 9.0}
    once = late(FedStaleWeight(3), staleness, values)
    scaled = {client: factor * age for client, age in staleness.items()}
    assert late(FedStaleWeight(3), scaled, values) == pytest.approx(once, rel=1e-5, abs=1e-5)
    assert late(FedStaleWeight(3), staleness, dict.fromkeys("abc", 5.0)) == pytest.approx(5)
    total = sum(ages)
    weights = [age / total if total else 1 / 3 for age in ages]
    expected = sum(w * values[c] for w, c in zip(weights, "abc", strict=True))
    assert once == pytest.approx(expected, rel=1e-5, abs=1e-5)


def test_only_the_last_five_values_count() -> None:
    strategy = FedStaleWeight(1)
    state = begun(strategy, ABC, 0)
    for _ in range(8):
        state = fed(strategy, state, [sent("a", 1, version=0)])
    assert state.staleness["a"] == [3, 4, 5, 6, 7]
    assert len(state.staleness["a"]) == WINDOW


def test_a_leaver_counts_with_the_staleness_of_its_last_update() -> None:
    strategy = FedStaleWeight(2)
    state = begun(strategy, ABC, 0)
    state.version = 4
    events: list[Event] = [sent("a", 8, version=1), Left("a"), sent("b", 0, version=3)]
    state = fed(strategy, state, events)
    assert (state.model.tolist(), list(state.staleness)) == ([6], ["b"])


# FADAS


@pytest.mark.parametrize("corrected", [False, True])
def test_the_first_step_is_the_sign_of_the_mean(corrected: bool) -> None:
    strategy = FADAS(2, server_lr=0.25, eps=0, corrected=corrected)
    state = begun(strategy, ABC, 0, 0, 0)
    state = fed(strategy, state, [sent("a", 4, -1e-3, 0), sent("b", 2, -1e-5, 0)])
    assert state.model == pytest.approx([0.25, -0.25, 0])


@pytest.mark.parametrize(("staleness", "rate"), [(1, 1), (2, 1 / 2), (5, 1 / 5)])
def test_the_most_stale_update_shortens_the_step(staleness: int, rate: float) -> None:
    strategy = FADAS(2, server_lr=1, eps=0)
    ages = {"a": 0, "b": staleness}
    assert late(strategy, ages, {"a": 1, "b": 1}) == pytest.approx(rate)
    later = FADAS(2, server_lr=1, eps=0, tau_c=5)
    assert late(later, ages, {"a": 1, "b": 1}) == pytest.approx(1)


def test_the_second_moment_never_shrinks() -> None:
    """After one large difference the steps of small ones stay small, as in AMSGrad."""
    strategy = FADAS(1, server_lr=1, beta1=0, beta2=0, eps=0, tau_c=9)
    assert np.diff([0, *steps(strategy, [("a", 10), ("b", 1), ("c", -2)])]) == pytest.approx(
        [1, 0.1, -0.2]
    )


def test_a_huge_difference_makes_no_number_infinite() -> None:
    strategy = FADAS(1)
    state = fed(strategy, begun(strategy, ABC, 0), [sent("a", 1e30), sent("b", 1)])
    assert np.isfinite(state.model).all()
