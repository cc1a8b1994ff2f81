"""Questions and answers of private label summaries, without an engine."""

from __future__ import annotations

import math
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedraw.core.labels import LabelTable
from fedraw.core.rarity import rarity_scores
from fedraw.errors import BadInput
from fedraw.privacy.budget import Privacy
from fedraw.privacy.rounds import LabelRounds, PrivateAnswers, counts_of_score

LABELS = ["cat", "dog", "owl"]
COUNTS = {1: {"cat": 4}, 2: {"cat": 2, "dog": 2}, 3: {"dog": 1}, 4: {"cat": 1, "owl": 3}}
NOISY = Privacy("randomised-response", epsilon=20.0, unit="label")


def sites(folder: Path, privacy: Privacy) -> dict[int, PrivateAnswers]:
    return {n: PrivateAnswers(privacy, folder / f"{n}.json") for n in COUNTS}


def ask_all(rounds: LabelRounds, answers: dict[int, PrivateAnswers]) -> dict[int, float]:
    """Ask every node that has a question; return the scores."""
    scores = {}
    for node, site in answers.items():
        question = rounds.question(node)
        if question is not None:
            score = rounds.answer(node, site.answer(question, COUNTS[node]))
            if score is not None:
                scores[node] = score
    return scores


def test_randomised_bits_give_coverage_at_once(tmp_path: Path) -> None:
    pytest.importorskip("opendp")
    rounds, answers = LabelRounds(NOISY, LABELS, fewest=4), sites(tmp_path, NOISY)
    assert ask_all(rounds, answers) == {}
    assert rounds.coverage == pytest.approx({"cat": 3.0, "dog": 2.0, "owl": 1.0}, abs=1e-6)
    # 1/3; 1/6 + 1/4; 1/2; 1/12 + 3/4
    expected = {1: 1 / 3, 2: 5 / 12, 3: 1 / 2, 4: 5 / 6}
    assert ask_all(rounds, answers) == pytest.approx(expected, abs=1e-6)


def test_a_node_that_left_does_not_count(tmp_path: Path) -> None:
    pytest.importorskip("opendp")
    rounds, answers = LabelRounds(NOISY, LABELS, fewest=4), sites(tmp_path, NOISY)
    ask_all(rounds, {n: answers[n] for n in (1, 2, 3)})
    rounds.forget(2)
    ask_all(rounds, {4: answers[4]})
    assert rounds.coverage is None
    ask_all(rounds, {2: answers[2]})
    assert rounds.clients == 4


def test_a_late_node_is_asked_only_for_its_score(tmp_path: Path) -> None:
    rounds = LabelRounds(NOISY, LABELS, 4, {"cat": 3.0, "dog": 2.0, "owl": 1.0}, 4)
    question = rounds.question(9)
    assert question is not None and question["step"] == "score"
    site = PrivateAnswers(NOISY, tmp_path / "9.json")
    assert rounds.answer(9, site.answer(question, {"owl": 1})) == 1.0


def test_a_draw_is_stored_and_sent_again(tmp_path: Path) -> None:
    pytest.importorskip("opendp")
    privacy = Privacy("randomised-response", 0.3, "client", score_epsilon=0.5)
    rounds = LabelRounds(privacy, LABELS, fewest=9)
    question = rounds.question(1)
    assert question is not None
    file = tmp_path / "1.json"
    sent = {str(PrivateAnswers(privacy, file).answer(question, COUNTS[1])) for _ in range(20)}
    assert len(sent) == 1
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    told = LabelRounds(privacy, LABELS, 9, dict.fromkeys(LABELS, 2.0), 4).question(1)
    assert told is not None
    scores = {PrivateAnswers(privacy, file).answer(told, COUNTS[1])["score"] for _ in range(20)}
    assert len(scores) == 1


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "under no privacy, but this site answers only under"),
        ({"epsilon": 40.0}, r"'epsilon': 40.0.*this site answers only under .*'epsilon': 20.0"),
        ({"labels": ["cat"]}, "holds the label 'dog', which is not in the server's public list"),
    ],
)
def test_a_site_answers_only_under_its_own_settings(
    tmp_path: Path, changes: Any, words: str
) -> None:
    question: dict[str, Any] = {}
    if changes:
        asked = LabelRounds(NOISY, LABELS, 4).question(2)
        assert asked is not None
        question = {**asked, **changes}
    with pytest.raises(BadInput, match=words):
        PrivateAnswers(NOISY, tmp_path / "2.json").answer(question, COUNTS[2])
    assert list(tmp_path.iterdir()) == []


def test_a_file_with_other_answers_is_not_replaced(tmp_path: Path) -> None:
    pytest.importorskip("opendp")
    file = tmp_path / "1.json"
    question = LabelRounds(NOISY, LABELS, 4).question(1)
    assert question is not None
    PrivateAnswers(NOISY, file).answer(question, COUNTS[1])
    before = file.read_text()
    with pytest.raises(BadInput, match="spend the privacy budget again: remove the file"):
        PrivateAnswers(NOISY, file).answer({**question, "labels": [*LABELS, "fox"]}, COUNTS[1])
    assert file.read_text() == before
    file.write_text(before[:20])
    with pytest.raises(BadInput, match="is damaged; it has this site's private answers"):
        PrivateAnswers(NOISY, file).answer(question, COUNTS[1])


@pytest.mark.parametrize(
    "reply",
    [
        {"step": "bits", "bits": [1, 0]},
        {"step": "bits"},
    ],
)
def test_a_malformed_answer_is_refused(reply: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match="asked for"):
        LabelRounds(NOISY, LABELS, 4).answer(1, reply)


@pytest.mark.parametrize("score", [0.0, 1.5, math.nan, "high", None])
def test_an_impossible_score_is_refused(score: Any) -> None:
    rounds = LabelRounds(NOISY, LABELS, 4, dict.fromkeys(LABELS, 1.0), 4)
    with pytest.raises(BadInput, match="a score must be above 0 and at most 1"):
        rounds.answer(1, {"step": "score", "score": score})


def test_the_list_of_labels_is_needed() -> None:
    with pytest.raises(BadInput, match="need a public list of all labels"):
        LabelRounds(NOISY, [], 3)


@given(st.lists(st.floats(0.2, 1.0), min_size=5, max_size=5))
def test_counts_of_a_score_have_that_score(scores: list[float]) -> None:
    table = LabelTable.from_counts({i: counts_of_score(str(i), s, 5) for i, s in enumerate(scores)})
    assert rarity_scores(table).tolist() == pytest.approx(scores, abs=2e-6)
