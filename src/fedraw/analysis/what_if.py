"""What would become of the worst label with another buffer, method or cap, or slower holders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from fedraw.analysis.groups import Groups
from fedraw.analysis.influence import RULES, Rule, influence, kept
from fedraw.analysis.label_influence import LabelShares
from fedraw.analysis.presence import group_presence
from fedraw.analysis.verdict import THRESHOLDS, Verdict, verdict
from fedraw.core.types import Floats

SIZES = (3, 5, 10, 20, 50)
CAP = 0.3  # the paper's, which no honest client of its federations reaches
RATIOS = (1.0, 2.0, 5.0, 10.0, 20.0)


@dataclass(frozen=True, eq=False)
class WhatIf:
    """One setting, and what it does to the labels."""

    method: str
    buffer_size: int
    cap: float | None
    label_influence: Floats  # multiples of the fair share
    standing: Floats  # see `verdict`
    rare_presence: float | None  # percent

    @property
    def worst(self) -> int:
        """The position of the label of the lowest standing."""
        return int(np.argmin(self.standing))

    @property
    def margin(self) -> float:
        """The lowest standing, as a multiple of what it takes to be kept."""
        return float(self.standing.min()) / THRESHOLDS[self.method][1]

    @property
    def verdict(self) -> Verdict:
        """Of the label of the lowest standing."""
        return verdict(self.method, float(self.standing.min()))


@dataclass(frozen=True, eq=False)
class Slower:
    """Holders of rare labels this many times as slow as now."""

    ratio: float
    label_influence: dict[str, Floats]
    standing: dict[str, Floats]
    rare_presence: dict[str, float]

    def worst(self, method: str, labels: Sequence[int]) -> tuple[int, Verdict]:
        """Of these labels the one of the lowest standing, and its verdict."""
        own = self.standing[method]
        label = min(labels, key=lambda i: own[i])
        return label, verdict(method, float(own[label]))


def sizes_for(clients: int, own: int) -> list[int]:
    """The sizes to try; in a small federation two slots are a choice as well."""
    few = (2,) if clients < 10 else ()
    return sorted({size for size in (*few, *SIZES, own) if size <= clients})


def what_if(
    groups: Groups,
    labels: LabelShares,
    rare: npt.NDArray[np.bool_],
    size: int,
    cap: float | None,
) -> tuple[WhatIf, ...]:
    """The grid: every method and ablation, several buffers, FedRAW with and without a cap."""
    caps = sorted({CAP, CAP if cap is None else cap})
    rules = [
        *((method, None, rule) for method, rule in RULES.items()),
        *(("fedraw", c, replace(RULES["fedraw"], cap="water-filling", cap_at=c)) for c in caps),
    ]
    group = groups.members(rare)
    return tuple(
        WhatIf(
            method,
            k,
            at,
            *labels.of_groups(influence(groups, k, rule), rule.weighting),
            _percent(groups, group, k, rule) if rare.any() else None,
        )
        for k in sizes_for(int(groups.many.sum()), size)
        for method, at, rule in rules
        if at is None or at >= 1 / k
    )


def if_slower(
    groups: Groups,
    labels: LabelShares,
    rare: npt.NDArray[np.bool_],
    size: int,
    rules: Mapping[str, Rule],
) -> tuple[Slower, ...]:
    """The methods, with the holders of rare labels slower and slower."""
    group = groups.members(rare)
    found = []
    for ratio in RATIOS:
        changed = replace(groups, rate=np.where(group, groups.rate / ratio, groups.rate))
        voices = {
            m: labels.of_groups(influence(changed, size, r), r.weighting) for m, r in rules.items()
        }
        found.append(
            Slower(
                ratio,
                {m: voice.influence for m, voice in voices.items()},
                {m: voice.standing for m, voice in voices.items()},
                {m: _percent(changed, group, size, r) for m, r in rules.items()},
            )
        )
    return tuple(found)


def _percent(groups: Groups, group: npt.NDArray[np.bool_], size: int, rule: Rule) -> float:
    stays = kept(groups, size, rule)
    return 100 * group_presence(groups.shares, group, size, rule.buffer, groups.many, stays)
