"""What times estimated from few arrivals leave open: intervals of label influence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from fedraw.analysis.groups import Groups
from fedraw.analysis.influence import Rule, influence
from fedraw.analysis.label_influence import LabelShares
from fedraw.core.types import Floats

DRAWS = 60
NORMAL = 1.96  # 95 % of a normal law lie within


@dataclass(frozen=True, eq=False)
class Interval:
    """95 % of the federations that could have left such a log behind lie between."""

    low: Floats
    high: Floats


def intervals(
    groups: Groups,
    labels: LabelShares,
    size: int,
    rules: Mapping[str, Rule],
    seconds: Floats,
    interval: tuple[Floats, Floats] | None,
) -> dict[str, Interval] | None:
    """Rates are drawn again and again, log-normal around what was estimated."""
    if interval is None:
        return None
    rng = np.random.default_rng(0)
    spread = _log_spread(seconds, *interval)
    # A group's rate is the mean of its clients': their errors average out.
    of_group = np.sqrt(np.bincount(groups.of_client, spread**2)) / groups.many
    drawn: dict[str, list[Floats]] = {method: [] for method in rules}
    for _ in range(DRAWS):
        varied = replace(
            groups, rate=groups.rate * np.exp(of_group * rng.standard_normal(of_group.size))
        )
        for method, rule in rules.items():
            found = influence(varied, size, rule)
            drawn[method].append(labels.of_groups(found, rule.weighting).influence)
    return {method: Interval(*np.percentile(d, [2.5, 97.5], axis=0)) for method, d in drawn.items()}


def _log_spread(seconds: Floats, low: Floats, high: Floats) -> Floats:
    """The standard deviation of log seconds; from one side where the other is not known."""
    below = np.log(seconds / low)
    above = np.log(np.where(np.isfinite(high), high, seconds**2 / low) / seconds)
    return np.asarray((below + above) / (2 * NORMAL), np.float64)
