"""What docs/explanation/theory.md proves of residual replay, against the strategy itself.

Q_r(w) = n_r/2 · max(0, 1 − p_r(w))² is rebuilt here from the models that passed, not from the
progress that the strategy keeps: w_r is the model when r's update arrived.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.strategies.server import begun, fed, sent

import fedraw
from fedraw.core.types import ClientId, LabelCounts

CALM = settings(deadline=None, max_examples=80)
DIMENSIONS = 4
ROUNDS = 12
STILL = (0.0,) * DIMENSIONS

Point = npt.NDArray[np.float64]

# A difference: a direction, and a length over a factor of a hundred.
DIRECTIONS = st.lists(st.floats(-1, 1), min_size=DIMENSIONS, max_size=DIMENSIONS).filter(
    lambda own: np.linalg.norm(own) > 0.1
)
LENGTHS = st.floats(0.1, 10)
# How much of a common label each rare client holds besides its own: its score falls with it.
RARE = st.lists(st.integers(0, 3), min_size=1, max_size=4)


@dataclass
class Run:
    """A federation of common clients c0 to c11 and rare ones r0, r1, …, all of whom were heard."""

    strategy: fedraw.Replay
    state: Any
    h: dict[ClientId, Point]
    arrival: Point  # the model when they arrived: all in one round

    @classmethod
    def of(cls, rare: list[int], h: list[Point], mass: float, model: Point | None = None) -> Run:
        counts: dict[Any, LabelCounts] = {f"c{i}": {"x": 1} for i in range(12)}
        counts |= {f"r{i}": {"x": of_x, f"y{i}": 5} for i, of_x in enumerate(rare)}
        strategy = fedraw.Replay(len(rare), mass=mass)
        arrival = np.zeros(DIMENSIONS) if model is None else model
        state = begun(strategy, counts, *arrival)
        assert set(state.rare) == {f"r{i}" for i in range(len(rare))}
        assert sum(state.rare.values()) <= mass * (1 + 1e-12)
        updates = [sent(f"r{i}", *own) for i, own in enumerate(h)]
        state = fed(strategy, state, updates)
        assert state.version == 1
        as_sent = {client: kept.update.vector.astype(float) for client, kept in state.kept.items()}
        return cls(strategy, state, as_sent, arrival.astype(np.float32).astype(float))

    def round(self, *common: float) -> Point:
        """K common arrivals that all send this; what the model moved by."""
        before = self.model
        events = [sent("c0", *common, version=self.state.version)] * self.strategy.buffer
        self.state = fed(self.strategy, self.state, events)
        return self.model - before

    @property
    def model(self) -> Point:
        return np.asarray(self.state.model, np.float64)

    @property
    def weight(self) -> dict[ClientId, float]:
        return dict(self.state.rare)

    def progress(self, w: Point) -> dict[ClientId, float]:
        return {r: float((w - self.arrival) @ h / (h @ h)) for r, h in self.h.items()}

    def surrogate(self, w: Point) -> float:
        """Σ W_r Q_r."""
        p, weight = self.progress(w), self.weight
        terms = [weight[r] * float(h @ h) / 2 * max(0, 1 - p[r]) ** 2 for r, h in self.h.items()]
        return sum(terms)

    def force(self, r: ClientId) -> float:
        """The multiple of h_r that the next step applies."""
        return self.weight[r] * max(0.0, 1 - self.progress(self.model)[r])

    @property
    def scale(self) -> float:
        """What float32 rounds is relative to this."""
        return max(1.0, *(float(np.linalg.norm(h)) for h in self.h.values()))


@st.composite
def runs(draw: st.DrawFn, most: int = 4) -> Run:
    rare = draw(st.lists(st.integers(0, 3), min_size=1, max_size=most))
    h = [_vector(draw(DIRECTIONS), draw(LENGTHS)) for _ in rare]
    return Run.of(rare, h, draw(st.floats(0.05, 0.9)))


def _vector(direction: list[float], length: float) -> Point:
    own = np.array(direction)
    return length * own / np.linalg.norm(own)


@CALM
@given(runs(), DIRECTIONS, LENGTHS)
def test_a_step_goes_down_the_gradient_of_the_surrogates(
    run: Run, direction: list[float], length: float
) -> None:
    """Also where others have pushed the model: by central differences of Σ W_r Q_r."""
    run.round(*_vector(direction, length))
    at, eps = run.model, 1e-5
    nudges = eps * np.eye(DIMENSIONS)
    slope = [(run.surrogate(at + e) - run.surrogate(at - e)) / (2 * eps) for e in nudges]
    assert run.round(*STILL) == pytest.approx(-np.array(slope), abs=2e-4 * run.scale)


@CALM
@given(runs())
def test_replay_alone_lowers_the_surrogates_whatever_the_angles(run: Run) -> None:
    """By at least (1 − ρ/2) ‖∇F‖², F being 1-smooth times ρ."""
    rho = sum(run.weight.values())
    for _ in range(ROUNDS):
        before = run.surrogate(run.model)
        step = run.round(*STILL)
        rounding = 1e-5 * run.scale**2
        assert run.surrogate(run.model) <= before - (1 - rho / 2) * (step @ step) + rounding


@CALM
@given(DIRECTIONS, st.integers(0, 3), LENGTHS, st.floats(0.05, 0.9))
def test_a_lone_client_is_followed_geometrically_and_once_in_all(
    direction: list[float], of_x: int, length: float, mass: float
) -> None:
    h = _vector(direction, length)
    run = Run.of([of_x], [h], mass)
    ratio = 1 - run.weight["r0"]
    for step in range(1, 60):
        assert 1 - run.state.kept["r0"].progress == pytest.approx(ratio**step, abs=1e-5)
        run.round(*STILL)
    followed = 1 - ratio**60
    assert run.model == pytest.approx(followed * h, abs=1e-4 * length)


@CALM
@given(runs(), st.lists(st.tuples(DIRECTIONS, LENGTHS), min_size=1, max_size=ROUNDS))
def test_what_is_applied_is_what_was_followed_and_what_others_undid(
    run: Run, pushes: list[tuple[list[float], float]]
) -> None:
    """Σ f_r = p_r + Σ undone: others' part is put together from what they sent."""
    rho = sum(run.weight.values())
    first = run.weight  # the step that Run.of made: nothing was followed yet, and none was common
    applied = dict(first)
    undone = {r: -_along(h, first, run.h, r) for r, h in run.h.items()}
    for direction, length in pushes:
        force = {r: run.force(r) for r in run.h}
        common = _vector(direction, length)
        run.round(*common)
        for r, h in run.h.items():
            applied[r] += force[r]
            others = (1 - rho) * float(common @ h / (h @ h)) + _along(h, force, run.h, r)
            undone[r] -= others
    for r, kept in run.state.kept.items():
        assert applied[r] == pytest.approx(kept.progress + undone[r], rel=1e-4, abs=1e-3)


def _along(
    h: Point, force: dict[ClientId, float], of: dict[ClientId, Point], besides: ClientId
) -> float:
    """How far the other rare clients' forces lead along h."""
    return float(sum(force[s] * (of[s] @ h) for s in of if s != besides) / (h @ h))


@CALM
@given(runs(most=1), st.floats(0.01, 1.0))
def test_what_is_undone_for_ever_is_made_good_at_the_price_of_a_gap(run: Run, lost: float) -> None:
    """If each step of others takes off δ of h, the force becomes δ and 1 − p stays at δ / W."""
    h, weight = run.h["r0"], run.weight["r0"]
    common = -lost * weight / (1 - weight) * h  # so that δ = lost · W, and the gap is `lost`
    rounds = int(np.ceil(np.log(1e-5) / np.log1p(-weight)))
    for _ in range(rounds):
        run.round(*common)
    assert 1 - run.state.kept["r0"].progress == pytest.approx(lost, rel=1e-2, abs=1e-3)
    assert run.force("r0") == pytest.approx(lost * weight, rel=1e-2, abs=1e-3)


@CALM
@given(runs(most=1), st.lists(st.tuples(DIRECTIONS, LENGTHS), min_size=1, max_size=ROUNDS))
def test_nobody_is_led_beyond_what_it_sent_by_its_own_replay(
    run: Run, pushes: list[tuple[list[float], float]]
) -> None:
    """As long as what others do has no part along h_r."""
    h = run.h["r0"]
    for direction, length in pushes:
        push = _vector(direction, length)
        along = max(0.0, float(push @ h)) / (h @ h)
        run.round(*(push - along * h))
        assert run.state.kept["r0"].progress <= 1 + 1e-4


def opposed(weight: float) -> list[float]:
    """Two rare clients that pull against each other from 0, weighed by hand, and one push."""
    e = np.eye(DIMENSIONS)[0]
    run = Run.of([0, 0], [e, -e], 0.5)
    run.round(*(0.1 * e))
    run.state.rare = {"r0": weight, "r1": weight}
    found = [run.model[0]]
    for _ in range(12):
        run.round(*STILL)
        found.append(run.model[0])
    return found


def test_up_to_two_in_all_the_surrogates_fall_and_beyond_they_need_not() -> None:
    """The bound is met: below a mass of 2 the model settles, at 3 it swings, at 5 it runs away."""
    for weight in (0.25, 0.45, 0.9):
        assert abs(opposed(weight)[-1]) < abs(opposed(weight)[0])
    swinging = opposed(1.5)
    assert all(a * b < 0 for a, b in pairwise(swinging))
    assert abs(swinging[-1]) == pytest.approx(1.5 / (2 - 1.5), rel=0.05)  # W / (2 − W)
    assert abs(opposed(2.5)[-1]) > 100


def test_aligned_updates_overshoot_beyond_one_and_stop_there() -> None:
    """One-sided: what has been overshot is not taken back, so nothing swings."""
    e = np.eye(DIMENSIONS)[0]
    for weight, reached in ((0.45, 1.0), (0.75, 1.5), (2.0, 4.0)):
        run = Run.of([0, 0], [e, e], 1e-6)
        run.state.rare = {"r0": weight, "r1": weight}
        for _ in range(40):
            run.round(*STILL)
        assert run.model[0] == pytest.approx(reached, abs=1e-3)


@CALM
@given(runs(most=1), DIRECTIONS, LENGTHS)
def test_at_rest_the_model_is_between_what_both_want(
    run: Run, direction: list[float], length: float
) -> None:
    """Common clients who all go to one point, β = 1: along h the weighted mean of both ends."""
    h, weight = run.h["r0"], run.weight["r0"]
    theirs = run.arrival + _vector(direction, length)
    for _ in range(60):
        run.round(*(theirs - run.model))
    wanted = run.progress(theirs)["r0"]
    between = weight * max(1.0, wanted) + (1 - weight) * wanted
    assert run.state.kept["r0"].progress == pytest.approx(between, rel=1e-3, abs=1e-3)
    across = (run.model - theirs) - (run.model - theirs) @ h / (h @ h) * h
    assert across == pytest.approx(np.zeros(DIMENSIONS), abs=1e-3 * max(length, run.scale))
