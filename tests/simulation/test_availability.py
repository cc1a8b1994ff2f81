"""When clients are online, what becomes of trainings, and who is handed the model meanwhile."""

from __future__ import annotations

from copy import deepcopy
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.simulation.scenes import add_one, flat, steps

from fedraw.core.randomness import Streams
from fedraw.errors import BadInput
from fedraw.simulation.arrivals import Drawn, Fixed, poisson
from fedraw.simulation.availability import (
    Diurnal,
    OnlineProcess,
    RecordedAvailability,
    Renewal,
    online_shares,
    read_intervals,
)
from fedraw.simulation.executors import Inline
from fedraw.simulation.flights import LOST, WENT_OFFLINE, Flight, Flights, LossLaw
from fedraw.simulation.loop import HandOut, Lost, MembershipChanges, Simulation, Stalled
from fedraw.simulation.membership import Change, next_leave, random_changes, read_changes
from fedraw.strategies.fedavg import FedAvg
from fedraw.strategies.fedbuff import FedBuff
from fedraw.strategies.fedfa import FedFa
from fedraw.strategies.protocol import Joined, Left, Setup, Strategy

START = np.zeros(1, np.float32)


def recorded(*intervals: list[tuple[float, float]], repeat: bool = False) -> RecordedAvailability:
    clients = range(len(intervals))
    named = {str(c): own for c, own in zip(clients, intervals, strict=True)}
    return RecordedAvailability(clients, named, repeat=repeat)


def running(
    strategy: Strategy[Any], seconds: list[float], conditions: Flights, **hand_out: Any
) -> Simulation:
    setup = Setup(START, flat(len(seconds)))
    law = Fixed(np.array(seconds))
    return Simulation(
        strategy, setup, law, Inline(add_one), HandOut(**hand_out), conditions=conditions
    )


def length_online(process: OnlineProcess, client: int, until: float) -> float:
    """Seconds online; also checks that phases alternate and leave no gap."""
    time, total, before = 0.0, 0.0, None
    while time < until:
        online, end = process.phase(client, time)
        assert end > time
        assert online != before
        total += (min(end, until) - time) * online
        time, before = end, online
    return total


def test_a_trace_of_an_unknown_client_is_refused() -> None:
    with pytest.raises(BadInput, match=r"of 'd', which is no client of this federation"):
        RecordedAvailability(["a"], {"a": [(0.0, 1.0)], "d": [(0.0, 1.0)]}, repeat=False)


def test_clients_are_online_for_their_share_of_the_time() -> None:
    shares = np.array([0.1, 0.5, 0.9, 1.0])
    process = Renewal(shares, 2.0, Streams(3))
    found = [length_online(process, client, 20_000) / 20_000 for client in range(4)]
    assert found == pytest.approx(shares.tolist(), abs=0.03)


def test_a_process_starts_in_its_steady_state() -> None:
    process = Renewal(np.full(20_000, 0.3), 10.0, Streams(1))
    for time in (0.0, 1.0, 7.0):
        online = np.mean([process.phase(client, time).online for client in range(20_000)])
        assert online == pytest.approx(0.3, abs=0.015)  # four standard deviations


def test_who_is_online_does_not_depend_on_who_was_asked_before() -> None:
    asked, fresh = (Renewal(np.full(5, 0.4), 3.0, Streams(9)) for _ in range(2))
    for client in (0, 1, 2, 3, 4):
        for time in np.arange(0, 200, 0.7):
            asked.phase(client, time)
    assert fresh.phase(3, 199.9) == asked.phase(3, 199.9)


def test_a_day_has_one_stretch_online_in_each_time_zone() -> None:
    rng = np.random.default_rng(0)
    process = Diurnal(np.full(50, 0.25), 24.0, 4, rng)
    begins = set()
    for client in range(50):
        online, until = process.phase(client, 0.0)
        begins.add(0.0 if online else until)
        assert length_online(process, client, 240.0) == pytest.approx(60.0)
    assert begins == {0.0, 6.0, 12.0, 18.0}


def test_a_trace_repeats_or_ends() -> None:
    twice, once = (recorded([(1.0, 2.0), (4.0, 6.0)], repeat=again) for again in (True, False))
    phases = [(0.5, (False, 1)), (1.0, (True, 2)), (2.0, (False, 4)), (5.0, (True, 6))]
    for time, expected in phases:
        assert twice.phase(0, time) == once.phase(0, time) == expected
    assert twice.phase(0, 6.0) == (False, 7.0)
    assert twice.phase(0, 11.0) == (True, 12.0)
    assert once.phase(0, 6.0) == (False, inf)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.floats(0.01, 50), min_size=2, max_size=12),
    st.booleans(),
    st.lists(st.floats(0, 500), min_size=1, max_size=20),
)
def test_a_trace_says_what_its_rows_say(
    lengths: list[float], repeat: bool, times: list[float]
) -> None:
    bounds = np.cumsum(lengths)[: len(lengths) // 2 * 2].tolist()
    rows = list(zip(bounds[::2], bounds[1::2], strict=True))
    process = recorded(rows, repeat=repeat)
    for time in sorted(times):
        online, until = process.phase(0, time)
        assert until > time
        lap = time % rows[-1][1] if repeat else time
        margin = min(abs(lap - bound) for bound in [0, *bounds])
        if margin > 1e-6:  # rounding decides at the bounds themselves
            assert online == any(start <= lap < end for start, end in rows)


def test_shares_follow_labels_or_speed() -> None:
    seconds = np.array([1.0, 2.0, 4.0])
    assert online_shares(0.5, seconds, [2], 0.1, "labels").tolist() == [0.5, 0.5, 0.1]
    assert online_shares(0.5, seconds, tied_to="speed").tolist() == [1.0, 0.5, 0.25]
    with pytest.raises(BadInput, match="needs clients with rare labels, and there are none"):
        online_shares(0.5, seconds, [], 0.1, "labels")


def test_an_offline_client_pauses_or_loses_its_work() -> None:
    online = recorded([(0.0, 2.0), (5.0, 6.0), (9.0, 99.0)])
    pause, lose = Flights(online), Flights(online, "lose")
    assert pause.flight(0, 0, 1.0, 1.0) == Flight(2.0)
    assert pause.flight(0, 0, 1.0, 1.5) == Flight(5.5, paused=3.0)
    assert pause.flight(0, 0, 1.0, 4.0) == Flight(11.0, paused=6.0)
    assert pause.flight(0, 0, 98.0, 4.0).ends == inf
    assert lose.flight(0, 0, 1.0, 1.5) == Flight(2.0, WENT_OFFLINE)
    assert [pause.ready(0, time) for time in (1.0, 2.0, 99.0)] == [1.0, 5.0, inf]


def test_a_client_is_handed_the_model_when_it_is_back() -> None:
    # Client 0 trains from 0 to 1, is offline from 1.5 to 4, and goes on for half a second then.
    run = running(FedFa(1), [1.0], Flights(recorded([(0.0, 1.5), (4.0, 99.0)])))
    one, two, three = steps(run, 3)
    assert (one.time, one.paused) == (1.0, 0.0)
    assert (two.start_time, two.time, two.paused) == (1.0, 4.5, 2.5)
    assert (three.start_time, three.time) == (4.5, 5.5)


def test_lost_work_is_noted_and_begun_anew() -> None:
    run = running(FedFa(1), [1.0], Flights(recorded([(0.0, 1.5), (4.0, 99.0)]), "lose"))
    first, second = steps(run, 2)
    assert not first.happened
    assert second.happened == [(1.5, Lost(0, 1.0, WENT_OFFLINE))]
    assert (second.event, second.start_time, second.time) == (2, 4.0, 5.0)


def test_nobody_online_for_ever_ends_the_run_and_says_so() -> None:
    run = running(FedFa(1), [1.0, 1.0], Flights(recorded([(0.0, 2.5)], [(0.0, 1.5)])))
    assert [step.time for step in steps(run, 3)] == [1.0, 1.0, 2.0]
    with pytest.raises(Stalled, match=r"no client comes online again after 2 s"):
        run.step()


def test_too_short_a_time_online_ends_the_run_too() -> None:
    run = running(FedFa(1), [2.0], Flights(recorded([(0.0, 1.0)], repeat=True), "lose"))
    # The end of the trace is its beginning: the client is online all the time.
    assert run.step().time == 2.0
    never = Flights(recorded([(0.0, 1.0), (2.0, 3.0), (3.5, 4.0)], repeat=True), "lose")
    with pytest.raises(Stalled, match=r"10,001 trainings in a row came to nothing; .*offline"):
        running(FedFa(1), [2.0], never).step()


def test_with_few_at_once_only_those_online_are_drawn() -> None:
    # Even clients are online in the first half of each ten seconds, odd ones in the second half.
    halves = [[(0.0, 5.0)] if c % 2 == 0 else [(5.0, 10.0)] for c in range(8)]
    online = recorded(*halves, repeat=True)
    # A client that pauses keeps its place, so here it loses its work instead.
    run = running(FedBuff(2), [0.4] * 8, Flights(online, "lose"), concurrency=3)
    found = steps(run, 300)
    for step in found:
        is_even = int(step.client) % 2 == 0
        assert is_even == (step.start_time % 10 < 5)
        assert len(run.timeline.in_flight) <= 3
    assert {step.client for step in found} == set(range(8))


def test_updates_are_lost_as_often_as_asked() -> None:
    uniform = Drawn(np.ones(1), Streams(4), lambda rng, n: rng.random(n), "losses")
    losses = LossLaw(uniform, 0.2)
    lost = [losses.loses(0, n) for n in range(4000)]
    assert np.mean(lost) == pytest.approx(0.2, abs=0.03)


class LosesFirst:
    """Loses the first update of each client."""

    def loses(self, client: int, training: int) -> bool:
        return training == 0


def test_a_lost_update_reaches_no_strategy_and_its_client_trains_again() -> None:
    losses: Any = LosesFirst()
    run = running(FedFa(2), [1.0], Flights(losses=losses))
    first, second = steps(run, 2)
    assert first.happened == [(1.0, Lost(0, 0.0, LOST))]
    assert (first.event, first.time, first.start_time) == (1, 2.0, 1.0)
    assert (second.event, second.time, second.start_time) == (2, 3.0, 2.0)


def members(clients: int, *changes: tuple[float, Joined | Left]) -> MembershipChanges:
    return MembershipChanges(range(clients), changes)


def with_members(
    strategy: Strategy[Any], seconds: list[float], founders: int, changes: list[Change]
) -> Simulation:
    def event(change: Change) -> Joined | Left:
        return Joined(change.client, {"x": 1}) if change.kind == "joined" else Left(change.client)

    return Simulation(
        strategy,
        Setup(START, flat(founders)),
        Fixed(np.array(seconds)),
        Inline(add_one),
        conditions=Flights(leaves=next_leave(changes)),
        membership=members(len(seconds), *((change.time, event(change)) for change in changes)),
    )


def test_clients_join_and_leave_and_may_come_back() -> None:
    changes = [
        Change(0.5, 2, "joined"),
        Change(1.5, 0, "left"),
        Change(3.2, 0, "joined"),
    ]
    run = with_members(FedFa(1), [1.0, 1.0, 1.0], 2, changes)
    found = steps(run, 9)
    assert [(round(s.time, 1), s.client) for s in found] == [
        (1.0, 0), (1.0, 1), (1.5, 2), (2.0, 1), (2.5, 2), (3.0, 1), (3.5, 2), (4.0, 1), (4.2, 0),
    ]  # fmt: skip
    noted = [(round(time, 1), what) for step in found for time, what in step.happened]
    joined = [(0.5, Joined(2, {"x": 1})), (1.5, Left(0)), (3.2, Joined(0, {"x": 1}))]
    assert noted == joined


def test_a_round_does_not_wait_for_who_leaves() -> None:
    run = with_members(FedAvg(), [1.0, 9.0], 2, [Change(2.0, 1, "left")])
    first, second = steps(run, 2)
    assert (first.client, first.version) == (0, 0)
    # The round ends when client 1 leaves, and client 0 is handed the model then.
    assert (second.client, second.start_time, second.start_version) == (0, 2.0, 1)


def test_a_run_without_members_ends() -> None:
    run = with_members(FedFa(1), [1.0], 1, [Change(2.5, 0, "left")])
    steps(run, 2)
    with pytest.raises(Stalled, match=r"all clients have left after 2\.5 s") as stalled:
        run.step()
    assert stalled.value.happened == [(2.5, Left(0))]


@pytest.mark.parametrize("concurrency", [None, 3])
def test_one_who_waits_and_leaves_is_forgotten(concurrency: int | None) -> None:
    streams = Streams(5)
    changes = sorted(
        [Change(10.0 + c, c, "left") for c in range(6)]
        + [Change(20.0 + c, c, "joined") for c in range(6)]
    )
    names = range(8)
    run = Simulation(
        FedFa(2),
        Setup(START, flat(8)),
        poisson(np.ones(8), streams),
        Inline(add_one),
        HandOut(concurrency, rng=streams.generator("receivers")),
        conditions=Flights(Renewal(np.full(8, 0.3), 4.0, streams), leaves=next_leave(changes)),
        membership=members(
            8,
            *(
                (t, Left(c) if kind == "left" else Joined(names[c], {"x": 1}))
                for t, c, kind in changes
            ),
        ),
    )
    trained: dict[object, float] = {}
    while (step := run.step()).time < 200:
        client = int(step.client)
        if client < 6:
            assert not 10 + client < step.time < 20 + client
        assert trained.get(client, 0.0) <= step.start_time  # never two trainings at once
        trained[client] = step.time
    assert len(trained) == 8


@pytest.mark.parametrize("strategy", [FedFa(3), FedAvg()])
@pytest.mark.parametrize("concurrency", [None, 3])
def test_a_restored_run_goes_on_as_if_nothing_had_been(
    strategy: Strategy[Any], concurrency: int | None
) -> None:
    def fresh() -> Simulation:
        streams = Streams(2)
        uniform = Drawn(np.ones(9), streams, lambda rng, n: rng.random(n), "losses")
        changes = random_changes(9, 0.3, 0.3, 40.0, streams.generator("membership"))
        late = {c.client for c in changes if c.kind == "joined"}
        founders = flat(9).select(np.array([c for c in range(9) if c not in late]))
        return Simulation(
            strategy,
            Setup(START, founders),
            poisson(np.ones(9), streams),
            Inline(add_one),
            HandOut(concurrency, rng=streams.generator("receivers")),
            conditions=Flights(
                Renewal(np.full(9, 0.5), 5.0, streams),
                "lose",
                LossLaw(uniform, 0.2),
                next_leave(changes),
            ),
            membership=members(
                9,
                *(
                    (t, Left(c) if kind == "left" else Joined(c, {"x": 1}))
                    for t, c, kind in changes
                ),
            ),
        )

    run = fresh()
    run.step()
    for _ in range(60):
        again = fresh()
        again.restore(deepcopy(run.save()))
        assert again.step() == run.step()


def test_joins_and_leaves_are_drawn_in_order() -> None:
    changes = random_changes(100, 0.5, 0.5, 10.0, np.random.default_rng(0))
    assert all(one.time <= two.time for one, two in pairwise(changes))
    assert sum(change.kind == "joined" for change in changes) == 50
    joined = {c.client: c.time for c in changes if c.kind == "joined"}
    left = {c.client: c.time for c in changes if c.kind == "left"}
    assert all(0 < time <= 10 for time in joined.values())
    assert all(joined.get(client, 0.0) < time <= 10.01 for client, time in left.items())
    with pytest.raises(BadInput, match=r"membership\.joining = 1\.0 leaves nobody"):
        random_changes(3, 1.0, 0.0, 10.0, np.random.default_rng(0))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("0,0,5\n0,4,6\n1,0,1", r"'0' is online from 0 to 5 and again from 4: .*overlap"),
        ("0,0,5\n1,0,1\nx,0,1", r"intervals of 'x', which is no client"),
        ("0,0,5", r"no interval of client 1 \(1 of 2 clients are missing\)"),
        ("0,0,5\n1,3,3", r"line 3: the end 3 is not after the start"),
        ("0,-1,5", r"line 2, column 'start': '-1' is not from 0 on"),
        ("0,soon,5", r"'soon' is not a time; write a number of seconds"),
        ("", r"has no intervals|is empty"),
    ],
)
def test_a_wrong_trace_of_availability_is_refused(rows: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "online.csv"
    path.write_text(f"client,start,end\n{rows}\n")
    with pytest.raises(BadInput, match=message):
        RecordedAvailability([0, 1], read_intervals(path), repeat=True)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("0,1,joined\n0,2,joined", "client 0 has joined twice in a row"),
        ("0,1,left\n0,1,joined", "client 0 joins and leaves at 1|twice"),
        ("x,1,left", "names 'x', which is no client"),
        ("0,1,gone", "'gone' is not a change; write joined or left"),
        ("0,1,joined\n1,2,joined", "no client is there from the start"),
    ],
)
def test_a_wrong_script_of_members_is_refused(rows: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "members.csv"
    path.write_text(f"client,time,change\n{rows}\n")
    with pytest.raises(BadInput, match=message):
        read_changes(path, [0, 1])
