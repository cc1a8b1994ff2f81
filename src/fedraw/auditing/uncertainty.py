"""Intervals of label influence if the clients' times are estimates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from fedraw.auditing.groups import Groups
from fedraw.auditing.influence import influence
from fedraw.auditing.methods import Rule
from fedraw.auditing.standing import LabelWeights
from fedraw.core.types import Floats

DRAWS = 60
NORMAL = 1.96  # 95 % of a normal law lie within this many standard deviations


@dataclass(frozen=True, eq=False)
class InfluenceInterval:
    """95 % intervals of the influence of every label, as multiples of the fair share."""

    low: Floats
    high: Floats


def influence_intervals(
    groups: Groups,
    labels: LabelWeights,
    size: int,
    rules: Mapping[str, Rule],
    seconds: Floats,
    interval: tuple[Floats, Floats] | None,
) -> dict[str, InfluenceInterval] | None:
    """Draw rates from log-normal laws around the estimates and take percentiles.

    interval: the ends of a 95 % interval of each client's time. None: the times are exact, and so
    is the influence.
    """
    if interval is None:
        return None
    rng = np.random.default_rng(0)
    spread = _log_spread(seconds, *interval)
    # A group's rate is the mean of its clients' rates, so their errors average out.
    of_group = np.sqrt(np.bincount(groups.of_client, spread**2)) / groups.many
    drawn: dict[str, list[Floats]] = {method: [] for method in rules}
    for _ in range(DRAWS):
        varied = replace(
            groups, rate=groups.rate * np.exp(of_group * rng.standard_normal(of_group.size))
        )
        for method, rule in rules.items():
            found = influence(varied, size, rule)
            drawn[method].append(labels.of_groups(found, rule.weighting).influence)
    return {
        method: InfluenceInterval(*np.percentile(draws, [2.5, 97.5], axis=0))
        for method, draws in drawn.items()
    }


def _log_spread(seconds: Floats, low: Floats, high: Floats) -> Floats:
    """The standard deviation of log seconds; if the upper end is unknown, from the lower one."""
    below = np.log(seconds / low)
    above = np.log(np.where(np.isfinite(high), high, seconds**2 / low) / seconds)
    return np.asarray((below + above) / (2 * NORMAL), np.float64)
