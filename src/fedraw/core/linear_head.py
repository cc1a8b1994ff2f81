"""A linear layer solved from sums of features: the linear discriminant, or ridge regression.

With means μ_l of the labels and the pooled covariance W within labels, the discriminant is

    score_l(z) = μ_lᵀ V⁻¹ z − ½ μ_lᵀ V⁻¹ μ_l + t log(n_l / n) + tr(V⁻¹ W) / (2 n_l),
    V = (1 − λ) W + λ tr(W)/d I,

of features that are standardised by their mean and standard deviation, which follow from the sums.
The last term removes a bias: the squared norm of a mean that is estimated from few samples is too
large by about tr(V⁻¹ W) / n_l, which would punish labels with few samples.

Sums with noise are not standardised, because the noise of a variance would be a factor. Labels
whose count is not clearly above zero are left out. The eigenvalues of W are raised to the root mean
square of those that noise alone has (half the radius of Wigner's semicircle), so that directions of
noise are not trusted: with much noise, V is near a multiple of the identity and the nearest mean
decides; with little, it is W.

A regression of targets y, which are summed beside the features, is ridge regression of the features
as they are, with the covariance S of the features and their covariance c with a target:

    w = (S + k I)⁻¹ c,    k = λ / (1 − λ) tr(S)/d.

λ has the highest restricted likelihood of normal weights and errors, which follows from the sums
(`likeliest`). Shrinkage as above would also shrink the covariances of features that are unrelated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from fedraw.core.private_sums import PRESENT, Noise
from fedraw.core.settings import SHARE, Settings, at_least
from fedraw.core.sums import GRID, SumsShape
from fedraw.core.types import Floats, Ints, Vector

Readout = Literal["discriminant", "ridge", "regression"]

# The bias of a label that nobody has: finite, so that softmax and float32 can cope with it.
ABSENT = -1e9
# A feature with a smaller variance counts as constant: a fraction of a grid cell.
CONSTANT = 1e-9
# The least eigenvalue of a covariance that is not positive definite, as a part of its mean.
LEAST = 1e-3
# The parts λ among which the likelihood decides: λ / (1 − λ) from 10⁻⁷ to 10⁴, and λ = 1.
PARTS = np.append(1 / (1 + 10.0 ** (np.arange(28, -17, -1) / 4)), 1.0)
# The variance of numbers that are rounded to the grid.
ROUNDED = GRID**2 / 12


@dataclass(frozen=True)
class LinearHead(Settings):
    """How the linear layer is solved from totals.

    Attributes:
        prior: The temper t of the prior: 1 expects labels as often as clients hold them (best
            overall accuracy), 0 expects all labels equally often (best recall of rare labels).
        shrinkage: The part λ of the covariance that is replaced by a multiple of the identity.
            "auto": for the discriminant by the formula of oracle approximating shrinkage (Chen et
            al., 2010), for a regression by the likelihood, and for "ridge" 0.
        readout: "discriminant", or "ridge" for ridge regression on the same sums (Fed3R), or
            "regression" for ridge regression of targets that are numbers. Only the discriminant
            uses the prior.

    """

    prior: Annotated[float, at_least(0)] = 1.0
    shrinkage: Annotated[float | Literal["auto"], SHARE] = "auto"
    readout: Readout = "discriminant"

    def solve(self, shape: SumsShape, totals: Floats, noise: Noise | None = None) -> Vector:
        """Return the weights and biases of the linear layer, one after the other.

        A label without samples gets a bias that no other score reaches. Without any samples all
        numbers are 0. `noise` is that of the totals, if clients add noise.
        """
        outputs = shape.targets or shape.labels
        model = np.zeros(outputs * (shape.features - shape.targets + 1), np.float32)
        held = held_labels(shape, totals, noise)
        if not held.size:
            return model
        with threadpool_limits(1, "blas"):  # the bytes depend on the number of threads
            if shape.targets:
                weights, biases = self._regression(shape, totals, noise)
            else:
                weights, biases = self._solved(shape, totals, held, noise)
        model[: weights.size] = weights.ravel()
        model[weights.size :] = biases
        return model

    def _solved(
        self, shape: SumsShape, totals: Floats, held: Ints, noise: Noise | None
    ) -> tuple[Floats, Floats]:
        n_l = shape.counts(totals)[held]
        n, sums = n_l.sum(), shape.sums(totals)[held]
        mean = sums.sum(axis=0) / n
        variance = shape.squares(totals) / n - mean**2
        scale = np.where(variance > CONSTANT, 1 / np.sqrt(np.maximum(variance, CONSTANT)), 0.0)
        if noise is not None:
            scale = np.ones(shape.features)
        means = (sums / n_l[:, None] - mean) * scale
        # The covariance between and within labels, times n, of standardised features.
        total = shape.products(totals)
        squared = np.outer(mean, mean)
        squared *= n  # in place: with 8,192 features, each such matrix takes 537 MB
        total -= squared
        del squared
        total *= scale
        total *= scale[:, None]
        if self.readout == "ridge":
            weights, biases = self._ridge(total / n, means, n_l, noise)
        else:
            total -= (means * n_l[:, None]).T @ means
            if noise is not None:  # the noise of the means was subtracted as well
                total[np.diag_indices_from(total)] += (noise.sums**2 / n_l).sum()
            total /= max(1.0, n - len(held))
            weights, biases = self._discriminant(total, means, n_l, noise)
        all_weights, all_biases = np.zeros((shape.labels, shape.features)), np.zeros(shape.labels)
        all_biases[:] = ABSENT
        all_weights[held] = weights * scale
        all_biases[held] = biases - all_weights[held] @ mean
        return all_weights, all_biases

    def _discriminant(
        self, within: Floats, means: Floats, n_l: Floats, noise: Noise | None
    ) -> tuple[Floats, Floats]:
        inverse = self._inverse(within, n_l.sum() - len(n_l), noise, n_l.sum())
        weights = means @ inverse
        traced = float(np.einsum("ij,ji->", inverse, within))
        biases = -0.5 * np.einsum("ld,ld->l", weights, means)
        biases += self.prior * np.log(n_l / n_l.sum()) + traced / (2 * n_l)
        if noise is not None:
            biases += noise.sums**2 * float(np.trace(inverse)) / (2 * n_l**2)
        return weights, biases

    def _ridge(
        self, total: Floats, means: Floats, n_l: Floats, noise: Noise | None
    ) -> tuple[Floats, Floats]:
        share = n_l / n_l.sum()
        inverse = self._inverse(total, np.inf, noise, n_l.sum())
        return (means * share[:, None]) @ inverse, share

    def _regression(
        self, shape: SumsShape, totals: Floats, noise: Noise | None
    ) -> tuple[Floats, Floats]:
        """Return one row of weights and a bias for each target."""
        (n,), mean = shape.counts(totals), shape.sums(totals)[0] / shape.counts(totals)[0]
        covariance = shape.products(totals) / n
        covariance -= np.outer(mean, mean)
        d = shape.features - shape.targets
        least = 0.0 if noise is None else noise_level(noise, d) / n
        values, vectors = np.linalg.eigh(covariance[:d, :d])
        values = np.maximum(values, least)
        rotated = covariance[d:, :d] @ vectors
        slopes = np.zeros_like(rotated)
        for i, own in enumerate(rotated):
            part = 0.0 if self.shrinkage == "auto" else float(self.shrinkage)
            if self.shrinkage == "auto" and noise is None:
                part = likeliest(values, own, covariance[d + i, d + i], n)
            raised = (1 - part) * values + part * values.mean()
            varies = raised > CONSTANT  # other directions have no weight
            slopes[i, varies] = (1 - part) * own[varies] / raised[varies]
        weights = np.asarray(slopes @ vectors.T)
        return weights, mean[d:] - weights @ mean[:d]

    def _inverse(
        self, covariance: Floats, freedom: float, noise: Noise | None, samples: float
    ) -> Floats:
        if noise is None:
            return shrunk_inverse(covariance, self._part(covariance, freedom))
        part = 0.0 if self.shrinkage == "auto" else float(self.shrinkage)
        return raised_inverse(covariance, part, noise_level(noise, len(covariance)) / samples)

    def _part(self, covariance: Floats, freedom: float) -> float:
        if self.shrinkage != "auto":
            return float(self.shrinkage)
        return oas(covariance, freedom)


def held_labels(shape: SumsShape, totals: Floats, noise: Noise | None) -> Ints:
    """Return the labels that have samples, or clearly more than noise alone."""
    counts = shape.counts(totals)
    least = 0.0 if noise is None else max(1.0, PRESENT * noise.counts)
    return np.flatnonzero(counts > least)


def likeliest(values: Floats, rotated: Floats, variance: float, samples: float) -> float:
    """Return the part λ at which a target is likeliest, for normal weights and errors.

    `values` are the eigenvalues e of the covariance of the features, `rotated` the covariances q of
    these directions with the target. With k = λ / (1 − λ) mean(e), errors have a variance s, and
    weights the variance s / (n k). Where s and the target's mean are estimated as well, minus twice
    the logarithm of the likelihood is, but for a constant,

        (n − 1) log(variance − Σ q² / (e + k)) + Σ log(1 + e / k).

    This holds for more features than samples, too. The variance that is left is at least that of
    rounding to the grid.

    >>> values, unrelated = np.array([1.0, 1.0]), np.array([0.01, 0.0])
    >>> likeliest(values, unrelated, variance=1.0, samples=100.0)
    1.0
    >>> related = np.array([0.9, 0.0])
    >>> round(likeliest(values, related, variance=1.0, samples=100.0), 3)
    0.006
    """
    if not values.any():
        return 1.0
    k = (PARTS[:-1] / (1 - PARTS[:-1]))[:, None] * values.mean()
    explained = np.append((rotated**2 / (values + k)).sum(axis=1), 0.0)
    certain = np.append(np.log1p(values / k).sum(axis=1), 0.0)
    left = np.maximum(variance - explained, ROUNDED)
    return float(PARTS[np.argmin((samples - 1) * np.log(left) + certain)])


def noise_level(noise: Noise, features: int) -> float:
    """Return the root mean square of the eigenvalues of a symmetric matrix that is only noise."""
    return float(noise.products * np.sqrt(features / 2))  # half the variance off the diagonal


def raised_inverse(covariance: Floats, part: float, least: float) -> Floats:
    """Return the inverse of a covariance whose eigenvalues are raised to at least `least`.

    >>> raised_inverse(np.diag([-1.0, 1.0, 4.0]), 0.0, 2.0).tolist()
    [[0.5, 0.0, 0.0], [0.0, 0.5, 0.0], [0.0, 0.0, 0.25]]
    """
    values, vectors = np.linalg.eigh(covariance)
    mean = max(float(values.mean()), least)
    values = np.maximum((1 - part) * values + part * mean, max(least, LEAST * mean))
    return np.asarray((vectors / values) @ vectors.T, np.float64)


def oas(covariance: Floats, samples: float) -> float:
    """Return the part that oracle approximating shrinkage replaces by a multiple of the identity.

    >>> round(oas(np.diag([1.0, 2.0, 3.0, 4.0]), 30.0), 3)
    0.754
    """
    d = len(covariance)
    square, trace = float((covariance**2).sum()), float(np.trace(covariance)) ** 2
    spread = (square - trace / d) * (max(samples, 1.0) + 1 - 2 / d)
    if spread <= 0:
        return 1.0
    return float(min(1.0, ((1 - 2 / d) * square + trace) / spread))


def shrunk_inverse(covariance: Floats, part: float) -> Floats:
    """Return the inverse of a covariance that is shrunk towards a multiple of the identity.

    A matrix that is not positive definite, such as one with noise, is projected first: no
    eigenvalue remains below a thousandth of their mean.

    >>> shrunk_inverse(np.diag([1.0, 3.0]), 0.5).tolist()
    [[0.6666666666666666, 0.0], [0.0, 0.4]]
    """
    d = len(covariance)
    mean = float(np.trace(covariance)) / d
    if mean <= 0:
        return np.eye(d)
    shrunk = (1 - part) * covariance
    shrunk[np.diag_indices(d)] += part * mean
    try:
        np.linalg.cholesky(shrunk)
        return np.asarray(np.linalg.inv(shrunk), np.float64)
    except np.linalg.LinAlgError:
        values, vectors = np.linalg.eigh(shrunk)
        bounded = np.maximum(values, LEAST * mean)
        return np.asarray((vectors / bounded) @ vectors.T, np.float64)
