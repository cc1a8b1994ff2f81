from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.strategies.server import COUNTS, On, Server, begun, fed, sent

from fedraw.core.labels import LabelTable
from fedraw.core.layout import Layout
from fedraw.core.types import ClientId, LabelCounts
from fedraw.errors import BadInput
from fedraw.strategies.fedfa import FedFa
from fedraw.strategies.fedraw import FedRAW
from fedraw.strategies.protocol import Declared, Event, Joined, Left, Needs, Setup

# x is held by two and y by one: the scores are 1/2, 1/2 and 1.
TWO_AND_ONE: dict[ClientId, LabelCounts] = {"a": {"x": 1}, "b": {"x": 1}, "c": {"y": 1}}


def test_no_model_before_the_buffer_first_holds_k_clients() -> None:
    strategy = FedRAW(2)
    state = fed(strategy, begun(strategy, TWO_AND_ONE, 9), [sent("a", 1), sent("a", 2)])
    assert (state.version, state.model.tolist()) == (0, [9])
    assert state.contents == (["a"], ())


def test_each_slot_weighs_by_its_clients_rarity() -> None:
    strategy = FedRAW(2)
    state = fed(strategy, begun(strategy, TWO_AND_ONE, 9), [sent("a", 1), sent("c", 4)])
    assert state.model.tolist() == [(0.5 * 1 + 1 * 4) / 1.5]
    assert state.contents == (["a", "c"], [1 / 3, 2 / 3])


def test_every_later_arrival_aggregates_in_place_replacement_included() -> None:
    strategy = FedRAW(2)
    state = begun(strategy, TWO_AND_ONE, 9)
    models = []
    for event in [sent("a", 1), sent("c", 4), sent("c", 7), sent("a", 4), sent("b", 4)]:
        state, receivers = strategy.step(state, event)
        models.append((state.version, float(state.model[0])))
        assert receivers == [event.update.client]
    # Last, b pushes out a, who came first although its update is the newest: (1 * 7 + .5 * 4)/1.5.
    assert models == [(0, 9), (1, 3), (2, 5), (3, 6), (4, 6)]
    assert state.contents.clients == ["c", "b"]


def test_weight_only_counts_a_client_in_two_slots_twice() -> None:
    strategy = FedRAW(3, dedup=False)
    events = [sent("a", 1), sent("c", 2), sent("c", 5)]
    state = fed(strategy, begun(strategy, TWO_AND_ONE, 0), events)
    assert state.model.tolist() == pytest.approx([(0.5 * 1 + 2 + 5) / 2.5])
    assert state.contents == (["a", "c", "c"], [0.2, 0.4, 0.4])


def test_dedup_only_is_the_plain_mean_of_the_slots() -> None:
    strategy = FedRAW(2, weighting="uniform")
    events = [sent("a", 1), sent("c", 4), sent("c", 7)]
    assert fed(strategy, begun(strategy, TWO_AND_ONE, 0), events).model.tolist() == [4]


def same_models(one: Server, other: Server) -> None:
    for model, same in zip(one.run(120), other.run(120), strict=True):
        assert model == pytest.approx(same, rel=1e-6, abs=1e-6)
        assert one.state.contents.clients == other.state.contents.clients


def test_without_dedup_and_rarity_it_is_fedfa() -> None:
    same_models(Server(FedRAW(4, dedup=False, weighting="uniform")), Server(FedFa(4)))


def test_where_all_labels_are_held_by_as_many_it_is_dedup_only() -> None:
    flat: dict[ClientId, LabelCounts] = {i: {i % 3: 1 + i, 3 + i % 3: 2} for i in range(6)}
    assert set(LabelTable.from_counts(flat).coverage().tolist()) == {2}
    same_models(Server(FedRAW(4), flat), Server(FedRAW(4, weighting="uniform"), flat))


def liar_and_nine() -> dict[ClientId, LabelCounts]:
    """Scores 1/2 and nine times 1/20: a label of two, and one of 20 clients."""
    common: dict[ClientId, LabelCounts] = {i: {"common": 1} for i in range(20)}
    return {"one": {"scarce": 1}, "two": {"scarce": 1}, **common}


@pytest.mark.parametrize(
    ("strategy", "largest", "others"),
    [
        (FedRAW(10), 0.5263, 0.0526),
        (FedRAW(10, cap="naive", cap_at=0.3), 0.3878, 0.0680),
        (FedRAW(10, cap="water-filling", cap_at=0.3), 0.3, 0.0778),
    ],
)
def test_a_cap_holds_a_single_client_down(strategy: FedRAW, largest: float, others: float) -> None:
    events = [sent("one", 1), *(sent(i, 0) for i in range(9))]
    state = fed(strategy, begun(strategy, liar_and_nine(), 0), events)
    assert state.contents.weights == pytest.approx([largest] + [others] * 9, abs=1e-4)
    assert state.model.tolist() == pytest.approx([largest], abs=1e-4)


def test_a_client_pushed_out_gives_its_weight_back_to_the_capped() -> None:
    strategy = FedRAW(10, cap="water-filling", cap_at=0.3)
    events = [sent("one", 1), *(sent(i, 0) for i in range(9)), sent(9, 0), sent("two", 2)]
    state = fed(strategy, begun(strategy, liar_and_nine(), 0), events)
    assert state.contents.clients == [*range(1, 10), "two"]
    assert state.model.tolist() == pytest.approx([0.6])


def test_new_labels_count_from_the_next_arrival_on() -> None:
    strategy = FedRAW(2)
    state = fed(strategy, begun(strategy, TWO_AND_ONE, 0), [sent("a", 1), sent("c", 4)])
    state = fed(strategy, state, [Declared("b", {"y": 1})])
    assert state.model.tolist() == [3]
    # Now a alone holds x and c shares y: 1 and 1/2.
    state = fed(strategy, state, [sent("c", 4)])
    assert state.contents.weights == pytest.approx([2 / 3, 1 / 3])
    assert state.model.tolist() == pytest.approx([2])


def test_a_leaver_keeps_its_last_score_in_the_buffer() -> None:
    strategy = FedRAW(2)
    state = fed(strategy, begun(strategy, TWO_AND_ONE, 0), [sent("a", 1), Left("a"), sent("c", 4)])
    assert state.contents == (["a", "c"], [1 / 3, 2 / 3])
    state = fed(strategy, state, [sent("b", 0)])  # b is now x's only holder
    assert state.contents == (["c", "b"], [1 / 2, 1 / 2])


def test_a_client_that_comes_back_takes_its_old_slot() -> None:
    strategy = FedRAW(2)
    events: list[Event] = [
        sent("a", 1),
        sent("c", 4),
        Left("a"),
        Joined("a", {"y": 1}),
        sent("a", 2),
    ]
    state = fed(strategy, begun(strategy, TWO_AND_ONE, 0), events)
    assert state.contents == (["a", "c"], [1 / 2, 1 / 2])
    assert state.model.tolist() == [3]


def test_inferred_labels_are_read_against_the_version_that_an_update_started_from() -> None:
    layout = Layout.of([("fc.weight", (2, 1)), ("fc.bias", (2,))])
    strategy = On(layout, FedRAW(2, labels="inferred", classes=("x", "y")))
    state = begun(strategy, TWO_AND_ONE, 0, 0, 0, 0)
    state = fed(strategy, state, [sent("a", 0, 0, 4, -4), sent("c", 0, 0, -4, 4)])
    assert (state.version, state.model.tolist()) == (1, [0, 0, 0, 0])
    state = fed(strategy, state, [sent("a", 0, 0, 4, -4, version=1)])
    assert (state.version, state.model.tolist()) == (2, [0, 0, 0, 0])
    # Version 2 is known as well: c raises x, by a little, from there.
    state = fed(strategy, state, [sent("c", 0, 0, 1, -4, version=2)])
    heard = state.scorer.evidence
    assert {client: own.updates for client, own in heard.items()} == {"a": 2, "c": 2}
    assert heard["c"].risen.tolist() == [1, 1]


def test_a_buffer_may_have_a_slot_for_every_client() -> None:
    assert begun(FedRAW(6), COUNTS, 0).version == 0


THREE: dict[ClientId, LabelCounts] = {"a": {"x": 1}, "b": {"x": 1}, "c": {"y": 1}}


def filled() -> Any:
    """A buffer of three with a slot for each of three clients: S = 1/2, 1/2 and 1."""
    strategy = FedRAW(3)
    return fed(strategy, begun(strategy, THREE, 0), [sent("c", 7), sent("a", 1), sent("b", 1)])


def test_with_fewer_members_than_places_a_leaver_is_evicted_after_k_arrivals() -> None:
    strategy, state = FedRAW(3), filled()
    assert state.model.tolist() == [4]  # (1 · 7 + 1/2 + 1/2) / 2
    state = fed(strategy, state, [Left("c"), sent("a", 1), sent("b", 1)])
    assert state.contents.clients == ["c", "a", "b"]
    state = fed(strategy, state, [sent("a", 1)])
    assert state.contents == (["a", "b"], [1 / 2, 1 / 2])
    assert state.model.tolist() == [1]
    state = fed(strategy, state, [sent("b", 2)])
    assert (state.version, state.model.tolist()) == (5, [1.5])


def test_to_join_again_cancels_the_countdown() -> None:
    strategy, state = FedRAW(3), filled()
    state = fed(strategy, state, [Left("c"), sent("a", 1), sent("b", 1)])
    state = fed(strategy, state, [Joined("c", {"y": 1}), sent("a", 1), sent("b", 1), sent("a", 1)])
    assert state.contents.clients == ["c", "a", "b"]
    state = fed(strategy, state, [Left("c"), Joined("c", {"y": 1}), Left("c")])
    state = fed(strategy, state, [sent("a", 1), sent("b", 1)])
    assert state.contents.clients == ["c", "a", "b"]
    assert fed(strategy, state, [sent("a", 1)]).contents.clients == ["a", "b"]


def test_arrivals_before_too_few_remain_count_towards_the_eviction() -> None:
    strategy = FedRAW(2)
    state = fed(strategy, begun(strategy, THREE, 0), [sent("c", 7), sent("a", 1), Left("c")])
    state = fed(strategy, state, [sent("a", 1), sent("a", 1)])
    assert state.contents.clients == ["c", "a"], "two members for two places: evicted by age"
    state = fed(strategy, state, [Left("b"), sent("a", 1)])
    assert state.contents == (["a"], [1])


def test_a_newcomer_without_an_update_does_not_stop_the_model() -> None:
    strategy, state = FedRAW(3), filled()
    state = fed(strategy, state, [Left("c"), sent("a", 1), sent("b", 1), sent("a", 1)])
    state = fed(strategy, state, [Joined("new", {"z": 1}), sent("a", 5)])
    assert state.contents.clients == ["a", "b"]
    assert state.model.tolist() == [3]


def test_a_departed_slot_whose_time_is_over_makes_room_before_a_members_slot_does() -> None:
    four: dict[ClientId, LabelCounts] = {**THREE, "d": {"x": 1}}
    strategy = FedRAW(3, weighting="uniform")
    state = begun(strategy, four, 0)
    events: list[Event] = [sent("a", 1), sent("b", 1), sent("c", 7), Left("c"), Left("b")]
    state = fed(strategy, state, [*events, sent("a", 1), sent("a", 1), sent("d", 4)])
    assert state.contents.clients == ["a", "d"]


def test_a_cap_that_few_slots_cannot_meet_gives_them_equal_weights() -> None:
    strategy = FedRAW(3, cap="water-filling", cap_at=0.4)
    state = fed(strategy, begun(strategy, THREE, 0), [sent("c", 7), sent("a", 1), sent("b", 1)])
    state = fed(strategy, state, [Left("b"), *[sent("a", 1)] * 3])
    assert state.contents == (["c", "a"], [1 / 2, 1 / 2])
    assert state.model.tolist() == [4]


def test_weights_follow_scores_through_a_random_run() -> None:
    server = Server(FedRAW(4))
    for _ in range(200):
        server.arrive_any()
        clients, weights = server.state.contents
        if weights:
            scores = np.array([server.state.federation.score(client) for client in clients])
            assert weights == pytest.approx(scores / scores.sum())
            assert len(set(clients)) == 4


def test_a_buffer_of_more_slots_than_clients_never_fills() -> None:
    with pytest.raises(BadInput, match=r"buffer = 7 never fills.*6 clients; use at most 6, or ded"):
        FedRAW(7).start(Setup(np.zeros(1, np.float32), LabelTable.from_counts(COUNTS)))
    assert begun(FedRAW(7, dedup=False), COUNTS, 0).version == 0


@pytest.mark.parametrize(
    ("strategy", "needs"),
    [
        (FedRAW(3), Needs(min_clients=3, label_evidence="declared")),
        (FedRAW(3, dedup=False), Needs(min_clients=1, label_evidence="declared")),
        (FedRAW(3, weighting="uniform"), Needs(min_clients=3)),
        (
            FedRAW(3, weighting="uniform", labels="inferred"),
            Needs(min_clients=3, label_evidence="inferred"),
        ),
    ],
)
def test_what_it_needs(strategy: FedRAW, needs: Needs) -> None:
    assert strategy.needs == needs
