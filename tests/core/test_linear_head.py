"""The linear layer that is solved from sums, against the same formulas on samples."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from fedraw.core.linear_head import ABSENT, PARTS, LinearHead, oas, shrunk_inverse
from fedraw.core.private_sums import SumsPrivacy
from fedraw.core.sums import Sums, SumsShape, on_grid
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
        ({"readout": "svm"}, "readout = 'svm' must be 'discriminant' or 'ridge' or "),
    ],
)
def test_settings_out_of_range_are_refused(settings: Any, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        LinearHead(**settings)


def line(samples: int, features: int, targets: int, noise: float = 0.3) -> tuple[Floats, Floats]:
    """Features, and targets that are linear in them, with errors."""
    rng = np.random.default_rng(samples)
    z = on_grid(rng.normal(size=(samples, features)) @ rng.normal(size=(features, features)) / 2)
    y = z @ rng.normal(size=(features, targets)) / features + 0.5
    return z, on_grid(y + noise * rng.normal(size=y.shape))


def regression(z: Floats, y: Floats, part: Any = "auto") -> tuple[Floats, Floats]:
    """The weights and the biases that are solved from the sums of the samples."""
    payload, d, k = Sums(regression=True), z.shape[1], y.shape[1]
    shape = payload.shape(k, d)
    head = LinearHead(readout="regression", shrinkage=part)
    model = head.solve(shape, payload.exact(shape, z, y)).astype(np.float64)
    return model[: k * d].reshape(k, d), model[k * d :]


@pytest.mark.parametrize(("part", "slope"), [(0.0, 1.0), (0.5, 0.5), (0.75, 0.25), (1.0, 0.0)])
def test_a_regression_by_hand(part: float, slope: float) -> None:
    """Features -1 and 1 with targets 1 and 3: variance 1, covariance 1, k = part / (1 - part)."""
    weights, biases = regression(np.array([[-1.0], [1.0]]), np.array([[1.0], [3.0]]), part)
    assert weights.tolist() == [[pytest.approx(slope)]]
    assert biases.tolist() == [pytest.approx(2.0)]


@pytest.mark.parametrize("targets", [1, 3])
@pytest.mark.parametrize("samples", [8, 200])
def test_without_shrinkage_it_is_least_squares_on_the_pooled_samples(
    samples: int, targets: int
) -> None:
    """With fewer samples than features it is the solution of the smallest weights."""
    z, y = line(samples, 12, targets)
    weights, biases = regression(z, y, 0.0)
    expected = np.linalg.lstsq(z - z.mean(axis=0), y - y.mean(axis=0), rcond=1e-8)[0]
    assert weights == pytest.approx(expected.T, rel=1e-4, abs=1e-5)
    assert biases == pytest.approx(y.mean(axis=0) - expected.T @ z.mean(axis=0), rel=1e-3)


def test_with_shrinkage_it_is_ridge_on_the_pooled_samples() -> None:
    z, y = line(60, 12, 2)
    centred = z - z.mean(axis=0)
    penalty = 60 * 0.2 / 0.8 * centred.var(axis=0).mean()
    expected = np.linalg.solve(centred.T @ centred + penalty * np.eye(12), centred.T @ y)
    assert regression(z, y, 0.2)[0] == pytest.approx(expected.T, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize(("samples", "noise"), [(10, 0.3), (40, 0.02), (40, 3.0), (400, 0.3)])
def test_auto_is_the_likeliest_part(samples: int, noise: float) -> None:
    """The likelihood is that of the samples: a normal target with covariance Z Zᵀ / (n k) + I."""
    z, y = line(samples, 12, 1, noise)
    centred, target = z - z.mean(axis=0), y[:, 0] - y.mean()
    mean = centred.var(axis=0).mean()

    def unlikelihood(part: float) -> float:
        covariance = centred @ centred.T / (samples * part / (1 - part) * mean) + np.eye(samples)
        left = target @ np.linalg.solve(covariance, target) / samples
        return float((samples - 1) * np.log(left) + np.linalg.slogdet(covariance)[1])

    likeliest = min(PARTS[:-1].tolist(), key=unlikelihood)
    assert regression(z, y)[0] == pytest.approx(regression(z, y, likeliest)[0], abs=1e-4)


def test_targets_that_have_nothing_to_do_with_the_features_are_predicted_by_their_mean() -> None:
    rng = np.random.default_rng(0)
    z, y = rng.normal(size=(50, 60)), np.full((50, 1), 2.5)
    weights, biases = regression(z, y)
    assert not weights.any()
    assert biases.tolist() == [2.5]


@pytest.mark.parametrize("samples", [1, 2])
def test_one_or_two_samples_and_constant_features_give_finite_numbers(samples: int) -> None:
    z, y = line(samples, 4, 2)
    z[:, 1] = 1.0
    weights, biases = regression(z, y)
    assert np.isfinite(weights).all()
    assert weights[:, 1] == pytest.approx(0, abs=1e-12)
    assert z.mean(axis=0) @ weights.T + biases == pytest.approx(y.mean(axis=0), abs=1e-4)


def test_sums_with_noise_give_a_regression_too() -> None:
    z, y = line(40_000, 5, 1, 0.1)
    payload = Sums(privacy=SumsPrivacy(epsilon=3.0, clip=2.0), regression=True)
    shape = payload.shape(1, 5)
    message = payload.sent(shape, payload.exact(shape, z, y), np.random.default_rng(0))
    payload.check(shape, "north", message, 40_000)
    assert payload.privacy is not None
    model = LinearHead(readout="regression").solve(shape, message, payload.privacy.noise(shape))
    left = y[:, 0] - z @ model[:5] - model[5]
    assert left.var() < 0.5 * y.var()
