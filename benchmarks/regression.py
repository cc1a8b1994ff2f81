"""Measures the regression of one pass: R² of the choices of shrinkage, on samples nobody summed.

The rows are data sets, features and numbers of training samples, the columns ways to solve the same
sums: the default, no shrinkage, the shrinkage that the discriminant uses, the best of a grid (which
looks at the test samples), and the default on features that are standardised beforehand. Means over
eight draws.
Run: python -m benchmarks.regression
"""

from __future__ import annotations

from typing import Any

import numpy as np
from benchmarks.machine import headline
from sklearn.datasets import load_diabetes, load_digits, make_friedman1

from fedraw.core.linear_head import PARTS, LinearHead, oas
from fedraw.core.sums import Sums, on_grid
from fedraw.core.types import Floats
from fedraw.eventlog.metrics import r_squared
from fedraw.learning.feature_maps import relu

DRAWS = 8
COLUMNS = ("auto", "0", "oas", "best", "standardised")


def data_sets() -> dict[str, tuple[Floats, Floats]]:
    """Return inputs and targets about 1 in size."""
    patients, progress = load_diabetes(return_X_y=True)
    digits, numbers = load_digits(return_X_y=True)
    made, target = make_friedman1(3000, 10, noise=1.0, random_state=0)
    return {
        "diabetes": (20 * patients, progress / 100),
        "Friedman 1": (3.4 * made - 1.7, target / 5),
        "digits, as numbers": ((digits - 5) / 6, numbers / 3),
    }


def solve(z: Floats, y: Floats, part: Any) -> tuple[Floats, float]:
    """Return the weights and the bias of a regression from the sums of these samples."""
    payload = Sums(regression=True)
    shape = payload.shape(1, z.shape[1])
    message = payload.exact(shape, z, y)
    model = LinearHead(readout="regression", shrinkage=part).solve(shape, message)
    return model[:-1].astype(np.float64), float(model[-1])


def score(train: tuple[Floats, Floats], test: tuple[Floats, Floats], part: Any) -> float:
    """Return R² on the test samples."""
    weights, bias = solve(*train, part)
    return r_squared(test[0] @ weights + bias, test[1])


def measure(z: Floats, y: Floats, samples: int, seed: int) -> list[float]:
    """Return R² of each column, for one draw of the training samples."""
    order = np.random.default_rng(seed).permutation(len(z))
    own, others = order[:samples], order[samples:]
    train, test = (z[own], y[own]), (z[others], y[others])
    centred = z[own] - z[own].mean(axis=0)
    part = oas(centred.T @ centred / samples, samples)
    deviation = centred.std(axis=0)
    scale = np.where(deviation > 1e-6, 1 / np.maximum(deviation, 1e-6), 0.0)
    found = [score(train, test, own) for own in ("auto", 0.0, part)]
    found.append(max(score(train, test, float(own)) for own in PARTS[::4]))
    return [*found, score((scale * train[0], train[1]), (scale * test[0], test[1]), "auto")]


def main() -> None:
    """Print a row for each data set, kind of features and number of samples."""
    print(headline())
    print(f"{'data':<20} {'features':>8} {'samples':>8} " + " ".join(f"{c:>12}" for c in COLUMNS))
    for name, (inputs, y) in data_sets().items():
        for width in (inputs.shape[1], 512):
            for samples in (60, 300, 1200):
                if samples > 0.8 * len(y):
                    continue
                rows = []
                for seed in range(DRAWS):
                    z = on_grid(inputs)
                    if width == 512:
                        made = relu((inputs.shape[1],), width, seed)
                        z = on_grid(made.features(inputs.astype(np.float32)))
                    rows.append(measure(z, y, samples, seed))
                values = " ".join(f"{own:>12.3f}" for own in np.mean(rows, axis=0))
                print(f"{name:<20} {width:>8} {samples:>8} {values}")


if __name__ == "__main__":
    main()
