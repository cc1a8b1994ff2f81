"""Means that are far from those of other holders are named, whatever the order of messages."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedraw.core.sums import SumsShape
from fedraw.core.sums_outliers import far_means
from fedraw.core.types import Floats

SHAPE = SumsShape(labels=2, features=3)


def messages(holders: int, moved: float, count: int = 50) -> dict[Any, Floats]:
    """Clients with label 0, of which the last has a mean that is moved in every feature."""
    found: dict[Any, Floats] = {}
    for i in range(holders):
        features = np.random.default_rng(i).normal(size=(count, 3))
        features += moved if i == holders - 1 else 0.0
        found[f"site-{i}"] = SHAPE.of_samples(features, np.zeros(count, np.int64))
    return found


def total(own: dict[Any, Floats]) -> Floats:
    return np.asarray(sum(own.values()))


def test_a_far_mean_is_named_with_its_distance() -> None:
    own = messages(6, moved=4.0)
    (found,) = far_means(SHAPE, own, total(own))
    assert (found.client, found.label, found.others) == ("site-5", 0, 5)
    assert found.distance == pytest.approx(4.0, abs=0.3)


def test_the_order_does_not_matter() -> None:
    own = messages(6, moved=4.0)
    turned = dict(reversed(own.items()))
    assert far_means(SHAPE, own, total(own)) == far_means(SHAPE, turned, total(turned))


@pytest.mark.parametrize(
    ("holders", "moved", "count", "named"),
    [
        (6, 0.0, 50, False),  # honest
        (6, 0.7, 50, False),  # sites may differ
        (6, 1.6, 50, True),
        (4, 4.0, 50, True),
        (3, 4.0, 50, False),  # two others are too few
        (1, 4.0, 50, False),
        (6, 1.6, 1, False),  # one sample can be that far by chance
    ],
)
def test_who_is_named(holders: int, moved: float, count: int, named: bool) -> None:
    own = messages(holders, moved, count)
    found = [one.client for one in far_means(SHAPE, own, total(own))]
    assert (f"site-{holders - 1}" in found) is named


def test_constant_features_are_not_compared() -> None:
    own = {i: SHAPE.of_samples(np.ones((4, 3)), np.zeros(4, np.int64)) for i in range(5)}
    assert far_means(SHAPE, own, total(own)) == []  # type: ignore[arg-type]
