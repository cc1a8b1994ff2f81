from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.eventlog.federation_log import START, STORY
from tests.eventlog.logs import record

from fedraw.eventlog.records import Record
from fedraw.report.report_data import BINS, QUANTILES, RunHistory, spread_of


def history_of(
    arrivals: list[Record], clients: dict[str, dict[str, int]], **start: Any
) -> RunHistory:
    """Read the records as one log."""
    history = RunHistory()
    records = [record("start", rare_labels=["owl"], **start)]
    records += [record("joined", client=c, counts=n) for c, n in clients.items()]
    for known in [*records, *arrivals]:
        history.observe(known)
    return history


def arrival(event: int, client: str, buffer: list[str], weights: list[float]) -> Record:
    return record(
        "arrival",
        event=event,
        client=client,
        staleness_events=event,
        aggregated=bool(buffer),
        buffer=buffer,
        weights=weights,
    )


CLIENTS = {"a": {"owl": 1, "cat": 1}, "b": {"cat": 5}, "c": {"cat": 5}}


def test_the_weight_of_a_client_is_the_sum_of_its_slots() -> None:
    arrivals = [arrival(1, "b", ["b", "a", "b"], [0.3, 0.4, 0.3])]
    history = history_of(arrivals, CLIENTS, events=1)
    (point,) = history.points()
    assert point.largest == 60
    assert point.rare_weight == 40
    assert point.rare_clients == 1


def test_with_cached_updates_all_clients_have_the_same_weight() -> None:
    arrivals = [arrival(1, "b", ["b"], [1.0]), arrival(2, "a", ["a"], [1.0])]
    history = history_of(arrivals, CLIENTS, events=2, influence="cache")
    first, second = history.points()
    assert first.rare_weight == 0
    assert second.rare_weight == pytest.approx(100 / 3)
    assert first.largest == second.largest == pytest.approx(100 / 3)


def test_bins_without_an_aggregation_are_undefined() -> None:
    arrivals = [arrival(1, "a", [], []), arrival(2, "b", ["a", "b"], [0.5, 0.5])]
    history = history_of(arrivals, CLIENTS, events=2)
    assert history.points()[0][2:] == (None, None, None, None)
    assert history.points()[1].presence == 100


def test_without_rare_clients_only_the_largest_weight_is_defined() -> None:
    history = history_of([arrival(1, "b", ["b"], [1.0])], {"b": {"cat": 1}}, events=1)
    assert history.points()[0][2:] == (None, None, 100, None)


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=200), st.integers(1, 300))
def test_the_bins_agree_with_the_summary(order: list[str], wanted: int) -> None:
    arrivals = [
        arrival(
            event, client, order[max(0, event - 2) : event], [1.0] if event == 1 else [0.5, 0.5]
        )
        for event, client in enumerate(order, start=1)
    ]
    history = history_of(arrivals, CLIENTS, events=wanted)
    points = history.points()
    assert len(points) <= min(BINS, max(wanted, 1))
    width = max(1, wanted / BINS)
    counts = Counter(
        min(int((e - 1) / width), min(BINS, wanted) - 1) for e in range(1, len(order) + 1)
    )
    total = sum((points[n].presence or 0) * count for n, count in counts.items())
    presence = history.state.participation()["BufPres"]
    assert presence is not None
    assert abs(total / len(order) - presence) < 1e-6
    rare = sum(history.rare_staleness.values())
    assert rare == order.count("a")


@given(st.lists(st.lists(st.integers(0, 50)), max_size=3))
def test_a_spread_has_the_quantiles_of_the_sorted_values(seeds: list[list[int]]) -> None:
    spread = spread_of([Counter(values) for values in seeds])
    everything = sorted(value for values in seeds for value in values)
    if spread is None:
        assert not everything
        return
    assert spread.updates == len(everything)
    assert spread.values[-1] == everything[-1]
    for share, value in zip(QUANTILES, spread.values, strict=True):
        below = sum(other < value for other in everything)
        at_or_below = sum(other <= value for other in everything)
        assert below < share * len(everything) + 1e-6
        assert at_or_below >= share * len(everything) - 1e-6


def test_sites_may_join_and_leave() -> None:
    history = RunHistory()
    for known in [replace(START, events=5), *STORY[1:]]:
        history.observe(known)
    presence = [point.presence for point in history.points()]
    assert presence == [0, 100, 0, None, 0]  # the fourth was refused
    assert [point.rare_weight for point in history.points()] == [0, 75, 0, None, 0]
    assert history.samples == {"west": 4, "east": 2, "north": 2}
    assert not history.state.rare
    assert history.rare_staleness == {1: 1}
    assert history.common_staleness == {0: 1, 2: 1, 4: 1}


def test_a_cached_update_leaves_with_its_client() -> None:
    history = RunHistory()
    for known in [replace(START, events=5, influence="cache"), *STORY[1:]]:
        history.observe(known)
    largest = [point.largest for point in history.points()]
    # Members: west, east; and north; without east; without west, with east again.
    assert largest == pytest.approx([50, 100 / 3, 50, None, 50], nan_ok=True)
