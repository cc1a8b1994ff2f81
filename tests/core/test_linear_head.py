"""The linear layer that is solved from sums, against the same formulas on samples."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from fedraw.core.linear_head import ABSENT, LinearHead, oas, shrunk_inverse
from fedraw.core.sums import SumsShape, on_grid
from fedraw.core.types import Floats, Ints
from fedraw.errors import BadInput

SHAPE = SumsShape(labels=3, features=5)


def clouds(sizes: list[int], seed: int = 0) -> tuple[Floats, Ints]:
    """Samples of labels whose means lie apart, with correlated features of unequal scale."""
    rng = np.random.default_rng(seed)
    means = rng.normal(size=(3, 5)) * 2
    mixing = rng.normal(size=(5, 5)) * np.array([0.1, 0.5, 1.0, 1.5, 0.7])
    labels = np.repeat(np.arange(3), sizes)
    return on_grid(means[labels] + rng.normal(size=(len(labels), 5)) @ mixing), labels


def parts(model: Any) -> tuple[Floats, Floats]:
    return model[:15].reshape(3, 5).astype(np.float64), model[15:].astype(np.float64)


def solved(features: Floats, labels: Ints, **settings: Any) -> tuple[Floats, Floats]:
    return parts(LinearHead(**settings).solve(SHAPE, SHAPE.of_samples(features, labels)))


def textbook(features: Floats, labels: Ints, prior: float, part: float) -> Floats:
    """The scores of the samples, by the formula and from the samples themselves."""
    z = (features - features.mean(axis=0)) / features.std(axis=0)
    n_l = np.bincount(labels)
    means = np.array([z[labels == label].mean(axis=0) for label in range(3)])
    within = (z - means[labels]).T @ (z - means[labels]) / (len(z) - 3)
    shrunk = (1 - part) * within + part * np.trace(within) / 5 * np.eye(5)
    inverse = np.linalg.inv(shrunk)
    scores = z @ inverse @ means.T - 0.5 * np.einsum("ld,de,le->l", means, inverse, means)
    bias: Floats = prior * np.log(n_l / n_l.sum()) + np.trace(inverse @ within) / (2 * n_l)
    return np.asarray(scores + bias)


@pytest.mark.parametrize("prior", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("part", [0.0, 0.1, 1.0])
def test_the_discriminant_is_that_of_the_samples(prior: float, part: float) -> None:
    features, labels = clouds([40, 25, 8])
    weights, biases = solved(features, labels, prior=prior, shrinkage=part)
    found = features @ weights.T + biases
    assert found == pytest.approx(textbook(features, labels, prior, part), rel=1e-4, abs=1e-3)


def test_auto_is_the_part_of_the_formula() -> None:
    features, labels = clouds([40, 25, 8])
    z = (features - features.mean(axis=0)) / features.std(axis=0)
    means = np.array([z[labels == label].mean(axis=0) for label in range(3)])
    within = (z - means[labels]).T @ (z - means[labels]) / (len(z) - 3)
    part = oas(within, len(z) - 3)
    assert 0 < part < 0.2
    one, other = solved(features, labels), solved(features, labels, shrinkage=part)
    assert one[0] == pytest.approx(other[0], rel=1e-5)
    assert one[1] == pytest.approx(other[1], rel=1e-5)


def test_ridge_is_the_regression_of_the_samples() -> None:
    features, labels = clouds([40, 25, 8])
    part = 0.05
    weights, biases = solved(features, labels, readout="ridge", shrinkage=part)
    z = (features - features.mean(axis=0)) / features.std(axis=0)
    n, total = len(z), z.T @ z / len(z)
    shrunk = (1 - part) * total + part * np.trace(total) / 5 * np.eye(5)
    answers = np.eye(3)[labels]
    slope = np.linalg.solve(shrunk, z.T @ (answers - answers.mean(axis=0)) / n)
    assert features @ weights.T + biases == pytest.approx(
        z @ slope + answers.mean(axis=0), rel=1e-4, abs=1e-4
    )


def test_the_scale_and_the_offset_of_a_feature_do_not_matter() -> None:
    features, labels = clouds([40, 25, 8])
    other = features * np.array([1, 0.5, 0.25, 1, 2]) + np.array([0, 3, 0, -2, 0])
    one = np.argmax(features @ solved(features, labels)[0].T + solved(features, labels)[1], axis=1)
    weights, biases = solved(other, labels)
    assert np.array_equal(np.argmax(other @ weights.T + biases, axis=1), one)


def test_the_prior_moves_answers_to_common_labels() -> None:
    labels = np.repeat([0, 1], [400, 25])
    features = on_grid(labels[:, None] + np.random.default_rng(3).normal(size=(425, 5)))

    def share_of_first(prior: float) -> float:
        weights, biases = solved(features, labels, prior=prior)
        return float(np.mean(np.argmax(features @ weights.T + biases, axis=1)[400:] == 0))

    assert share_of_first(1.0) > share_of_first(0.0)


def test_small_labels_are_not_punished_for_their_noisy_means() -> None:
    """Labels of equal clouds: without the last term, few samples would mean low scores."""
    rng, shape = np.random.default_rng(0), SumsShape(2, 60)
    won = []
    for _ in range(30):
        labels = np.repeat([0, 1], [3000, 5])
        features = on_grid(rng.normal(size=(3005, 60)))
        model = LinearHead(prior=0.0).solve(shape, shape.of_samples(features, labels))
        fresh = rng.normal(size=(200, 60))
        scores = fresh @ model[:120].reshape(2, 60).T + model[120:]
        won.append(np.mean(scores[:, 1] > scores[:, 0]))
    assert np.mean(won) == pytest.approx(0.5, abs=0.12)


def test_a_label_that_nobody_has_is_never_answered() -> None:
    features, labels = clouds([40, 0, 8])
    weights, biases = solved(features, labels)
    assert biases[1] == ABSENT
    assert not weights[1].any()
    assert np.isfinite(biases).all()
    assert 1 not in np.argmax(features @ weights.T + biases, axis=1)


def test_without_samples_all_numbers_are_zero() -> None:
    assert not LinearHead().solve(SHAPE, SHAPE.zeros()).any()


@pytest.mark.parametrize("readout", ["discriminant", "ridge"])
@pytest.mark.parametrize("shrinkage", ["auto", 0.0])
@pytest.mark.parametrize("sizes", [[1, 0, 0], [1, 1, 1], [2, 1, 0], [30, 4, 1]])
def test_few_samples_and_constant_features_give_finite_scores(
    sizes: list[int], shrinkage: Any, readout: Any
) -> None:
    features, labels = clouds(sizes)
    features[:, 2] = 1.5
    weights, biases = solved(features, labels, shrinkage=shrinkage, readout=readout)
    assert np.isfinite(weights).all()
    assert np.isfinite(biases).all()
    assert not weights[:, 2].any()
    if sizes == [30, 4, 1] and readout == "discriminant":
        assert np.mean(np.argmax(features @ weights.T + biases, axis=1) == labels) > 0.9


def test_a_covariance_with_noise_is_projected() -> None:
    inverse = shrunk_inverse(np.diag([2.0, 1.0, -0.5]), 0.0)
    mean = 2.5 / 3
    assert inverse == pytest.approx(np.diag([0.5, 1.0, 1 / (0.001 * mean)]))


def test_the_bytes_do_not_depend_on_the_number_of_threads() -> None:
    rng, shape = np.random.default_rng(0), SumsShape(3, 300)
    features, labels = on_grid(rng.normal(size=(900, 300))), rng.integers(0, 3, 900)
    totals = shape.of_samples(features, labels)
    with threadpool_limits(4, "blas"):
        several = LinearHead().solve(shape, shape.of_samples(features, labels))
    assert several.tobytes() == LinearHead().solve(shape, totals).tobytes()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"prior": -0.5}, "prior = -0.5 must be at least 0"),
        ({"prior": float("nan")}, "prior = nan must be a finite number"),
        ({"shrinkage": 1.5}, "shrinkage = 1.5 must be from 0 to 1"),
        ({"shrinkage": "much"}, "shrinkage = 'much' must be a finite number or 'auto'"),
        ({"readout": "svm"}, "readout = 'svm' must be 'discriminant' or 'ridge'"),
    ],
)
def test_settings_out_of_range_are_refused(settings: Any, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        LinearHead(**settings)
