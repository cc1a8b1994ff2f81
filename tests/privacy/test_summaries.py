from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from tests.core.histograms import Counts, federations

from fedraw.core.federation import Federation
from fedraw.core.labels import LabelTable
from fedraw.core.rarity import rarity_scores
from fedraw.privacy.budget import Privacy
from fedraw.privacy.summaries import private_table, published_coverage, score_from_coverage
from fedraw.strategies.fedraw import FedRAW
from fedraw.strategies.protocol import Setup

NOISY = Privacy("randomised-response", epsilon=1, unit="label")
COUNTS = {f"site {i}": {"flu": 8, "cold": 2} for i in range(20)} | {"site r": {"flu": 3, "gout": 1}}


@given(federations)
def test_a_private_table_has_one_label_for_each_client(counts: Counts) -> None:
    table = LabelTable.from_counts(counts)
    seen = private_table(table, NOISY, np.random.default_rng(1))
    assert seen.clients == table.clients
    assert len(set(seen.labels)) == len(table)
    assert set(seen.coverage().tolist()) == {1}


@given(federations)
def test_scores_under_randomised_response_use_the_published_coverage(
    counts: Counts,
) -> None:
    table = LabelTable.from_counts(counts)
    published = published_coverage(table, NOISY, np.random.default_rng(2))
    seen = private_table(table, NOISY, np.random.default_rng(2))
    coverage = dict(zip(table.labels, published.tolist(), strict=True))
    own = [score_from_coverage(histogram, coverage) for histogram in counts.values()]
    assert rarity_scores(seen) == pytest.approx(own, rel=1e-12)
    assert np.all((published >= 1) & (published <= len(table)))


def test_the_same_seed_gives_the_same_table() -> None:
    table = LabelTable.from_counts(COUNTS)
    noisy = Privacy("randomised-response", epsilon=1, score_epsilon=1)
    one, same, other = (
        private_table(table, noisy, np.random.default_rng(seed)).share.tolist()
        for seed in (1, 1, 2)
    )
    assert one == same != other


def test_the_larger_the_budget_the_closer_to_the_true_scores() -> None:
    table = LabelTable.from_counts(COUNTS)
    true = rarity_scores(table)

    def error(epsilon: float) -> float:
        privacy = Privacy("randomised-response", epsilon, "label", score_epsilon=epsilon)
        runs = [private_table(table, privacy, np.random.default_rng(s)).share for s in range(50)]
        return float(np.abs(np.array(runs) - true).mean())

    errors = [error(epsilon) for epsilon in (0.1, 2, 20)]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.05 < errors[0]


def test_the_table_does_not_contain_the_clients_labels() -> None:
    seen = private_table(LabelTable.from_counts(COUNTS), NOISY, np.random.default_rng(1))
    assert seen.labels[:1] + seen.labels[-1:] == ("score of 'site 0'", "score of 'site r'")
    assert set(seen.count.tolist()) == {1}


def test_a_strategy_weighs_by_private_scores_even_after_a_departure() -> None:
    seen = private_table(LabelTable.from_counts(COUNTS), NOISY, np.random.default_rng(1))
    state, receivers = FedRAW(buffer=2).start(Setup(np.zeros(3, np.float32), seen))
    assert (state.version, len(receivers)) == (0, 21)
    members = Federation.of(seen)
    members.leave("site 0")
    assert members.scores(seen.clients) == seen.share.tolist()


def rare_weight(privacy: Privacy, runs: int) -> float:
    """The weight of the four rare clients in docs/how-to/privacy.md, in percent."""
    rng = np.random.default_rng(0)
    counts: dict[int, dict[int, int]] = {client: {} for client in range(30)}
    for label in range(8):
        for client in rng.permutation(30)[:20].tolist():
            counts[client][label] = 30
    for client in range(4):
        counts[client][8 + client // 2] = 60
    table, rng = LabelTable.from_counts(counts), np.random.default_rng(1)
    scores = np.array([private_table(table, privacy, rng).share for _ in range(runs)])
    return 100 * float((scores[:, :4].sum(axis=1) / scores.sum(axis=1)).mean())


@pytest.mark.parametrize(
    ("privacy", "percent"),
    [
        (Privacy("randomised-response", 4, "label"), 34.0),
        (Privacy("randomised-response", 20, "client"), 34.8),
        (Privacy("randomised-response", 2, "client"), 17.3),
        (Privacy("randomised-response", 20, "label", score_epsilon=4), 18.1),
        (Privacy("randomised-response", 10, "client", score_epsilon=10), 23.8),
    ],
)
def test_the_weights_in_the_documentation_of_privacy(privacy: Privacy, percent: float) -> None:
    assert rare_weight(privacy, runs=300) == pytest.approx(percent, abs=1.5)
