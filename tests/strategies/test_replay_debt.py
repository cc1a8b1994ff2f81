"""Replay by participation debt: who is kept, what a client weighs, and who comes and goes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.strategies.server import On, begun, fed, sent
from tests.strategies.test_replay import FIVE, LEVELS, TWO_OUTPUTS, showing

import fedraw
from fedraw.core.types import ClientId, LabelCounts
from fedraw.errors import BadInput
from fedraw.strategies.catalog import CATALOG
from fedraw.strategies.protocol import Arrived, Event, Joined, Left
from fedraw.strategies.replay import Replay

THREE: dict[ClientId, LabelCounts] = {"a": {"x": 1}, "b": {"x": 1}, "c": {"x": 1}}


def by_samples(buffer: int = 2, **settings: Any) -> Replay:
    return Replay(buffer, select="debt", target="samples", **settings)


def test_two_rounds_by_hand() -> None:
    strategy = by_samples()
    state = begun(strategy, THREE, 0)
    state = fed(strategy, state, [sent("a", 3, examples=6), sent("b", 6, examples=3)])
    # Nobody is in debt before anyone was heard: this is FedBuff.
    assert (state.model.tolist(), state.contents.weights) == ([4.5], [0.5, 0.5])
    state = fed(strategy, state, [sent("a", 9, version=1, examples=6)])
    # f = 6, 3 and the mean 4.5 of 13.5; a = 2/5, 2/5, 1/5. In debt: c by 2/15, a by 2/45.
    # f_c + f_a = 7/9 is more than 1/2, so that both are scaled by 9/14.
    assert list(state.rare) == ["c", "a"]
    assert state.rare == pytest.approx({"c": 3 / 14, "a": 4 / 14})
    assert state.factor == pytest.approx({"a": 10 / 9, "b": 5 / 9, "c": 5 / 3})
    state = fed(strategy, state, [sent("b", 3, version=1, examples=3)])
    # v = 5/7 · 3 + 2/7 · 9 = 33/7, which is 11/21 of the 9 that a sent.
    assert state.model == pytest.approx([4.5 + 33 / 7])
    assert state.contents.weights == pytest.approx([5 / 7, 2 / 7])
    assert state.kept["a"].progress == pytest.approx(11 / 21)


def test_common_updates_weigh_by_what_is_wanted_over_how_often_it_comes() -> None:
    """a comes three times, b once, with as many samples: one update of b counts as two of a."""
    strategy = by_samples(4)
    state = begun(strategy, {"a": {"x": 1}, "b": {"x": 1}}, 0)
    state = fed(strategy, state, [sent(client, 0) for client in "aaab"])
    state = fed(strategy, state, [sent("a", 0, version=1)])
    assert state.rare == {"b": pytest.approx(0.5)}  # f = 1/2, a = 2/6
    assert state.factor == pytest.approx({"a": 0.5 / (4 / 6), "b": 0.5 / (2 / 6)})
    assert state.factor["b"] / state.factor["a"] == pytest.approx(2)


@pytest.mark.parametrize(
    ("target", "wanted"),
    [
        ("rarity", [1 / 8] * 4 + [1 / 2]),  # S = 1/4 four times, and 1
        ("samples", [1 / 6] * 4 + [2 / 6]),
        ("mix", [7 / 48] * 4 + [5 / 12]),
    ],
)
def test_what_a_client_should_weigh(target: Any, wanted: list[float]) -> None:
    strategy = Replay(5, select="debt", target=target)
    state = begun(strategy, FIVE, 0)
    heard = [sent(f"c{i}", 1, examples=10) for i in range(4)] + [sent("r", 1, examples=20)]
    state = fed(strategy, state, [*heard, sent("c0", 1, version=1, examples=10)])
    # a = 1/5 for everyone after the first round.
    assert [5 * 0.2 * state.factor[client] for client in FIVE] == pytest.approx(
        [5 * own for own in wanted]
    )
    assert list(state.rare) == ["r"]
    assert strategy.needs.label_evidence == (None if target == "samples" else "declared")


def test_it_is_not_inert_where_every_client_is_as_rare() -> None:
    """Selected by rarity nobody is kept; by debt the ones that arrive seldom are."""
    counts: dict[ClientId, LabelCounts] = {i: {i % 5: 3, "x": 1} for i in range(20)}
    senders = [i % 16 for i in range(80)] + [16, 17, 18, 19] * 2
    for strategy, kept in ((Replay(8), 0), (Replay(8, select="debt"), 4)):
        state = begun(strategy, counts, 0)
        for client in senders:
            state = fed(strategy, state, [sent(client, 1, version=state.version, examples=4)])
        assert sum(client in state.kept for client in (16, 17, 18, 19)) == kept


def test_a_newcomer_begins_with_the_average_share() -> None:
    """Not with the share of a client that was never heard in all that time."""
    strategy = by_samples(1)
    state = begun(strategy, THREE, 0)
    for i in range(300):
        state = fed(strategy, state, [sent("ab"[i % 2], 1, version=state.version)])
    state = fed(strategy, state, [Joined("n", {"x": 1})])
    assert state.factor["n"] == pytest.approx(1)  # f = a = 1/4
    assert state.factor["c"] > 50
    assert list(state.rare) == ["c"]


def test_a_client_that_returns_keeps_its_record() -> None:
    strategy = by_samples(1)
    state = begun(strategy, THREE, 0)
    events: list[Event] = [sent(client, 1) for client in "abcaabca"]
    state = fed(strategy, state, [*events, Left("c")])
    state = fed(strategy, state, [sent("a", 1)] * 50)
    state = fed(strategy, state, [Joined("c", {"x": 1})])
    # Two of the eight arrivals while it was a member: (2 + 1) / (8 + 3).
    assert state.participation.share("c", 3) == pytest.approx(3 / 11)


def test_what_a_client_that_left_sent_acts_until_its_place_is_needed() -> None:
    strategy = by_samples(2)
    state = begun(strategy, THREE, 0, 0)
    state = fed(strategy, state, [*(sent(client, 1, 0) for client in "aabba"), sent("c", 0, 8)])
    assert "c" in state.kept
    state = fed(strategy, state, [Left("c")])
    assert "c" in state.kept, "a and b do not fill both places"
    before = state.kept["c"].progress
    state = fed(strategy, state, [sent("a", 0, 0), sent("a", 0, 0)])
    assert state.kept["c"].progress > before
    state = fed(strategy, state, [Joined("n", {"x": 1}), Joined("m", {"x": 1})])
    state = fed(strategy, state, [sent("a", 1, 0)] * 5)
    assert "c" not in state.kept


def test_labels_that_updates_show_decide_what_a_client_should_weigh() -> None:
    strategy = On(
        TWO_OUTPUTS,
        Replay(5, select="debt", target="rarity", labels="inferred", classes=("x", "y")),
    )
    state = begun(strategy, FIVE, *LEVELS)
    assert state.rare == {}, "before any update all are alike, whatever they declare"
    for version in range(3):
        common: list[Arrived] = [showing(f"c{i}", 0.5, -0.5, version) for i in range(4)]
        state = fed(strategy, state, [*common, showing("r", -0.5, 0.5, version)])
    assert list(state.rare) == ["r"]


def test_without_release_a_kept_update_acts_with_its_whole_weight() -> None:
    strategy = Replay(1, release=False)
    state = fed(strategy, begun(strategy, FIVE, 0), [sent("r", 8)])
    for step in range(1, 6):
        assert state.model == pytest.approx([4 * step])  # W = 1/2 of 8, every time
        state = fed(strategy, state, [sent("c0", 0, version=state.version)])


def test_the_named_variant_takes_any_target() -> None:
    method = CATALOG["fedraw-replay-debt"]
    assert (
        method.make() == Replay(select="debt", target="mix") and method.base.name == "fedraw-replay"
    )
    assert method.make({"target": "samples"}) == Replay(select="debt", target="samples")
    with pytest.raises(BadInput, match="select = 'rarity' contradicts"):
        method.make({"select": "rarity"})


def test_with_samples_data_need_no_labels() -> None:
    """A regression: other targets are refused, because they go by labels."""
    rng = np.random.default_rng(0)
    inputs, targets = rng.normal(size=(60, 3)).astype(np.float32), rng.normal(size=60)
    settings: dict[str, Any] = {
        "data": (inputs, targets.astype(np.float32)),
        "partition": fedraw.IID(clients=4),
        "train": "none",
        "events": 30,
        "seeds": [1],
    }
    result = fedraw.simulate(strategy=by_samples(3), **settings)
    assert result.finished and result.name == "fedraw-replay-debt"
    with pytest.raises(BadInput, match="label"):
        fedraw.simulate(strategy=Replay(3, select="debt"), **settings)
