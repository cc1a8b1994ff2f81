from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedraw.core.types import Floats
from fedraw.errors import BadInput
from fedraw.experiment.spec import Spec
from fedraw.simulation.speeds import Speeds, mean_seconds

RARE = [1, 3]


def drawn(kind: Speeds, clients: int = 2000, ratio: float = 2.0) -> Floats:
    rare = RARE if kind in ("equal", "uniform") else range(0, clients, 2)
    return mean_seconds(kind, clients, rare, np.random.default_rng(5), ratio)


def test_equal_speeds_are_one_second() -> None:
    assert drawn("equal").tolist() == [1] * 2000


def test_uniform_speeds_fill_half_to_one_and_a_half() -> None:
    seconds = drawn("uniform")
    assert 0.5 <= seconds.min() < 0.51
    assert 1.49 < seconds.max() <= 1.5
    assert seconds.mean() == pytest.approx(1, abs=0.03)


def test_correlated_speeds_slow_the_rare_down() -> None:
    seconds = drawn("correlated")
    rare, common = seconds[::2], seconds[1::2]
    assert 1.5 <= rare.min() < 1.52
    assert 2.98 < rare.max() <= 3
    assert 0.5 <= common.min() <= common.max() <= 1.5


def test_a_ratio_slows_the_rare_down_that_many_times() -> None:
    plain, slowed = drawn("uniform"), drawn("ratio", ratio=10)
    assert slowed[::2] == pytest.approx(10 * plain[::2])
    assert slowed[1::2].tolist() == plain[1::2].tolist()


def test_stragglers_are_so_many_clients_drawn_at_random() -> None:
    usual = mean_seconds("uniform", 30, [], np.random.default_rng(3))
    slow = mean_seconds("stragglers", 30, [], np.random.default_rng(3), 10.0, stragglers=6)
    assert np.sort(slow / usual).round(9).tolist() == [1.0] * 24 + [10.0] * 6
    other = mean_seconds("stragglers", 30, [], np.random.default_rng(4), 10.0, stragglers=6)
    assert set(np.argsort(other)[-6:]) != set(np.argsort(slow)[-6:])
    with pytest.raises(BadInput, match="stragglers = 31, but there are 30 clients"):
        mean_seconds("stragglers", 30, [], np.random.default_rng(3), 10.0, stragglers=31)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (
            {"kind": "stragglers", "ratio": 10},
            "stragglers is missing; kind = 'stragglers' needs it",
        ),
        ({"kind": "stragglers", "ratio": 10, "stragglers": 0}, "stragglers = 0 must be at least 1"),
        ({"kind": "ratio", "ratio": 10, "stragglers": 3}, "goes with kind = 'stragglers'"),
    ],
)
def test_impossible_stragglers_are_refused(table: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        Spec.from_dict({"speeds": table})


def test_two_kinds_of_one_seed_differ_only_where_they_mean_to() -> None:
    assert drawn("correlated")[1::2].tolist() == drawn("uniform")[1::2].tolist()


@pytest.mark.parametrize("kind", ["correlated", "ratio"])
def test_nobody_to_slow_down_is_an_error(kind: Speeds) -> None:
    with pytest.raises(BadInput, match=rf"speeds\.kind = '{kind}' slows clients with rare labels"):
        mean_seconds(kind, 3, [], np.random.default_rng(0))
