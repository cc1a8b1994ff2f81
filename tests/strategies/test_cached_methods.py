"""The methods with a cache: each by hand, and where two of them are the same."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.strategies.server import NORMED, On, Server, begun, bits, fed, sent
from tests.strategies.streams import STREAM, Stream, blocks, steps, streams

from fedraw.strategies.ace import ACE
from fedraw.strategies.aced import ACED
from fedraw.strategies.ca2fl import CA2FL
from fedraw.strategies.fadas import FADAS
from fedraw.strategies.fedau import FedAU
from fedraw.strategies.fedbuff import FedBuff
from fedraw.strategies.fedstale import FedStale
from fedraw.strategies.fedstaleweight import FedStaleWeight
from fedraw.strategies.fedvarp import FedVARP
from fedraw.strategies.mifa import MIFA
from fedraw.strategies.protocol import Event, Joined, Left

ABC = {client: {"x": 1} for client in "abc"}


@pytest.mark.parametrize(
    ("strategy", "models"),
    [
        (MIFA(2), [3, 7]),  # (3 + 6)/3, then (9 + 6 - 3)/3 more
        (MIFA(2, wait=True), [4]),  # the first step is when c is heard
        (FedVARP(2, server_lr=1), [4.5, 9]),
        (FedVARP(server_lr=1), [3, 10, 19, 21]),  # K = 1: 3, then 1 + 6, 3 + 6, 5 - 3
        (ACE(server_lr=1), [1, 4, 9, 13]),
        (ACE(server_lr=1, init="wait"), [4]),
        (ACED(server_lr=1, tau_algo=1), [3, 7.5, 15, 18]),
        (ACED(server_lr=1, tau_algo=1, age="start"), [3, 7.5, 16.5, 16.5]),
        (FedStale(2, participation="buffer"), [4.5, 8.25]),
        (FedStale(2, beta=1, participation="certain", average="heard"), [4.5, 8.5]),
        # (3 + 6)/2, then h + ((9 - 3) - 3)/2 more with h = (3 + 6)/3
        (FedStale(2, beta=1, participation="buffer", average="heard"), [4.5, 9]),
    ],
    ids=repr,
)
def test_the_stream_of_three_clients(strategy: Any, models: list[float]) -> None:
    assert steps(strategy, STREAM) == pytest.approx(models)


def test_fedau_weights_c_by_the_two_steps_it_took() -> None:
    assert steps(FedAU(2), [*STREAM, ("b", 6), ("c", -3)]) == [3, 5, 5]


# Where two methods are one.


@given(streams())
@settings(max_examples=25, deadline=None)
def test_mifa_with_a_buffer_of_one_is_ace(stream: Stream) -> None:
    one, other = MIFA(1, server_lr=0.1), ACE(server_lr=0.1)
    assert steps(one, stream, "abcd") == steps(other, stream, "abcd")


@pytest.mark.parametrize("refresh", ["round-start", "arrival"])
def test_fedvarp_with_a_buffer_is_ca2fl_bit_for_bit(refresh: Any) -> None:
    varp, calibrated = Server(FedVARP(4, 0.7, refresh)), Server(CA2FL(4, 0.7, refresh))
    for _ in range(60):  # clients come twice in a buffer, too
        varp.arrive_any()
        calibrated.arrive_any()
        assert bits(varp.state) == bits(calibrated.state)


@given(streams())
@settings(max_examples=30, deadline=None)
def test_beta_of_fedstale_chooses_between_ca2fl_and_fedbuff(stream: Stream) -> None:
    for one, beta in ((CA2FL(2), 1.0), (FedBuff(2), 0.0)):
        other = FedStale(2, beta=beta, participation="buffer")
        assert steps(one, stream, "abcd") == pytest.approx(steps(other, stream, "abcd"))


@given(st.sampled_from([1, 2, 3, 4]).flatmap(lambda k: st.tuples(st.just(k), blocks(k))))
@settings(max_examples=25, deadline=None)
def test_mifa_is_fedstale_with_p_of_one(drawn: tuple[int, Stream]) -> None:
    buffer, stream = drawn
    stale = FedStale(buffer, beta=1, participation="certain")
    assert steps(MIFA(buffer), stream, "abcd") == pytest.approx(steps(stale, stream, "abcd"))


@given(blocks(4))
@settings(max_examples=25, deadline=None)
def test_every_client_once_in_every_step_is_fedavg(stream: Stream) -> None:
    mean, model = [], Fraction(0)
    for start in range(0, len(stream), 4):
        model += Fraction(sum(int(value) for _, value in stream[start : start + 4]), 4)
        mean.append(float(model))
    methods: list[Any] = [
        MIFA(4),
        FedVARP(4, 1),
        CA2FL(4),
        FedAU(4),
        FedStale(4),
        FedStale(4, beta=0),
    ]
    for strategy in methods:
        assert steps(strategy, stream, "abcd") == pytest.approx(mean)


@given(streams(), st.integers(0, 6))
@settings(max_examples=25, deadline=None)
def test_aced_by_contact_averages_the_last_distinct_senders(stream: Stream, tau: int) -> None:
    expected, model = [], 0.0
    for t in range(len(stream)):
        newest = dict(stream[max(0, t - tau) : t + 1])
        model += sum(newest.values()) / len(newest)
        expected.append(model)
    strategy = ACED(server_lr=1, tau_algo=tau)
    assert steps(strategy, stream, "abcd") == pytest.approx(expected, abs=1e-4)


@given(streams(most=20))
@settings(max_examples=30, deadline=None)
def test_aced_of_any_age_is_ace_once_all_were_heard(stream: Stream) -> None:
    """Both readings of age: nothing is ever too old."""
    first = [(client, 1.0) for client in "abcd"]
    ace = np.diff(steps(ACE(server_lr=1), [*first, *stream], "abcd"))[3:]
    for age in ("contact", "start"):
        aced = ACED(server_lr=1, tau_algo=10**6, age=age)
        moves = np.diff(steps(aced, [*first, *stream], "abcd"))[3:]
        assert moves == pytest.approx(ace, abs=1e-4)


def test_ace_moves_by_what_all_agree_on_whoever_arrives() -> None:
    heard = steps(ACE(server_lr=0.5), [(client, 8) for client in "abcbbac"])
    assert np.diff(heard)[1:] == pytest.approx([4] * 5)


def test_ace_that_waits_begins_with_the_step_of_fedavg() -> None:
    stream = [("a", 1), ("b", 2), ("a", 7), ("d", 4), ("c", 0)]
    assert steps(ACE(server_lr=1, init="wait"), stream, "abcd") == [(7 + 2 + 4 + 0) / 4]


def test_a_slow_client_never_counts_if_its_age_is_counted_from_the_start() -> None:
    """c needs four versions and τ is 2; by contact, c is the youngest when it arrives."""
    stream = [("a", 0), ("b", 0), ("a", 0), ("b", 0), ("c", 8)]
    assert steps(ACED(server_lr=1, tau_algo=2, age="start"), stream)[-1] == 0
    assert steps(ACED(server_lr=1, tau_algo=2), stream)[-1] == pytest.approx(8 / 3)


def test_aced_keeps_no_difference_that_is_too_old() -> None:
    strategy = ACED(tau_algo=1)
    state = begun(strategy, {client: {"x": 1} for client in "abcdef"}, 0)
    for version, client in enumerate("abcdef"):
        state = fed(strategy, state, [sent(client, 1, version=version)])
    assert (sorted(state.cache), sorted(state.born)) == (["e", "f"], ["e", "f"])


# FedAU's estimate


@given(st.lists(st.booleans(), min_size=1, max_size=60), st.integers(1, 7))
def test_an_interval_is_counted_step_by_step(takes_part: list[bool], cutoff: int) -> None:
    """The same, with a counter that is raised after every step."""
    strategy = FedAU(1, cutoff=cutoff)
    state = begun(strategy, {"a": {"x": 1}, "b": {"x": 1}}, 0)
    finished: list[int] = []
    misses = 0
    for here in takes_part:
        omega = sum(finished) / len(finished) if finished else 1.0
        before = float(state.model[0])
        arrival = sent("a", 2) if here else sent("b", 0)
        state = fed(strategy, state, [arrival])
        assert float(state.model[0]) - before == pytest.approx(omega if here else 0, abs=1e-4)
        misses += 1
        if here or misses >= cutoff:
            finished.append(misses)
            misses = 0


def test_the_estimate_becomes_the_inverse_of_how_often_a_client_takes_part() -> None:
    strategy, rng = FedAU(2, cutoff=10_000), np.random.default_rng(1)
    state = begun(strategy, ABC, 0)
    for _ in range(3000):  # a and b mostly, c in a fifth of the steps
        pair = ["a", "c" if rng.random() < 0.2 else "b"]
        state = fed(strategy, state, [sent(client, 0) for client in pair])
    mean = {client: own.mean(state.version, 10_000) for client, own in state.intervals.items()}
    assert mean == pytest.approx({"a": 1, "b": 1 / 0.8, "c": 1 / 0.2}, rel=0.1)


def test_a_client_twice_in_a_step_counts_once_and_the_log_says_so() -> None:
    strategy = FedAU(3)
    state = fed(strategy, begun(strategy, ABC, 0), [sent("a", 1), sent("b", 3), sent("a", 9)])
    assert state.model.tolist() == [4]
    assert state.contents == (["a", "b", "a"], [0, 0.5, 0.5])
    assert (
        fed(MIFA(3), begun(MIFA(3), ABC, 0), [sent("a", 1), sent("b", 3), sent("a", 9)]).model == 4
    )


# Members


def test_mifa_forgets_a_leaver_even_in_the_middle_of_a_buffer() -> None:
    strategy = MIFA(2)
    events: list[Event] = [sent("a", 3), Left("a"), sent("b", 6)]
    assert fed(strategy, begun(strategy, ABC, 0), events).model.tolist() == [3]


def test_aced_forgets_a_leaver() -> None:
    state = begun(ACED(server_lr=1), ABC, 0)
    state = fed(ACED(server_lr=1), state, [sent("a", 3), Left("a"), sent("b", 6, version=1)])
    assert state.model == pytest.approx([3 + 6])


def test_nothing_is_kept_of_clients_that_leave() -> None:
    for strategy in (FedAU(1), FedStale(1), MIFA(1), ACED()):
        state = begun(strategy, ABC, 0)
        state = fed(strategy, state, [sent("a", 3), Left("a")])
        for kept in (state.cache, state.newest, state.intervals):
            assert "a" not in kept


def test_a_leaver_in_a_buffer_of_fedau_still_counts() -> None:
    strategy = FedAU(2)
    events: list[Event] = [sent("a", 2), Left("a"), Joined("a", {"x": 1}), sent("b", 4)]
    assert fed(strategy, begun(strategy, ABC, 0), events).model.tolist() == [2]


def test_a_client_that_returns_within_a_buffer_of_fedau_counts_once() -> None:
    strategy = FedAU(3)
    back: list[Event] = [Left("a"), Joined("a", {"x": 1})]
    events: list[Event] = [sent("a", 3), *back, sent("a", 9), sent("b", 6)]
    state = fed(strategy, begun(strategy, ABC, 0), events)
    assert state.model.tolist() == [5], "(9 + 6) / 3, as without the leave"
    assert state.contents == (["a", "a", "b"], [0, 0.5, 0.5])


def test_who_waits_for_all_does_not_wait_for_a_newcomer() -> None:
    strategy = ACE(server_lr=1, init="wait")
    events: list[Event] = [sent("a", 3), sent("b", 3), Left("c"), sent("a", 5)]
    state = fed(strategy, begun(strategy, ABC, 0), events)
    assert state.model.tolist() == [4]
    state = fed(strategy, state, [Joined("d", {"x": 1}), sent("a", 6)])
    assert state.model.tolist() == [4 + 3]


@pytest.mark.parametrize(
    "strategy",
    [ACE(), ACED(), FedVARP(), MIFA(1), FedStale(1), FedStaleWeight(1), FADAS(1)],
    ids=repr,
)
def test_with_a_buffer_of_one_statistics_are_the_mean_of_everyones_newest(strategy: Any) -> None:
    on = On(NORMED, strategy)
    state = begun(on, ABC, 0, 0, 0, 9, 9)
    state = fed(on, state, [sent("a", 0, 0, 0, 1, 2), sent("b", 0, 0, 0, 5, 4)])
    assert state.model[3:].tolist() == [3, 3]
    state = fed(on, state, [sent("a", 0, 0, 0, 3, 8), Left("b"), sent("c", 0, 0, 0, 5, 0)])
    assert state.model[3:].tolist() == [4, 4]
