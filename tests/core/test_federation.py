from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.histograms import Counts, client_ids, federations, histograms, score_by_hand

from fedraw.core.federation import Federation
from fedraw.core.labels import LabelTable
from fedraw.core.rarity import rarity_scores
from fedraw.core.types import ClientId, LabelCounts
from fedraw.errors import BadInput


def two_cats() -> Federation:
    return Federation.of(LabelTable.from_counts({"a": {"cat": 1}, "b": {"cat": 3}}))


def test_members_score_as_in_the_table_to_the_bit() -> None:
    table = LabelTable.from_counts(
        {i: {j: 1 + (i * j) % 7 for j in range(i, i + 30)} for i in range(20)}
    )
    members = Federation.of(table)
    assert [members.score(client) for client in members] == rarity_scores(table).tolist()


def test_a_newcomer_makes_shared_labels_more_common() -> None:
    members = two_cats()
    assert members.score("a") == 1 / 2
    members.join("c", {"cat": 1, "dog": 3})
    assert members.score("a") == 1 / 3
    assert members.score("c") == pytest.approx(1 / 4 / 3 + 3 / 4)
    assert list(members) == ["a", "b", "c"]


def test_a_leaver_makes_its_labels_rarer_and_keeps_its_last_score() -> None:
    members = two_cats()
    members.leave("b")
    assert "b" not in members
    assert members.score("a") == 1
    assert members.score("b") == 1 / 2
    members.join("c", {"cat": 1})
    assert members.score("b") == 1 / 2


def test_declaring_replaces_what_was_reported() -> None:
    members = two_cats()
    members.declare("b", {"dog": 1})
    assert (members.score("a"), members.score("b")) == (1, 1)
    members.declare("b", {"dog": 1, "cat": 1})
    assert (members.score("a"), members.score("b")) == (1 / 2, 1 / 4 + 1 / 2)
    assert len(members) == 2


def test_a_rejoin_scores_by_its_new_labels() -> None:
    members = two_cats()
    members.leave("b")
    members.join("b", {"dog": 1})
    assert (members.score("a"), members.score("b")) == (1, 1)


def test_everyone_may_leave_and_someone_come_again() -> None:
    members = two_cats()
    members.leave("a")
    members.leave("b")
    assert len(members) == 0
    members.join("c", {"cat": 1})
    assert members.score("c") == 1


def test_a_client_that_has_left_cannot_leave_again() -> None:
    federation = Federation.of(LabelTable.from_counts({"a": {"cat": 1}, "b": {"cat": 3}}))
    federation.leave("a")
    with pytest.raises(BadInput, match="client 'a' is not a member of the federation"):
        federation.leave("a")
    assert federation.coverage.tolist() == [1]


def test_changing_a_federation_leaves_its_table_alone() -> None:
    table = LabelTable.from_counts({"a": {"cat": 1}, "b": {"cat": 3}})
    Federation.of(table).leave("a")
    assert table.coverage().tolist() == [2]
    assert list(Federation.of(table)) == ["a", "b"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda m: m.join("a", {"cat": 1}), "client 'a' is a member already; declare its new"),
        (lambda m: m.leave("z"), "client 'z' is not a member of the federation; it has to join"),
        (lambda m: m.declare("z", {"cat": 1}), "client 'z' is not a member"),
        (lambda m: m.score("z"), "client 'z' is not a member"),
        (lambda m: m.join("c", {}), "client 'c' reports no labels"),
        (lambda m: m.join("c", {"new": 0}), "client 'c' reports no labels"),
        (lambda m: m.join("c", {"cat": 1, "new": True}), "client 'c', label 'new': count True is"),
        (lambda m: m.declare("a", {"cat": 1, "new": -1}), "client 'a', label 'new': count -1 is"),
    ],
)
def test_a_refused_change_changes_nothing(change: Any, words: str) -> None:
    members = two_cats()
    with pytest.raises(BadInput, match=words):
        change(members)
    assert list(members) == ["a", "b"]
    assert members.labels == ["cat"]
    assert [members.score("a"), members.score("b")] == [1 / 2, 1 / 2]


changes = st.lists(st.tuples(client_ids, st.one_of(st.none(), histograms)), max_size=25)


@settings(deadline=None)
@given(federations, changes)
def test_after_any_changes_scores_are_those_of_a_table_built_anew(
    counts: Counts, events: list[tuple[ClientId, LabelCounts | None]]
) -> None:
    members = Federation.of(LabelTable.from_counts(counts))
    present, departed = dict(counts), dict[ClientId, float]()
    for client, told in events:
        if client not in present:
            if told is None:
                continue
            members.join(client, told)
            departed.pop(client, None)
        elif told is None:
            departed[client] = members.score(client)
            members.leave(client)
        else:
            members.declare(client, told)
        if told is None:
            del present[client]
        else:
            present[client] = told
        assert set(members) == set(present)
        for member in present:
            assert members.score(member) == pytest.approx(score_by_hand(member, present), rel=1e-12)
        for gone, last in departed.items():
            assert members.score(gone) == last
