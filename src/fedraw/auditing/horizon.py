"""The horizon of a run: whether it is long enough for a label's standing to show.

Standing decides the verdict on a run of 3,000 arrivals. In a shorter run the model is aggregated
less often, and the holders of a label send fewer updates. In the runs of
`benchmarks.audit_horizon` the recall of a scarce label follows

    logit(recall) = a + b ln(standing) + c ln(A) + d min(0, ln(U / 12))

with U updates from its holders. A is the number of aggregations if a method adds K updates at a
time. A model that is an average of models moves with the training of all clients, whatever K, so A
is then the number of arrivals over the number of clients. A label that its standing keeps is "late"
if this recall is below a half. All numbers that depend on the horizon are in this module.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedraw.auditing.methods import BY_METHOD, ENOUGH_UPDATES, Verdict, verdict
from fedraw.core.types import Floats, Ints

ARRIVALS = 3000  # the length of the calibration runs, and the default horizon
FEWEST_SITES, MOST_SITES = 12, 32  # of the calibration runs
# A method that makes a step on every arrival has a rate of 0.1, so a step counts as a tenth.
ARRIVALS_OF_A_STEP = 10
LEAST_STANDING = 1e-9


class Fit(NamedTuple):
    """The coefficients a, b, c and d."""

    constant: float
    standing: float
    steps: float
    updates: float


WAITING = Fit(-4.2, 2.5, 2.0, 0.0)
AVERAGING = Fit(-3.9, 2.0, 1.5, 0.0)
ADDING = Fit(-4.0, 1.7, 1.6, 1.1)


@dataclass(frozen=True, eq=False)
class Horizon:
    """The arrivals of a run, and how many of them come from the holders of each label."""

    arrivals: int
    clients: int
    share: Floats  # by label: the share of the arrivals that come from its holders
    coverage: Ints  # by label

    def aggregations(self, method: str, size: int) -> float:
        """Return how often a method makes a new model, with a buffer of this size."""
        match BY_METHOD[method].rule.buffer:
            case "all":
                return self.arrivals / self.clients
            case "blocks":
                return self.arrivals / size
        return float(self.arrivals)

    def _steps(self, method: str, size: int) -> float:
        """Return A."""
        own = BY_METHOD[method]
        if own.averages:
            return self.arrivals / self.clients
        small = own.rule.buffer != "blocks"
        return self.arrivals / (ARRIVALS_OF_A_STEP if small else size)

    def updates(self, method: str) -> Floats:
        """Return the expected number of updates from the holders of each label."""
        if BY_METHOD[method].waits:  # all clients send equally many
            return np.asarray(self.arrivals * self.coverage / self.clients, np.float64)
        return np.asarray(self.arrivals * self.share, np.float64)

    def recall(self, method: str, standing: Floats, size: int) -> Floats:
        """Return the expected recall of labels of these standings, from 0 to 1.

        >>> half = np.array([0.5])
        >>> run = [Horizon(arrivals, 20, half, np.array([10])) for arrivals in (300, 3000)]
        >>> [r.recall("fedbuff", np.array([0.2]), 10).round(2).item() for r in run]
        [0.22, 0.92]
        """
        logit = np.array(fit_of(method)) @ self.terms(method, standing, size)
        return np.asarray(1 / (1 + np.exp(-logit)), np.float64)

    def terms(self, method: str, standing: Floats, size: int) -> Floats:
        """Return what the coefficients of a fit multiply: a row each, a column for each label."""
        few = np.minimum(0.0, np.log(self.updates(method) / ENOUGH_UPDATES))
        steps = np.full(standing.size, np.log(self._steps(method, size)))
        stands = np.log(np.maximum(standing, LEAST_STANDING))
        return np.array([np.ones(standing.size), stands, steps, few])

    def verdicts(self, method: str, standing: Floats, size: int) -> tuple[Verdict, ...]:
        """Return the verdict on each label within the horizon."""
        late = self.recall(method, standing, size) < 0.5
        found = (verdict(method, float(value)) for value in standing)
        return tuple(
            "late" if word == "kept" and is_late else word
            for word, is_late in zip(found, late, strict=True)
        )


def fit_of(method: str) -> Fit:
    """Return the fit of the method's family."""
    own = BY_METHOD[method]
    if own.waits:
        return WAITING
    return AVERAGING if own.averages else ADDING


def round_time(rate: Floats, many: Ints) -> float:
    """Return the time of a round that waits for all clients, over that of as many arrivals.

    Times are exponential, so a round takes E max = ∫ (1 − Π (1 − e^(−r t))) dt on average.

    >>> round(round_time(np.ones(1), np.array([2])), 2)  # (1 + 1/2) / (2 / 2)
    1.5
    """
    longest = (np.log(many.sum()) + 40) / rate.min()
    t = np.geomspace(1e-6 / rate.max(), longest, 2000)
    ended = np.array([(many * np.log(-np.expm1(-rate * at))).sum() for at in t])
    going = -np.expm1(ended)  # the chance that the round goes on
    mean = t[0] + ((going[1:] + going[:-1]) * np.diff(t)).sum() / 2
    return float(mean * (rate * many).sum() / many.sum())


def cautions(arrivals: int, clients: int) -> tuple[str, ...]:
    """Say in one sentence each what was not calibrated for this horizon and federation."""
    found = []
    if arrivals < ARRIVALS:
        found.append(
            f"The verdicts were calibrated on runs of {ARRIVALS:,} arrivals, not of {arrivals:,}."
        )
    elif arrivals > ARRIVALS:
        found.append(
            f"The verdicts were calibrated on runs of {ARRIVALS:,} arrivals, and none was longer."
        )
    if not FEWEST_SITES <= clients <= MOST_SITES:
        found.append(
            f"The verdicts were calibrated with {FEWEST_SITES} to {MOST_SITES} sites, not with "
            f"{clients:,}."
        )
    return tuple(found)
