from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.simulation.scenes import with_rare

from fedraw.core.labels import LabelTable
from fedraw.core.layout import Layout
from fedraw.core.rarity import rarity_scores
from fedraw.core.weighting import weights
from fedraw.errors import BadInput
from fedraw.simulation.executors import Inline, Job, TrainingResult
from fedraw.simulation.perturbations.attacks import Attackers, Form, Support, misreport
from fedraw.strategies.fedraw import FedRAW
from fedraw.strategies.protocol import Joined, Left, Setup
from fedraw.strategies.scoring.output_layer import OutputLayer

LIAR = 29


@pytest.mark.parametrize(
    ("form", "score", "largest"),
    [("paper", 0.5, 0.526), ("renormalised", 0.455, 0.503), ("recounted", 0.35, 0.4375)],
)
def test_what_a_claim_of_nine_tenths_is_worth(form: Form, score: float, largest: float) -> None:
    claimed = misreport(with_rare(30, 6), LIAR, "rare 0", 0.9, form)
    scores = rarity_scores(claimed)
    assert scores[LIAR] == pytest.approx(score)
    assert scores[LIAR - 1] == pytest.approx(0.05)
    assert weights(scores[[LIAR, *range(10, 19)]].tolist())[0] == pytest.approx(largest, abs=5e-4)


@pytest.mark.parametrize("form", ["paper", "renormalised", "recounted"])
def test_only_a_recount_takes_score_from_the_true_holders(form: Form) -> None:
    honest = with_rare(30, 6)
    before, after = (
        rarity_scores(honest),
        rarity_scores(misreport(honest, LIAR, "rare 0", 0.9, form)),
    )
    holders = after[:2] - before[:2]
    # 0.255 (1/3 - 1/2) for the two who hold the label.
    assert holders == pytest.approx([-0.0425] * 2 if form == "recounted" else [0, 0], abs=1e-5)
    assert np.delete(after, [0, 1, LIAR]) == pytest.approx(np.delete(before, [0, 1, LIAR]))


def test_a_claim_changes_the_claimants_row_and_nothing_of_the_table_it_was_made_from() -> None:
    honest = with_rare(30, 6)
    share, coverage = honest.share.copy(), honest.coverage()
    claimed = misreport(honest, LIAR, "rare 0")
    assert np.array_equal(honest.share, share)
    assert np.array_equal(claimed.coverage(), coverage)
    assert claimed.share[claimed.row(LIAR)].sum() == pytest.approx(1.9)
    assert np.array_equal(claimed.totals(), honest.totals())


def test_a_claim_may_exaggerate_a_label_that_is_held() -> None:
    table = LabelTable.from_counts({"a": {"x": 1, "y": 1}, "b": {"x": 1}})
    claimed = misreport(table, "a", "y", 0.5)
    assert claimed.share.tolist() == [0.5, 1.0, 1.0]
    assert rarity_scores(claimed).tolist() == [0.5 / 2 + 1, 0.5]


@pytest.mark.parametrize("form", ["paper", "renormalised", "recounted"])
def test_a_strategy_sees_what_was_claimed_also_as_members_change(form: Form) -> None:
    claimed = misreport(with_rare(30, 6), LIAR, "rare 0", 0.9, form)
    state, _ = FedRAW().start(Setup(np.zeros(1, np.float32), claimed))
    scores = [state.federation.score(client) for client in claimed.clients]
    assert scores == rarity_scores(claimed).tolist()
    coverage = state.federation.coverage.copy()
    state, _ = FedRAW().step(state, Left(LIAR))
    state, _ = FedRAW().step(state, Joined("new", {"rare 0": 1}))
    gained = state.federation.coverage[state.federation.labels.index("rare 0")]
    assert gained == coverage[claimed.labels.index("rare 0")] + (0 if form == "recounted" else 1)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"client": 30}, r"misreport\.client = 30 is no client of this federation"),
        ({"label": "none"}, r"misreport\.label = 'none' is held by no client"),
        ({"share": 0}, r"misreport\.share = 0 must be above 0 and at most 1"),
        ({"share": 1.1}, r"misreport\.share = 1\.1 must be above 0"),
        ({"form": "loud"}, r"misreport\.form = 'loud' is unknown"),
    ],
)
def test_a_claim_that_cannot_be_made_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        misreport(with_rare(30, 6), **{"client": LIAR, "label": "rare 0", **settings})


def test_an_invented_label_is_worth_its_whole_share() -> None:
    claimed = misreport(with_rare(30, 6), LIAR, "unicorn", 0.9, "invented")
    assert rarity_scores(claimed)[LIAR] == pytest.approx(0.05 + 0.9)
    assert claimed.coverage()[claimed.labels.index("unicorn")] == 1
    with pytest.raises(BadInput, match="held by a client; invent another one"):
        misreport(with_rare(30, 6), LIAR, "rare 0", 0.9, "invented")


def test_who_hides_a_label_gives_it_to_the_other_holders() -> None:
    table = LabelTable.from_counts({"a": {"x": 1, "y": 1}, "b": {"x": 1, "y": 3}, "c": {"x": 1}})
    hidden = misreport(table, "a", "y", form="hidden")
    assert rarity_scores(table).tolist() == pytest.approx([1 / 6 + 1 / 4, 1 / 12 + 3 / 8, 1 / 3])
    assert rarity_scores(hidden).tolist() == pytest.approx([1 / 3, 1 / 12 + 3 / 4, 1 / 3])
    with pytest.raises(BadInput, match="does not hold label 'y', so it cannot hide it"):
        misreport(table, "c", "y", form="hidden")
    with pytest.raises(BadInput, match="nothing but label 'x' to report"):
        misreport(table, "c", "x", form="hidden")


@pytest.mark.parametrize(
    "layout",
    [
        Layout.of([("body", (2,)), ("fc.weight", (3, 2)), ("fc.bias", (3,))]),
        Layout.of([("body", (2,)), ("fc.weight", (3, 2))], [("mean", (1,))]),
    ],
)
def test_the_claimed_output_rises_by_the_amount_and_nothing_else_changes(layout: Layout) -> None:
    rng = np.random.default_rng(0)
    start, trained = (rng.normal(size=layout.size).astype(np.float32) for _ in range(2))
    kept = trained.copy()
    levels = OutputLayer.of(layout).levels
    sent = Support(1, 0.25, layout)(trained, start)
    change, honest = (levels(v) - levels(start) for v in (sent, trained))
    assert change[1] == pytest.approx(0.25, abs=1e-6)
    assert change[[0, 2]].tolist() == honest[[0, 2]].tolist()
    assert np.array_equal(trained, kept)
    body = slice(0, 2)
    assert np.array_equal(sent[body], trained[body])


def test_only_what_attackers_send_is_altered() -> None:
    inner = Inline(lambda job: TrainingResult(job.model + np.float32(1), 1))
    executor = Attackers(inner, ["a"], lambda trained, start: trained + 10 * start)
    model = np.full(2, 3, np.float32)
    for client in ("a", "b"):
        executor.submit(Job(client, 0, 0, model, due=1.0))
    assert executor.collect("b").vector.tolist() == [4, 4]
    assert executor.collect("a").vector.tolist() == [34, 34]
