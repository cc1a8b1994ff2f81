from __future__ import annotations

import numpy as np
import pytest

from fedraw.core.intervals import poisson_interval, student_quantile, student_quantiles


@pytest.mark.parametrize(
    ("events", "low", "high"),
    [  # half the chi-square quantiles of 2n and 2n + 2 degrees of freedom
        (1, 0.0253178, 5.5716434),
        (2, 0.2422093, 7.2246877),
        (5, 1.6234864, 11.6683321),
        (10, 4.7953887, 18.3903560),
        (59, 44.9134, 76.1058),
        (60, 45.7858, 77.2317),
        (100, 81.3639, 121.6270),
        (1000, 938.973, 1063.944),
    ],
)
def test_poisson_intervals_of_tables(events: int, low: float, high: float) -> None:
    below, above = poisson_interval(np.array([events]))
    assert below[0] == pytest.approx(low, rel=1e-4)
    assert above[0] == pytest.approx(high, rel=1e-4)
    if events < 60:
        assert below[0] == pytest.approx(low, rel=3e-6)
        assert above[0] == pytest.approx(high, rel=3e-6)


def test_every_interval_against_the_definition() -> None:
    scipy_stats = pytest.importorskip("scipy.stats")
    events = np.unique(np.geomspace(1, 1e7, 400).astype(np.int64))
    low, high = poisson_interval(events)
    np.testing.assert_allclose(low, scipy_stats.gamma.ppf(0.025, events), rtol=6e-5)
    np.testing.assert_allclose(high, scipy_stats.gamma.ppf(0.975, events + 1), rtol=6e-5)


def test_no_event_leaves_the_rule_of_three() -> None:
    low, high = poisson_interval(np.array([0, 3, 0]))
    assert (low[0], high[0]) == (0, pytest.approx(-np.log(0.05)))
    assert (low[2], high[2]) == (low[0], high[0])


def test_a_quantile_below_one() -> None:
    assert student_quantile(4, 0.5) == pytest.approx(0.7407, abs=1e-4)


def test_student_quantiles_of_tables() -> None:
    freedom = np.array([1, 2, 3, 4, 5, 9, 10, 11, 20, 60, 10**6])
    table = [
        12.7062,
        4.3027,
        3.1824,
        2.7764,
        2.5706,
        2.2622,
        2.2281,
        2.2010,
        2.0860,
        2.0003,
        1.9600,
    ]
    np.testing.assert_allclose(student_quantiles(freedom), table, atol=6e-5)
