from __future__ import annotations

import pytest
from tests.eventlog import logs

from fedraw.eventlog.dynamics import Dynamics
from fedraw.eventlog.records import ArrivalRecord


def arrival(
    client: int, stale: int, buffer: list[int] | None = None, weights: list[float] | None = None
) -> ArrivalRecord:
    return logs.arrival(
        client=client,
        staleness_events=stale,
        aggregated=buffer is not None,
        buffer=buffer or [],
        weights=weights or [],
    )


def test_presence_participation_and_staleness_by_hand() -> None:
    dynamics = Dynamics(rare={0})
    dynamics.observe(arrival(0, 4))  # the buffer is not full yet
    dynamics.observe(arrival(1, 1, [0, 1], [0.75, 0.25]))
    dynamics.observe(arrival(2, 3, [1, 2], [0.5, 0.5]))
    dynamics.observe(arrival(0, 8, [2, 0], [0.25, 0.75]))
    metrics = dynamics.metrics()
    assert metrics["BufPres"] == pytest.approx(200 / 3)
    assert metrics["RarePart"] == 50
    assert metrics["RareMeanStale"] == 6
    assert metrics["RareMaxStale"] == 8
    assert metrics["RareHoldsMax"] == pytest.approx(200 / 3)
    assert metrics["Rho"] == pytest.approx(2 * (0.75**2 + 0.25**2))
    assert metrics["RhoMean"] == pytest.approx((1.25 + 1 + 1.25) / 3)
    assert metrics["Aggregations"] == 3
    assert metrics["AttackerHoldsMax"] is None


def test_uniform_weights_have_no_maximum() -> None:
    dynamics = Dynamics(rare={0, 1}, attacker=2)
    dynamics.observe(arrival(0, 1, [0, 2], [0.5, 0.5]))
    assert dynamics.metrics()["RareHoldsMax"] == 0
    assert dynamics.metrics()["AttackerHoldsMax"] == 0
    dynamics.observe(arrival(0, 1, [0, 1], [0.5, 0.5]))
    assert dynamics.metrics()["RareHoldsMax"] == 50


def test_the_attackers_weight_is_measured_while_it_is_in_the_buffer() -> None:
    dynamics = Dynamics(rare={0}, attacker=3)
    dynamics.observe(arrival(3, 1, [3, 1], [0.6, 0.4]))
    dynamics.observe(arrival(1, 1, [1, 1], [0.5, 0.5]))
    dynamics.observe(arrival(3, 1, [3, 3], [0.5, 0.5]))
    metrics = dynamics.metrics()
    assert metrics["AttackerWeightMin"] == 0.6
    assert metrics["AttackerWeightMean"] == pytest.approx(0.8)
    assert metrics["AttackerWeightMax"] == 1.0
    assert metrics["AttackerHoldsMax"] == pytest.approx(200 / 3)


def test_without_rare_clients_or_arrivals_everything_is_undefined() -> None:
    nobody = Dynamics(rare=set())
    nobody.observe(arrival(0, 1, [0], [1.0]))
    assert nobody.metrics()["BufPres"] is None
    assert nobody.metrics()["RarePart"] is None
    silent = Dynamics(rare={0}).metrics()
    assert silent["BufPres"] is None
    assert silent["Rho"] is None
    assert silent["RareMeanStale"] is None


def test_a_client_counts_as_rare_only_while_it_is_rare() -> None:
    dynamics = Dynamics()
    dynamics.observe(arrival(0, 7, [0], [1.0]))
    assert dynamics.metrics()["BufPres"] is None
    dynamics.count_as(0, True)
    dynamics.observe(arrival(0, 3, [0], [1.0]))
    dynamics.count_as(0, False)
    dynamics.observe(arrival(0, 9, [0], [1.0]))
    metrics = dynamics.metrics()
    assert metrics["BufPres"] == metrics["RarePart"] == pytest.approx(100 / 3)
    assert metrics["RareMaxStale"] == 3
