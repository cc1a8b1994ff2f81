from __future__ import annotations

from dataclasses import replace

import pytest
from tests.eventlog import logs
from tests.eventlog.logs import record

from fedraw.eventlog.records import Record
from fedraw.eventlog.state import RunState

BEGIN = record("start", rare_labels=["owl"])


def clients(rare: set[int], others: set[int]) -> list[Record]:
    """A start record, and clients with and without a rare label."""
    kinds = {**dict.fromkeys(rare, "owl"), **dict.fromkeys(others, "cat")}
    return [BEGIN, *(record("joined", client=c, counts={label: 1}) for c, label in kinds.items())]


def arrival(
    client: int, stale: int, buffer: list[int] | None = None, weights: list[float] | None = None
) -> Record:
    return logs.arrival(
        client=client,
        staleness_events=stale,
        aggregated=buffer is not None,
        buffer=buffer or [],
        weights=weights or [],
    )


def participation(records: list[Record], attacker: int | None = None) -> dict[str, float | None]:
    first, *others = records
    return RunState.of([replace(first, attacker=attacker), *others]).participation()  # type: ignore[arg-type]


def test_presence_participation_and_staleness_by_hand() -> None:
    arrivals = [
        arrival(0, 4),  # the buffer is not full yet
        arrival(1, 1, [0, 1], [0.75, 0.25]),
        arrival(2, 3, [1, 2], [0.5, 0.5]),
        arrival(0, 8, [2, 0], [0.25, 0.75]),
    ]
    metrics = participation([*clients({0}, {1, 2}), *arrivals])
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
    records = [*clients({0, 1}, {2}), arrival(0, 1, [0, 2], [0.5, 0.5])]
    assert participation(records, attacker=2)["RareHoldsMax"] == 0
    assert participation(records, attacker=2)["AttackerHoldsMax"] == 0
    records.append(arrival(0, 1, [0, 1], [0.5, 0.5]))
    assert participation(records, attacker=2)["RareHoldsMax"] == 50


def test_the_attackers_weight_is_measured_while_it_is_in_the_buffer() -> None:
    arrivals = [
        arrival(3, 1, [3, 1], [0.6, 0.4]),
        arrival(1, 1, [1, 1], [0.5, 0.5]),
        arrival(3, 1, [3, 3], [0.5, 0.5]),
    ]
    metrics = participation([*clients({0}, {1, 3}), *arrivals], attacker=3)
    assert metrics["AttackerWeightMin"] == 0.6
    assert metrics["AttackerWeightMean"] == pytest.approx(0.8)
    assert metrics["AttackerWeightMax"] == 1.0
    assert metrics["AttackerHoldsMax"] == pytest.approx(200 / 3)


def test_without_rare_clients_or_arrivals_everything_is_undefined() -> None:
    nobody = participation([*clients(set(), {0}), arrival(0, 1, [0], [1.0])])
    assert (nobody["BufPres"], nobody["RarePart"]) == (None, None)
    silent = participation(clients({0}, set()))
    assert (silent["BufPres"], silent["Rho"], silent["RareMeanStale"]) == (None, None, None)


def test_a_client_counts_as_rare_only_while_it_is_rare() -> None:
    def declared(label: str) -> Record:
        return record("declared", client=0, counts={label: 1})

    records = [*clients(set(), {0}), arrival(0, 7, [0], [1.0])]
    assert participation(records)["BufPres"] is None
    records += [declared("owl"), arrival(0, 3, [0], [1.0])]
    metrics = participation([*records, declared("cat"), arrival(0, 9, [0], [1.0])])
    assert metrics["BufPres"] == metrics["RarePart"] == pytest.approx(100 / 3)
    assert metrics["RareMaxStale"] == 3
