"""Scores from updates, and claims held against them."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fedraw.core.federation import Federation
from fedraw.core.labels import LabelTable
from fedraw.core.layout import Layout
from fedraw.core.types import LabelCounts
from fedraw.core.update import Update
from fedraw.core.witness import CLAIM_ODDS, LEAST, Cleared, Doubt, Labels, Witness
from fedraw.disk.snapshot import Arrays, pack, unpack

LAYOUT = Layout.of([("fc.weight", (3, 1)), ("fc.bias", (3,))])
CLASSES = ("x", "y", "z")
START = np.zeros(6, np.float32)


def begun(mode: Labels, counts: dict[str, LabelCounts]) -> tuple[Witness, Federation]:
    federation = Federation.of(LabelTable.from_counts(counts))
    return Witness.of(mode, CLASSES, START, LAYOUT), federation


def says(witness: Witness, federation: Federation, client: str, *change: float) -> float:
    """The score of a client after an update that changes the output biases so."""
    vector = np.array([0, 0, 0, *change], np.float32)
    witness.hear(Update(client, 0, vector, 1), LAYOUT, federation, sends_delta=False)
    return witness.scores([client], federation)[0]


COUNTS: dict[str, LabelCounts] = {"a": {"x": 3, "y": 1}, "b": {"x": 1}, "c": {"x": 1}}
LYING: dict[str, LabelCounts] = {**COUNTS, "liar": {"x": 1, "z": 9}}


def test_inferred_scores_by_hand() -> None:
    """Shares of the rises over the expected number of clients heard to hold each label."""
    witness, federation = begun("inferred", COUNTS)
    assert witness.scores(["a"], federation) == [1.0], "nobody was heard yet"
    assert says(witness, federation, "a", 0.3, 0.1, -0.4) == pytest.approx(1.0)
    sure = 0.75 / 0.7501
    assert says(witness, federation, "b", 0.5, -0.1, -0.4) == pytest.approx(1 / (2 * sure))
    assert witness.scores(["a"], federation)[0] == pytest.approx(0.75 / (2 * sure) + 0.25), (
        "b holds x too"
    )
    assert witness.scores(["c"], federation)[0] == pytest.approx(
        np.mean(witness.scores(["a", "b"], federation))
    )


def test_what_was_inferred_can_be_told() -> None:
    witness, federation = begun("inferred", COUNTS)
    says(witness, federation, "a", 0.3, 0.1, -0.4)
    says(witness, federation, "b", 0.3, -0.1, -0.4)
    coverage, holders = witness.inferred()
    assert coverage == {"x": pytest.approx(2, abs=0.01), "y": pytest.approx(1, abs=0.01), "z": 0}
    assert list(holders.items()) == [("y", ["a"]), ("x", ["a", "b"])], "the rarest first"


def test_a_score_that_changes_little_is_told_as_before() -> None:
    counts: dict[str, LabelCounts] = {str(i): {"x": 1} for i in range(40)}
    witness, federation = begun("inferred", counts)
    told = []
    for i in range(40):
        says(witness, federation, str(i), 0.5, -0.1, -0.4)
        told.append(witness.scores(["0"], federation)[0])
    assert len(set(told)) < 25
    assert told[-1] == pytest.approx(1 / 40, rel=0.11)


def test_an_update_is_read_against_the_model_it_started_from() -> None:
    witness, federation = begun("inferred", COUNTS)
    witness.handed(7, np.array([0, 0, 0, 0.5, 0, 0], np.float32), LAYOUT)
    late = Update("a", 7, np.array([0, 0, 0, 0.4, 0.1, 0], np.float32), 1)
    witness.hear(late, LAYOUT, federation, sends_delta=False)
    assert witness.evidence.heard["a"].risen.tolist() == [0, 1, 0]
    forgotten = Update("a", 5, late.vector, 1)
    witness.hear(forgotten, LAYOUT, federation, sends_delta=False)
    assert witness.evidence.heard["a"].updates == 1


def test_a_difference_speaks_for_itself() -> None:
    witness, federation = begun("inferred", COUNTS)
    delta = Update("a", 999_999, np.array([0, 0, 0, 0.4, -0.1, 0], np.float32), 1)
    witness.hear(delta, LAYOUT, federation, sends_delta=True)
    assert witness.evidence.heard["a"].risen.tolist() == [1, 0, 0]


def test_honest_claims_are_scored_as_declared() -> None:
    witness, federation = begun("checked", COUNTS)
    for _ in range(30):
        score = says(witness, federation, "a", 0.3, 0.1, -0.4)
    assert score == pytest.approx(federation.score("a"))
    assert witness.take_news() == []


def test_a_lie_is_believed_until_silence_outweighs_the_benefit_of_the_doubt() -> None:
    witness, federation = begun("checked", LYING)
    believed = 0
    while not witness.take_news():
        believed += 1
        score = says(witness, federation, "liar", 0.5, -0.1, -0.4)
        assert believed < 60
    assert witness.doubted == {"liar": ["z"]}
    assert CLAIM_ODDS * witness.evidence.heard["liar"].excuse[2] < 1
    for _ in range(200):
        score = says(witness, federation, "liar", 0.5, -0.1, -0.4)
    assert score == pytest.approx(0.1 / 4, rel=0.15), "what is true of the claim stays"


def test_a_claim_that_is_not_believed_leaves_the_labels_coverage() -> None:
    """z is held by one and claimed by two: once the lie is found out, its holder is alone again."""
    witness, federation = begun("checked", {**LYING, "holder": {"z": 1}})
    assert federation.score("holder") == 1 / 2
    for _ in range(200):
        says(witness, federation, "liar", 0.5, -0.1, -0.4)
    assert says(witness, federation, "holder", -0.2, -0.1, 0.3) == pytest.approx(1, rel=0.01)


def test_a_claim_that_is_exaggerated_stays_in_the_labels_coverage() -> None:
    """The liar holds a little of z: two hold it, however little of the claim is believed."""
    witness, federation = begun("checked", {**LYING, "holder": {"z": 1}})
    for _ in range(20):
        says(witness, federation, "liar", 0.99, -0.5, 0.01)
    assert says(witness, federation, "holder", -0.2, -0.1, 0.3) == pytest.approx(1 / 2)


@pytest.mark.parametrize(("share", "told"), [(9, False), (12, True)])
def test_a_doubt_is_told_if_it_is_about_a_tenth_of_the_data_or_more(share: int, told: bool) -> None:
    counts: dict[str, LabelCounts] = {**COUNTS, "liar": {"x": 100 - share, "z": share}}
    witness, federation = begun("checked", counts)
    for _ in range(200):
        says(witness, federation, "liar", 0.5, -0.1, -0.4)
    assert bool(witness.take_news()) == told


@pytest.mark.parametrize(("shown", "told"), [(0.05, False), (0.02, True)])
def test_of_a_label_that_is_held_half_of_the_data_has_to_be_in_doubt(
    shown: float, told: bool
) -> None:
    """60 % are claimed, and three times what is shown is believed: 45 or 54 % are in doubt."""
    witness, federation = begun("checked", {**COUNTS, "liar": {"x": 4, "z": 6}})
    for _ in range(20):
        says(witness, federation, "liar", 1 - shown, -0.5, shown)
    assert bool(witness.take_news()) == told


def test_the_first_score_may_be_as_small_as_it_is() -> None:
    """Nobody else has a score yet, beside which it could be too small."""
    counts: dict[str, LabelCounts] = {str(i): {"x": 1} for i in range(2000)}
    witness, federation = begun("checked", counts)
    assert says(witness, federation, "0", 0.5, -0.1, -0.4) == pytest.approx(1 / 2000)


def test_a_restored_witness_keeps_the_least_score() -> None:
    """`told` is restored; how large a score ever was follows from it."""
    witness, federation = begun("checked", {"a": {"x": 1}, "liar": {"y": 1}})
    says(witness, federation, "a", 0.3, -0.1, -0.4)
    own = 1.0
    while own > LEAST / 4:  # what it is worth by itself; in the mean a and the liar have 1/2
        least = says(witness, federation, "liar", -0.1, -0.1, -0.1)
        own = float(witness.shares["liar"].sum())
    assert LEAST**2 < own < least == pytest.approx(LEAST / 2, rel=0.2)
    arrays = Arrays()
    restored: Witness = unpack(Witness, json.loads(json.dumps(pack(witness, arrays))), arrays)
    assert restored.scores(["liar"], federation) == [least]


def test_news_are_told_once() -> None:
    witness, federation = begun("checked", LYING)
    told = []
    for _ in range(100):
        says(witness, federation, "liar", 0.5, -0.1, -0.4)
        told += witness.take_news()
    (doubt,) = told
    assert isinstance(doubt, Doubt)
    assert (doubt.client, doubt.label, doubt.claimed) == ("liar", "z", 0.9)
    assert doubt.presence < 0.1


def test_a_claimed_share_is_bounded_by_what_the_updates_show() -> None:
    """A liar that lifts the label a little in every update: 1 % of its rises, 90 % of its claim."""
    witness, federation = begun("checked", LYING)
    for _ in range(20):
        score = says(witness, federation, "liar", 0.99, -0.5, 0.01)
    assert score == pytest.approx(0.1 / 4 + 3 * 0.01 / 1, rel=0.05)
    assert witness.doubted == {"liar": ["z"]}


def test_a_label_that_is_hidden_counts_all_the_same() -> None:
    counts: dict[str, LabelCounts] = {"a": {"x": 3}, "b": {"x": 1, "y": 1}}
    witness, federation = begun("checked", counts)
    says(witness, federation, "a", 0.3, 0.1, -0.4)
    score = says(witness, federation, "a", 0.3, 0.1, -0.4)
    assert score == pytest.approx(1 / 2 + 0.25 / 2), "x: two claim it; y: one, and this one"
    assert witness.doubted == {"a": ["y"]}


def test_a_label_without_an_output_counts_for_nothing() -> None:
    witness, federation = begun("checked", {**COUNTS, "liar": {"x": 1, "unicorn": 9}})
    score = says(witness, federation, "liar", 0.5, -0.1, -0.4)
    assert score == pytest.approx(0.1 / 4)
    assert witness.doubted == {"liar": ["unicorn"]}


def test_who_leaves_takes_its_labels_along_and_leaves_its_score() -> None:
    witness, federation = begun("inferred", COUNTS)
    score = says(witness, federation, "a", 0.3, 0.1, -0.4)
    says(witness, federation, "b", 0.3, -0.1, -0.4)
    witness.forget("a")
    assert witness.holders[1] == 0
    assert witness.scores(["a"], federation) == [score]


def test_who_leaves_and_joins_again_is_no_stranger() -> None:
    """A liar that comes and goes is found out all the same, and told of again."""
    witness, federation = begun("checked", LYING)
    for _ in range(4):
        says(witness, federation, "liar", 0.5, -0.1, -0.4)
    witness.forget("liar")
    federation.leave("liar")
    federation.join("liar", LYING["liar"])
    last = witness.told["liar"]
    assert witness.scores(["liar"], federation) == [last], "not what it claims anew"
    for _ in range(4):
        says(witness, federation, "liar", 0.5, -0.1, -0.4)
    assert witness.doubted == {"liar": ["z"]}
    assert len(witness.take_news()) == 1


def test_a_doubt_that_turns_out_wrong_is_withdrawn() -> None:
    witness, federation = begun("checked", LYING)
    for _ in range(8):
        says(witness, federation, "liar", 0.5, -0.1, -0.4)
    assert [type(news) for news in witness.take_news()] == [Doubt]
    for _ in range(5):
        says(witness, federation, "liar", 0.05, -0.1, 0.45)
    (cleared,) = witness.take_news()
    assert isinstance(cleared, Cleared)
    assert cleared[:2] == ("liar", "z")
    assert cleared.presence == pytest.approx(1, abs=1e-3)
    assert witness.doubted == {}


def test_labels_by_number_are_the_outputs_of_that_number() -> None:
    federation = Federation.of(LabelTable.from_counts({"a": {0: 1, 2: 1}, "b": {"1": 1}}))
    witness = Witness.of("checked", ("0", "1", "2"), START, LAYOUT)
    assert says(witness, federation, "a", 0.1, -0.2, 0.1) == federation.score("a")
    assert says(witness, federation, "b", -0.1, 0.2, -0.1) == federation.score("b")
    assert witness.doubted == {}


@pytest.mark.parametrize("mode", ["inferred", "checked"])
def test_nobody_weighs_nothing(mode: Labels) -> None:
    """An update that raises no output says nothing; a client that only lies keeps a trifle."""
    witness, federation = begun(mode, {"a": {"x": 1}, "b": {"y": 1}, "c": {"x": 1}})
    for _ in range(300):
        for client in "ab":
            says(witness, federation, client, 0.0, 0.0, -0.1)
    assert all(score > 0 for score in witness.scores(["a", "b", "c"], federation))


def test_who_was_not_heard_yet_is_taken_at_its_word_where_claims_are_checked() -> None:
    witness, federation = begun("checked", COUNTS)
    says(witness, federation, "a", 0.3, 0.1, -0.4)
    assert witness.scores(["b", "c"], federation) == federation.scores(["b", "c"])
