"""Measures how close predicted numbers are to the targets of a regression."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt


def mean_squared_error(outputs: npt.NDArray[Any], targets: npt.NDArray[Any]) -> float:
    """Return the mean squared error over all samples and outputs.

    >>> mean_squared_error(np.array([[1.0], [4.0]]), np.array([1.0, 2.0]))
    2.0
    """
    errors = np.asarray(outputs, np.float64).reshape(targets.shape) - targets
    return float(np.mean(errors**2))


def r_squared(outputs: npt.NDArray[Any], targets: npt.NDArray[Any]) -> float:
    """Return R², the part of the variance of the targets that the outputs explain.

    Of several outputs, it is the mean of each one's R². It is 0 for a model that predicts the mean
    of the test targets, and not a number where the targets do not vary.

    >>> r_squared(np.array([[1.0], [4.0]]), np.array([1.0, 5.0]))
    0.875
    """
    truth = np.asarray(targets, np.float64).reshape(len(targets), -1)
    errors = np.asarray(outputs, np.float64).reshape(truth.shape) - truth
    variance = truth.var(axis=0)
    if not variance.all():
        return float("nan")
    return float(np.mean(1 - np.mean(errors**2, axis=0) / variance))


# What a regression is measured by, unless the user gives metrics.
REGRESSION_METRICS: Mapping[str, Callable[[npt.NDArray[Any], npt.NDArray[Any]], float]] = {
    "MSE": mean_squared_error,
    "R2": r_squared,
}
