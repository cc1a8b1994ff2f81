"""Clients come, go and report anew at any time, under every method."""

from __future__ import annotations

from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.strategies.server import COUNTS, METHODS, Server, bits, sent

from fedraw.core.types import ClientId, Vector
from fedraw.core.update import Update
from fedraw.errors import BadInput, RefusedUpdate
from fedraw.storage import snapshot
from fedraw.strategies.protocol import Arrived, Declared, Joined, Left, Strategy
from fedraw.strategies.rounds import Round
from fedraw.strategies.statistics import AverageStatisticsState

every_method = pytest.mark.parametrize("strategy", METHODS.values(), ids=METHODS.keys())
in_rounds = {
    "fedavg",
    "fedavg uniform",
    "fedavg trim",
    "qfedavg q=0",
    "qfedavg",
    "qfedavg statistics",
}
asynchronous = {name: s for name, s in METHODS.items() if name not in in_rounds}
at_once = pytest.mark.parametrize("strategy", asynchronous.values(), ids=asynchronous.keys())


@at_once
def test_a_newcomer_is_handed_the_model_at_once(strategy: Strategy[Any]) -> None:
    server = Server(strategy)
    assert list(server.happen(Joined("new", {"own": 1}))) == ["new"]
    server.arrive("new")
    assert "new" in server.state.contents.clients


@at_once
def test_a_sender_is_handed_the_model_at_once(strategy: Strategy[Any]) -> None:
    server = Server(strategy)
    for _ in range(12):
        assert server.arrive_any().client in server.in_flight
        assert len(server.in_flight) == 6


@every_method
def test_reporting_new_labels_moves_no_model(strategy: Strategy[Any]) -> None:
    server = Server(strategy)
    server.run(9)
    model = server.state.model
    assert list(server.happen(Declared(1, {"new label": 3}))) == []
    assert server.state.model is model
    server.run(20)


@every_method
def test_what_a_leaver_had_in_flight_is_refused(strategy: Strategy[Any]) -> None:
    server = Server(strategy)
    server.run(9)
    server.happen(Left(2))
    before = bits(server.state)
    with pytest.raises(RefusedUpdate, match="client 2 is unknown; it has to join first"):
        server.happen(sent(2, 0, 0, 0, 0, 0, version=server.state.version, loss=1.0))
    assert bits(server.state) == before


NONSENSE: list[tuple[Left | Declared | Joined, str]] = [
    (Left("nobody"), "client 'nobody' is not a member"),
    (Declared("nobody", {"x": 1}), "client 'nobody' is not a member"),
    (Joined(3, {"x": 1}), "client 3 is a member already"),
    (Joined("new", {"x": -1}), "client 'new', label 'x': count -1 is negative"),
    (Declared(3, {}), "client 3 reports no labels"),
]


@every_method
def test_a_change_that_makes_no_sense_changes_nothing(strategy: Strategy[Any]) -> None:
    server = Server(strategy)
    server.run(9)
    before = bits(server.state)
    for event, words in NONSENSE:
        with pytest.raises(BadInput, match=words):
            server.happen(event)
        assert bits(server.state) == before, event


class Crowd(Server):
    """A server whose members change; it refuses what comes from those who are gone."""

    def change(self, kind: str, client: ClientId, label: int) -> None:
        member = client in self.state.federation
        if kind == "arrive":
            if self.in_flight:
                self.arrive_any()
        elif not member:
            self.happen(Joined(client, {label: 2, "x": 1}))
        elif kind == "declare":
            self.happen(Declared(client, {label: 3}))
        else:
            self.happen(Left(client))
            self._late_update(client)

    def _late_update(self, client: ClientId) -> None:
        version, model = self.in_flight.pop(client, (self.state.version, self.state.model))
        before = bits(self.state)
        with pytest.raises(RefusedUpdate, match=f"client {client} is unknown"):
            self.happen(sent(client, *model, version=version, loss=1.0))
        assert bits(self.state) == before

    def check(self) -> None:
        assert np.isfinite(self.state.model).all()
        weights = self.state.contents.weights
        assert sum(weights) == pytest.approx(1 if len(weights) else 0)
        own: Any = self.state
        if isinstance(own, AverageStatisticsState):
            own = own.inner
        awaited = getattr(own, "round", None)
        members = set(self.state.federation)
        if isinstance(awaited, Round):  # whoever is waited for is training
            assert set(awaited.awaited) == set(self.in_flight) <= members
            assert bool(awaited.awaited) == bool(members)
        else:
            assert set(self.in_flight) == members


changes = st.lists(
    st.tuples(
        st.sampled_from(["arrive", "arrive", "arrive", "change", "declare"]),
        st.integers(0, 8),
        st.integers(0, 3),
    ),
    max_size=40,
)


@every_method
@settings(max_examples=25, deadline=None)
@given(events=changes, seed=st.integers(0, 99))
def test_members_may_change_at_any_time(
    strategy: Strategy[Any], events: list[tuple[str, int, int]], seed: int
) -> None:
    crowd = Crowd(strategy, seed=seed)
    for kind, client, label in events:
        crowd.change(kind, client, label)
        crowd.check()
    for client in range(9):  # those who left come back, and the federation goes on
        if client not in crowd.state.federation:
            crowd.happen(Joined(client, {"x": 1}))
    version = crowd.state.version
    for _ in range(80):
        crowd.arrive_any()
        crowd.check()
    assert crowd.state.version > version + 5
    assert all(np.array_equal(passed, copy) for passed, copy in crowd.passed)


@every_method
def test_a_federation_may_empty_and_fill_again(strategy: Strategy[Any]) -> None:
    crowd = Crowd(strategy)
    crowd.run(10)
    for client in range(6):
        crowd.change("change", client, 0)
        crowd.check()
    for client in range(10, 16):
        crowd.change("change", client, 1)
        crowd.check()
    version = crowd.state.version
    crowd.run(100)
    assert crowd.state.version > version + 5


@at_once
def test_a_buffered_update_outlives_its_client(strategy: Strategy[Any]) -> None:
    server = Server(strategy)
    server.arrive(0)
    server.happen(Left(0))
    assert list(server.state.contents.clients) == [0]
    for client in (1, 2, 3):
        server.arrive(client)
    assert server.state.version > 0


class Shrinking(Server):
    """A server that has heard all six clients; then all but the first few leave."""

    def __init__(self, strategy: Strategy[Any]) -> None:
        super().__init__(strategy)
        for client in list(COUNTS) * 2:
            self.arrive(client)

    def shrink(self, remaining: int) -> None:
        for client in list(COUNTS)[remaining:]:
            self.happen(Left(client))
            self.in_flight.pop(client, None)

    def arrive_with(self, client: ClientId, value: float) -> None:
        """The client sends a model of this value everywhere, or that difference and statistics."""
        version, start = self.in_flight.pop(client)
        vector: Vector = np.full(start.size, value, np.float32)
        self.happen(Arrived(Update(client, version, vector, 10, 1.0)))

    def turns(self, count: int, value: float) -> None:
        """Each member sends the value so many times, one after the other."""
        for _ in range(count):
            for client in list(self.state.federation):
                self.arrive_with(client, value)


few = pytest.mark.parametrize("remaining", [3, 1])


@every_method
@few
def test_the_model_keeps_learning_with_fewer_members_than_places(
    strategy: Strategy[Any], remaining: int
) -> None:
    """A buffer of four, and members that take turns: every eight arrivals change the model."""
    server = Shrinking(strategy)
    server.shrink(remaining)
    members = cycle(list(server.state.federation))
    for _ in range(10):
        before, model = server.state.version, server.state.model
        for client in islice(members, 8):
            server.arrive(client)
        assert server.state.version > before
        assert not np.array_equal(server.state.model, model)


@every_method
@few
def test_so_it_does_if_they_leave_before_the_first_aggregation(
    strategy: Strategy[Any], remaining: int
) -> None:
    server = Server(strategy)
    server.arrive(4)
    for client in list(COUNTS)[remaining:]:
        server.happen(Left(client))
        server.in_flight.pop(client, None)
    server.run(8)
    assert server.state.version > 0


sends_models = {
    name: s
    for name, s in METHODS.items()
    if s.needs.sends == "model"
    and name not in ("qfedavg", "qfedavg statistics")  # q above 0 shortens the step
}


@pytest.mark.parametrize("strategy", sends_models.values(), ids=sends_models.keys())
@few
def test_a_method_that_averages_models_forgets_who_left(
    strategy: Strategy[Any], remaining: int
) -> None:
    server = Shrinking(strategy)
    server.turns(2, 1000.0)
    server.shrink(remaining)
    server.turns(150, 2.0)
    assert server.state.model == pytest.approx([2.0] * 5, rel=1e-4)
    assert set(server.state.contents.clients) <= set(server.state.federation)


sends_differences = {n: s for n, s in METHODS.items() if s.needs.sends == "delta"}


@pytest.mark.parametrize("strategy", sends_differences.values(), ids=sends_differences.keys())
@few
def test_what_a_leaver_changed_stays_but_does_not_go_on_forever(
    strategy: Strategy[Any], remaining: int
) -> None:
    """Once the others change nothing any more, the model comes to rest."""
    server = Shrinking(strategy)
    server.turns(2, 1.0)
    server.shrink(remaining)
    server.turns(200, 0.0)
    model = server.state.model
    server.turns(40, 0.0)
    assert server.state.model == pytest.approx(model, rel=1e-4)
    assert np.abs(model).max() > 0.5


@every_method
@few
def test_a_countdown_goes_on_bit_for_bit_from_disk(
    strategy: Strategy[Any], remaining: int, tmp_path: Path
) -> None:
    through_disk, kept = Shrinking(strategy), Shrinking(strategy)
    for server in (through_disk, kept):
        server.shrink(remaining)
    for event in range(12):
        snapshot.save(through_disk.state, tmp_path / str(event))
        through_disk.state = snapshot.load(type(through_disk.state), tmp_path / str(event))
        through_disk.arrive_any()
        kept.arrive_any()
        assert bits(through_disk.state) == bits(kept.state)
