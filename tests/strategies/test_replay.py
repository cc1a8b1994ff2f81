from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.strategies.server import COUNTS, METHODS, On, Server, begun, bits, fed, sent

from fedraw.core.layout import Layout
from fedraw.core.types import ClientId, LabelCounts
from fedraw.strategies.fedbuff import FedBuff
from fedraw.strategies.protocol import Arrived, Declared, Joined, Left
from fedraw.strategies.replay import Replay
from fedraw.strategies.scoring import LabelEvidence

# S: c0 to c3 hold x with three others, so 1/4 each; r holds y alone, so 1. The median is 1/4.
FIVE = {"c0": {"x": 1}, "c1": {"x": 1}, "c2": {"x": 1}, "c3": {"x": 1}, "r": {"y": 1}}
WEIGHT = 1 / 2  # 1 / (4/4 + 1)


def test_who_is_rare_and_how_much_it_weighs() -> None:
    state = begun(Replay(2), FIVE, 0)
    assert state.rare == {"r": WEIGHT}
    assert begun(Replay(2, mass=0.2), FIVE, 0).rare == {"r": pytest.approx(0.2)}
    assert begun(Replay(2, threshold=4), FIVE, 0).rare == {}  # 1 is not more than 4/4


def test_one_step_by_hand() -> None:
    strategy = Replay(3)
    state = begun(strategy, FIVE, 10, 0)
    state = fed(strategy, state, [sent("c0", 2, 0), sent("r", 0, 8), sent("c1", 4, 0)])
    # v = (1 − 1/2) (2 + 4)/2 e_0 + 1/2 · 8 e_1, and half of h_r = 8 e_1 has been realised.
    assert (state.version, state.model.tolist()) == (1, [11.5, 4.0])
    assert state.kept["r"].progress == pytest.approx(0.5)
    assert state.contents == (["c0", "c1", "r"], [0.25, 0.25, 0.5])


def test_alone_a_rare_client_is_followed_geometrically_and_applied_once_in_all() -> None:
    strategy = Replay(1)
    state = fed(strategy, begun(strategy, FIVE, 0, 0), [sent("r", 0, 8)])
    for n in range(1, 25):
        assert 1 - state.kept["r"].progress == pytest.approx((1 - WEIGHT) ** n, abs=1e-6)
        assert state.model[1] == pytest.approx(8 * state.kept["r"].progress, rel=1e-5)
        # Someone else's arrival in another direction triggers the next step.
        state = fed(strategy, state, [sent("c0", 1, 0, version=state.version)])
    assert state.model[1] == pytest.approx(8, rel=1e-5)


def test_what_others_undo_is_applied_again() -> None:
    strategy = Replay(1)
    state = fed(strategy, begun(strategy, FIVE, 0), [sent("r", 8)])
    for _ in range(30):
        state = fed(strategy, state, [sent("c0", 0, version=state.version)])
    followed = state.kept["r"].progress
    assert followed == pytest.approx(1, abs=1e-6)
    state = fed(strategy, state, [sent("c0", -4, version=state.version)])
    assert state.kept["r"].progress < followed - 0.2
    before = float(state.model[0])
    state = fed(strategy, state, [sent("c0", 0, version=state.version)])
    assert state.model[0] > before  # the force resumes


@pytest.mark.parametrize("rate", [1.0, 0.3])
def test_nobody_rare_is_fedbuff_to_the_bit(rate: float) -> None:
    even: dict[ClientId, LabelCounts] = {i: {"x": 1 + i} for i in range(6)}
    model = np.array([0.1, -0.7, 3.0], np.float32)
    layout = Layout.of([("w", (2,))], [("mean", (1,))])
    one, other = (
        Server(On(layout, Replay(4, server_lr=rate)), even, model=model),
        Server(On(layout, FedBuff(4, server_lr=rate)), even, model=model),
    )
    for ours, theirs in zip(one.run(60), other.run(60), strict=True):
        assert ours.tobytes() == theirs.tobytes()


@given(
    st.lists(st.tuples(st.integers(0, 5), st.floats(-10, 10, width=32)), min_size=20, max_size=80),
    st.integers(1, 5),
)
@settings(max_examples=60, deadline=None)
def test_its_own_replay_never_leads_beyond_what_it_sent(
    arrivals: list[tuple[int, float]], buffer: int
) -> None:
    """With common clients that stand still, progress stays at most 1, whatever the angles."""
    strategy = Replay(buffer, threshold=1)
    state = begun(strategy, COUNTS, 0, 0)
    for client, angle in arrivals:
        rare = client in state.rare
        values = (np.cos(angle), np.sin(angle)) if rare else (0.0, 0.0)
        state = fed(strategy, state, [sent(client, *values, version=state.version)])
        alone = len(state.kept) <= 1
        assert not alone or all(kept.progress <= 1 + 1e-6 for kept in state.kept.values())
        assert np.linalg.norm(state.model) <= len(arrivals)


def test_a_new_update_replaces_the_older_and_begins_anew() -> None:
    strategy = Replay(1)
    state = fed(strategy, begun(strategy, FIVE, 0), [sent("r", 8)])
    state = fed(strategy, state, [sent("r", -2, version=1)])
    assert state.kept["r"].squared == 4
    assert state.kept["r"].progress == pytest.approx(WEIGHT)


def test_more_rare_clients_than_slots_the_rarest_are_kept() -> None:
    many = {f"c{i}": {"x": 1} for i in range(20)}
    many |= {f"r{i}": {f"y{i}": 2, "x": i} for i in range(4)}
    state = begun(Replay(2), many, 0)
    assert list(state.rare) == ["r0", "r1"]
    assert sum(state.rare.values()) <= 0.5
    strategy = Replay(2)
    state = fed(strategy, state, [sent("r3", 5), sent("c0", 1)])
    assert list(state.kept) == []  # it counts as a common one
    assert state.model.tolist() == [3]


def test_a_floor_is_for_members_only() -> None:
    """What a client that has left sent is never refreshed: a floor would push it for ever."""
    strategy = Replay(1, floor=1.0)
    state = fed(strategy, begun(strategy, FIVE, 0), [sent("r", 8)])
    for _ in range(60):
        state = fed(strategy, state, [sent("c0", 0, version=state.version)])
    assert state.model[0] > 16, "a member's difference is applied again and again"
    state = fed(strategy, begun(strategy, FIVE, 0), [sent("r", 8), Left("r")])
    for _ in range(60):
        state = fed(strategy, state, [sent("c0", 0, version=state.version)])
    assert list(state.kept) == ["r"]
    assert state.model == pytest.approx([8], rel=1e-5), "applied once in all"


def test_a_client_that_leaves_goes_on_acting_until_its_place_is_needed() -> None:
    strategy = Replay(1)
    state = fed(strategy, begun(strategy, FIVE, 0), [sent("r", 8), Left("r")])
    assert list(state.kept) == ["r"]
    moved = float(state.model[0])
    state = fed(strategy, state, [sent("c0", 0, version=1)])
    assert state.model[0] > moved
    state = fed(strategy, state, [Joined("s", {"z": 1})])
    assert list(state.rare) == ["s"] and not state.kept


def test_a_client_that_is_no_longer_rare_is_no_longer_replayed() -> None:
    strategy = Replay(1)
    state = fed(strategy, begun(strategy, FIVE, 0), [sent("r", 8), Declared("r", {"x": 5})])
    assert not state.rare and not state.kept


# The bias of each output is its level; two labels, x and y.
TWO_OUTPUTS = Layout.of([("fc.weight", (2, 1)), ("fc.bias", (2,))])
# The model is far from zero: a difference must not be read as a model.
LEVELS = (0.0, 0.0, 5.0, 5.0)


def showing(client: str, x: float, y: float, version: int = 0) -> Arrived:
    """A difference that raises or lowers the outputs of x and y."""
    return sent(client, 0, 0, x, y, version=version)


@pytest.mark.parametrize("labels", ["inferred", "checked"])
def test_labels_are_read_off_the_differences_themselves(labels: LabelEvidence) -> None:
    strategy = On(TWO_OUTPUTS, Replay(5, labels=labels, classes=("x", "y")))
    state = begun(strategy, FIVE, *LEVELS)
    for version in range(2):
        common = [showing(f"c{i}", 0.5, -0.5, version) for i in range(4)]
        state = fed(strategy, state, [*common, showing("r", -0.5, 0.5, version)])
    assert {c: heard.risen.tolist() for c, heard in state.scorer.evidence.items()} == {
        **{f"c{i}": [1, 0] for i in range(4)},
        "r": [0, 1],
    }
    assert list(state.rare) == list(state.kept) == ["r"]
    before = float(state.model[3])
    state = fed(strategy, state, [showing(f"c{i % 4}", 0.5, -0.5, version=2) for i in range(5)])
    # The common ones lower y by half of 0.5; what is left of r's difference raises it again.
    assert state.model[3] - before > -0.2


def test_whoever_shows_a_rare_label_is_rare_from_that_update_on() -> None:
    """Also in the middle of a round, and although nobody has declared anything."""
    strategy = On(TWO_OUTPUTS, Replay(4, labels="inferred", classes=("x", "y")))
    state = begun(strategy, FIVE, *LEVELS)
    state = fed(strategy, state, [showing(f"c{i % 4}", 0.5, -0.5) for i in range(5)])
    assert (state.rare, state.common) == ({}, ["c0"])
    state = fed(strategy, state, [showing("r", -0.5, 0.5, version=1)])
    assert list(state.rare) == list(state.kept) == ["r"]
    assert state.common == ["c0"]


def test_what_the_rare_weigh_is_found_anew_when_a_round_begins() -> None:
    """Inferred: a newcomer has the mean score, and less than that once it has shown x."""
    strategy = On(TWO_OUTPUTS, Replay(2, mass=0.9, labels="inferred", classes=("x", "y")))
    many: dict[ClientId, LabelCounts] = {f"c{i}": {"x": 1} for i in range(8)}
    state = begun(strategy, {**many, "r": {"y": 1}}, *LEVELS)
    state = fed(strategy, state, [showing(f"c{i}", 0.5, -0.5) for i in range(8)])
    state = fed(strategy, state, [showing("r", -0.5, 0.5)])
    state = fed(strategy, state, [Joined("n1", {"x": 1}), Joined("n2", {"x": 1})])
    weight = state.rare["r"]
    state = fed(strategy, state, [showing("c0", 0.5, -0.5)])
    assert state.rare["r"] == weight
    state = fed(strategy, state, [showing("n1", 0.5, -0.5)])  # begins a round
    begins = state.rare["r"]
    assert begins > weight
    state = fed(strategy, state, [showing("n2", 0.5, -0.5)])  # ends it
    assert state.rare["r"] == begins
    state = fed(strategy, state, [showing("c0", 0.5, -0.5)])
    assert state.rare["r"] > begins


def test_a_floor_keeps_a_force() -> None:
    strategy = Replay(1, floor=0.5)
    state = fed(strategy, begun(strategy, FIVE, 0), [sent("r", 8)])
    for _ in range(60):
        state = fed(strategy, state, [sent("c0", 0, version=state.version)])
    # Each further step adds 0.5/5 of h_r.
    before = float(state.model[0])
    state = fed(strategy, state, [sent("c0", 0, version=state.version)])
    assert state.model[0] - before == pytest.approx(0.8, rel=1e-4)


def test_at_half_the_rate_half_of_each_step_is_taken_and_counted() -> None:
    """r sends 8 and weighs 1/2: a step of 4, of which 2 are taken, a quarter of what it sent."""
    strategy = Replay(1, server_lr=0.5)
    state = fed(strategy, begun(strategy, FIVE, 0), [sent("r", 8)])
    assert state.model[0] == pytest.approx(2)
    assert state.kept["r"].progress == pytest.approx(0.25)
    # 1 - p falls by a factor of 1 - W/2: what is left of 8 is 8 · 3/4 · 3/4, if c0 adds nothing.
    state = fed(strategy, state, [sent("c0", 0, version=1)])
    assert state.model[0] == pytest.approx(8 * (1 - 0.75**2))


def test_an_update_of_nothing_is_no_direction() -> None:
    strategy = Replay(1)
    state = fed(strategy, begun(strategy, FIVE, 3), [sent("r", 0), sent("c0", 2, version=1)])
    assert np.isfinite(state.model).all() and state.kept["r"].progress == 0


def test_at_most_k_updates_are_remembered() -> None:
    server = Server(METHODS["replay for few"])
    server.run(100)
    _, arrays = bits(server.state)
    assert sum(len(content) == 4 * 5 for content in arrays.values()) <= 2 + 1  # K and the model
