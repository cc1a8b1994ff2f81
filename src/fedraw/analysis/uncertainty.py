"""What times estimated from few arrivals leave open: intervals of label influence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from fedraw.analysis.groups import Groups
from fedraw.analysis.influence import Rule, influence
from fedraw.analysis.label_influence import LabelShares
from fedraw.core.types import Floats, Ints

DRAWS = 40


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
    arrivals: Ints | None,
) -> dict[str, Interval] | None:
    """Rates are drawn again and again: given n arrivals, a memoryless one is gamma(n + 1/2)."""
    if arrivals is None:
        return None
    rng = np.random.default_rng(0)
    # A group's rate is the mean of its clients', so its arrivals are theirs together.
    shape = np.bincount(groups.of_client, arrivals + 0.5)
    drawn: dict[str, list[Floats]] = {method: [] for method in rules}
    for _ in range(DRAWS):
        rate = groups.rate * rng.gamma(shape) / shape
        varied = replace(groups, rate=np.maximum(rate, np.finfo(float).tiny))
        for method, rule in rules.items():
            found = influence(varied, size, rule)
            drawn[method].append(labels.of_groups(found, rule.weighting))
    return {method: Interval(*np.percentile(d, [2.5, 97.5], axis=0)) for method, d in drawn.items()}
