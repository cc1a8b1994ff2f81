"""Scores from updates, and claims held against them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from fedraw.core.labels import LabelTable
from fedraw.core.layout import Layout
from fedraw.core.types import Cleared, Doubt, Finding, LabelCounts
from fedraw.core.update import Update
from fedraw.storage.snapshot import Arrays, pack, unpack
from fedraw.strategies.protocol import Setup
from fedraw.strategies.scoring import EvidenceScorer, LabelEvidence, make_scorer
from fedraw.strategies.scoring.checked import CLAIM_ODDS, CheckedRule
from fedraw.strategies.scoring.scorer import LEAST

LAYOUT = Layout.of([("fc.weight", (3, 1)), ("fc.bias", (3,))])
CLASSES = ("x", "y", "z")
START = np.zeros(6, np.float32)


def begun(
    mode: LabelEvidence,
    counts: Mapping[str, LabelCounts],
    classes: Sequence[str] = CLASSES,
    *,
    sends_delta: bool = False,
) -> EvidenceScorer:
    setup = Setup(START, LabelTable.from_counts(counts), LAYOUT, classes)
    scorer = make_scorer(mode, setup, sends_delta=sends_delta)
    assert isinstance(scorer, EvidenceScorer)
    return scorer


def says(scorer: EvidenceScorer, client: str, *change: float) -> float:
    """The score of a client after an update that changes the output biases so."""
    vector = np.array([0, 0, 0, *change], np.float32)
    scorer.observe(Update(client, 0, vector, 1))
    return scorer.scores([client])[0]


def doubted(scorer: EvidenceScorer) -> dict[Any, Any]:
    assert isinstance(scorer.rule, CheckedRule)
    return scorer.rule.doubted


COUNTS: dict[str, LabelCounts] = {"a": {"x": 3, "y": 1}, "b": {"x": 1}, "c": {"x": 1}}
LYING: dict[str, LabelCounts] = {**COUNTS, "liar": {"x": 1, "z": 9}}


def test_inferred_scores_by_hand() -> None:
    """Shares of the rises over the expected number of clients heard to hold each label."""
    scorer = begun("inferred", COUNTS)
    assert scorer.scores(["a"]) == [1.0], "nobody was heard yet"
    assert says(scorer, "a", 0.3, 0.1, -0.4) == pytest.approx(1.0)
    sure = 0.75 / 0.7501
    assert says(scorer, "b", 0.5, -0.1, -0.4) == pytest.approx(1 / (2 * sure))
    assert scorer.scores(["a"])[0] == pytest.approx(0.75 / (2 * sure) + 0.25), "b holds x too"
    assert scorer.scores(["c"])[0] == pytest.approx(np.mean(scorer.scores(["a", "b"])))


def test_what_was_inferred_can_be_told() -> None:
    scorer = begun("inferred", COUNTS)
    says(scorer, "a", 0.3, 0.1, -0.4)
    says(scorer, "b", 0.3, -0.1, -0.4)
    inferred = scorer.inferred_labels()
    assert inferred is not None
    coverage, holders = inferred
    assert coverage == {"x": pytest.approx(2, abs=0.01), "y": pytest.approx(1, abs=0.01), "z": 0}
    assert list(holders.items()) == [("y", ["a"]), ("x", ["a", "b"])], "the rarest first"


def test_a_score_that_changes_little_is_told_as_before() -> None:
    counts: dict[str, LabelCounts] = {str(i): {"x": 1} for i in range(40)}
    scorer = begun("inferred", counts)
    told = []
    for i in range(40):
        says(scorer, str(i), 0.5, -0.1, -0.4)
        told.append(scorer.scores(["0"])[0])
    assert len(set(told)) < 25
    assert told[-1] == pytest.approx(1 / 40, rel=0.11)


def test_an_update_is_read_against_the_model_it_started_from() -> None:
    scorer = begun("inferred", COUNTS)
    scorer.model_changed(7, np.array([0, 0, 0, 0.5, 0, 0], np.float32))
    late = Update("a", 7, np.array([0, 0, 0, 0.4, 0.1, 0], np.float32), 1)
    scorer.observe(late)
    assert scorer.evidence["a"].risen.tolist() == [0, 1, 0]
    forgotten = Update("a", 5, late.vector, 1)
    scorer.observe(forgotten)
    assert scorer.evidence["a"].updates == 1


def test_a_difference_speaks_for_itself() -> None:
    scorer = begun("inferred", COUNTS, sends_delta=True)
    delta = Update("a", 999_999, np.array([0, 0, 0, 0.4, -0.1, 0], np.float32), 1)
    scorer.observe(delta)
    assert scorer.evidence["a"].risen.tolist() == [1, 0, 0]


def test_honest_claims_are_scored_as_declared() -> None:
    scorer = begun("checked", COUNTS)
    for _ in range(30):
        score = says(scorer, "a", 0.3, 0.1, -0.4)
    assert score == pytest.approx(scorer.federation.score("a"))
    assert scorer.drain_findings() == []


def test_a_lie_is_believed_until_silence_outweighs_the_benefit_of_the_doubt() -> None:
    scorer = begun("checked", LYING)
    believed = 0
    while not scorer.drain_findings():
        believed += 1
        score = says(scorer, "liar", 0.5, -0.1, -0.4)
        assert believed < 60
    assert doubted(scorer) == {"liar": ["z"]}
    assert CLAIM_ODDS * scorer.evidence["liar"].silence_probability[2] < 1
    for _ in range(200):
        score = says(scorer, "liar", 0.5, -0.1, -0.4)
    assert score == pytest.approx(0.1 / 4, rel=0.15), "what is true of the claim stays"


def test_a_claim_that_is_not_believed_leaves_the_labels_coverage() -> None:
    """z is held by one and claimed by two: once the lie is found out, its holder is alone again."""
    scorer = begun("checked", {**LYING, "holder": {"z": 1}})
    assert scorer.federation.score("holder") == 1 / 2
    for _ in range(200):
        says(scorer, "liar", 0.5, -0.1, -0.4)
    assert says(scorer, "holder", -0.2, -0.1, 0.3) == pytest.approx(1, rel=0.01)


def test_a_claim_that_is_exaggerated_stays_in_the_labels_coverage() -> None:
    """The liar holds a little of z: two hold it, however little of the claim is believed."""
    scorer = begun("checked", {**LYING, "holder": {"z": 1}})
    for _ in range(20):
        says(scorer, "liar", 0.99, -0.5, 0.01)
    assert says(scorer, "holder", -0.2, -0.1, 0.3) == pytest.approx(1 / 2)


@pytest.mark.parametrize(("share", "told"), [(9, False), (12, True)])
def test_a_doubt_is_told_if_it_is_about_a_tenth_of_the_data_or_more(share: int, told: bool) -> None:
    counts: dict[str, LabelCounts] = {**COUNTS, "liar": {"x": 100 - share, "z": share}}
    scorer = begun("checked", counts)
    for _ in range(200):
        says(scorer, "liar", 0.5, -0.1, -0.4)
    assert bool(scorer.drain_findings()) == told


@pytest.mark.parametrize(("shown", "told"), [(0.05, False), (0.02, True)])
def test_of_a_label_that_is_held_half_of_the_data_has_to_be_in_doubt(
    shown: float, told: bool
) -> None:
    """60 % are claimed, and three times what is shown is believed: 45 or 54 % are in doubt."""
    scorer = begun("checked", {**COUNTS, "liar": {"x": 4, "z": 6}})
    for _ in range(20):
        says(scorer, "liar", 1 - shown, -0.5, shown)
    assert bool(scorer.drain_findings()) == told


def test_the_first_score_may_be_as_small_as_it_is() -> None:
    """Nobody else has a score yet, beside which it could be too small."""
    counts: dict[str, LabelCounts] = {str(i): {"x": 1} for i in range(2000)}
    scorer = begun("checked", counts)
    assert says(scorer, "0", 0.5, -0.1, -0.4) == pytest.approx(1 / 2000)


def test_a_restored_scorer_keeps_the_least_score() -> None:
    """`reported` is restored; how large a score ever was follows from it."""
    scorer = begun("checked", {"a": {"x": 1}, "liar": {"y": 1}})
    says(scorer, "a", 0.3, -0.1, -0.4)
    own = 1.0
    while own > LEAST / 4:  # what it is worth by itself; in the mean a and the liar have 1/2
        least = says(scorer, "liar", -0.1, -0.1, -0.1)
        own = float(scorer.shares["liar"].sum())
    assert LEAST**2 < own < least == pytest.approx(LEAST / 2, rel=0.2)
    arrays = Arrays()
    tree = json.loads(json.dumps(pack(scorer, arrays)))
    restored: EvidenceScorer = unpack(EvidenceScorer, tree, arrays)
    assert restored.scores(["liar"]) == [least]


def test_news_are_told_once() -> None:
    scorer = begun("checked", LYING)
    told: list[Finding] = []
    for _ in range(100):
        says(scorer, "liar", 0.5, -0.1, -0.4)
        told += scorer.drain_findings()
    (doubt,) = told
    assert isinstance(doubt, Doubt)
    assert (doubt.client, doubt.label, doubt.claimed) == ("liar", "z", 0.9)
    assert doubt.presence < 0.1


def test_a_claimed_share_is_bounded_by_what_the_updates_show() -> None:
    """A liar that lifts the label a little in every update: 1 % of its rises, 90 % of its claim."""
    scorer = begun("checked", LYING)
    for _ in range(20):
        score = says(scorer, "liar", 0.99, -0.5, 0.01)
    assert score == pytest.approx(0.1 / 4 + 3 * 0.01 / 1, rel=0.05)
    assert doubted(scorer) == {"liar": ["z"]}


def test_a_label_that_is_hidden_counts_all_the_same() -> None:
    counts: dict[str, LabelCounts] = {"a": {"x": 3}, "b": {"x": 1, "y": 1}}
    scorer = begun("checked", counts)
    says(scorer, "a", 0.3, 0.1, -0.4)
    score = says(scorer, "a", 0.3, 0.1, -0.4)
    assert score == pytest.approx(1 / 2 + 0.25 / 2), "x: two claim it; y: one, and this one"
    assert doubted(scorer) == {"a": ["y"]}


def test_a_label_without_an_output_counts_for_nothing() -> None:
    scorer = begun("checked", {**COUNTS, "liar": {"x": 1, "unicorn": 9}})
    score = says(scorer, "liar", 0.5, -0.1, -0.4)
    assert score == pytest.approx(0.1 / 4)
    assert doubted(scorer) == {"liar": ["unicorn"]}


def coverage(scorer: EvidenceScorer) -> list[float]:
    return [round(float(own), 2) for own in scorer.coverage + scorer.declared]


def test_a_new_declaration_is_judged_at_once() -> None:
    """The liar withdraws: its label z had been discounted, and x is now held by all four."""
    scorer = begun("checked", LYING)
    for _ in range(12):
        for client, change in (("a", (0.3, 0.1, -0.4)), ("liar", (0.4, -0.2, -0.2))):
            says(scorer, client, *change)
    assert coverage(scorer)[2] < 0.5, "nobody else declares z, and the liar is not believed"
    scorer.declare("liar", {"x": 1})
    assert coverage(scorer) == [4, 1, 0]
    assert "liar" not in doubted(scorer)
    assert isinstance(scorer.drain_findings()[-1], Cleared)


def test_declared_labels_leave_with_their_client_at_once() -> None:
    scorer = begun("checked", COUNTS)
    says(scorer, "a", 0.3, 0.1, -0.4)
    assert coverage(scorer) == [3, 1, 0]
    scorer.leave("b")
    assert coverage(scorer) == [2, 1, 0]
    scorer.join("d", {"z": 1})
    assert coverage(scorer) == [2, 1, 1]


def test_inferred_labels_return_with_their_client() -> None:
    scorer = begun("inferred", COUNTS)
    for client in ("a", "b"):
        says(scorer, client, 0.3, -0.1, -0.2)
    before = coverage(scorer)
    scorer.leave("b")
    assert coverage(scorer)[0] == pytest.approx(before[0] / 2)
    scorer.join("b", {"x": 1})
    assert coverage(scorer) == before


def test_the_label_1_and_the_label_one_in_quotes_are_counted_together() -> None:
    setup = Setup(START, LabelTable.from_counts({"a": {"1": 1}, "b": {"1": 1}}), LAYOUT, "012")
    scorer = make_scorer("checked", setup)
    assert isinstance(scorer, EvidenceScorer)
    scorer.join("c", {1: 5})
    assert coverage(scorer) == [0, 3, 0]
    assert says(scorer, "c", -0.1, 0.3, -0.2) == pytest.approx(1 / 3)


def test_who_leaves_takes_its_labels_along_and_leaves_its_score() -> None:
    scorer = begun("inferred", COUNTS)
    score = says(scorer, "a", 0.3, 0.1, -0.4)
    says(scorer, "b", 0.3, -0.1, -0.4)
    scorer.leave("a")
    assert scorer.coverage[1] == 0
    assert scorer.scores(["a"]) == [score]


def test_who_leaves_and_joins_again_is_no_stranger() -> None:
    """A liar that comes and goes is found out all the same, and told of again."""
    scorer = begun("checked", LYING)
    for _ in range(4):
        says(scorer, "liar", 0.5, -0.1, -0.4)
    scorer.leave("liar")
    scorer.join("liar", LYING["liar"])
    last = scorer.reported["liar"]
    assert scorer.scores(["liar"]) == [last], "not what it claims anew"
    for _ in range(4):
        says(scorer, "liar", 0.5, -0.1, -0.4)
    assert doubted(scorer) == {"liar": ["z"]}
    assert len(scorer.drain_findings()) == 1


def test_a_doubt_that_turns_out_wrong_is_withdrawn() -> None:
    scorer = begun("checked", LYING)
    for _ in range(8):
        says(scorer, "liar", 0.5, -0.1, -0.4)
    assert [type(found) for found in scorer.drain_findings()] == [Doubt]
    for _ in range(5):
        says(scorer, "liar", 0.05, -0.1, 0.45)
    (cleared,) = scorer.drain_findings()
    assert isinstance(cleared, Cleared)
    assert cleared[:2] == ("liar", "z")
    assert cleared.presence == pytest.approx(1, abs=1e-3)
    assert doubted(scorer) == {}


def test_labels_by_number_are_the_outputs_of_that_number() -> None:
    scorer = begun("checked", {"a": {0: 1, 2: 1}, "b": {"1": 1}}, ("0", "1", "2"))
    assert says(scorer, "a", 0.1, -0.2, 0.1) == scorer.federation.score("a")
    assert says(scorer, "b", -0.1, 0.2, -0.1) == scorer.federation.score("b")
    assert doubted(scorer) == {}


@pytest.mark.parametrize("mode", ["inferred", "checked"])
def test_nobody_weighs_nothing(mode: LabelEvidence) -> None:
    """An update that raises no output says nothing; a client that only lies keeps a trifle."""
    scorer = begun(mode, {"a": {"x": 1}, "b": {"y": 1}, "c": {"x": 1}})
    for _ in range(300):
        for client in "ab":
            says(scorer, client, 0.0, 0.0, -0.1)
    assert all(score > 0 for score in scorer.scores(["a", "b", "c"]))


def test_who_was_not_heard_yet_is_taken_at_its_word_where_claims_are_checked() -> None:
    scorer = begun("checked", COUNTS)
    says(scorer, "a", 0.3, 0.1, -0.4)
    assert scorer.scores(["b", "c"]) == scorer.federation.scores(["b", "c"])
