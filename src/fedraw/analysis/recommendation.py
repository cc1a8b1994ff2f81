"""One setting to use, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedraw.analysis.verdict import SHOWN, THRESHOLDS, verdict
from fedraw.analysis.what_if import WhatIf
from fedraw.core.types import Floats, Label

# A cap costs nothing where it hardly ever binds, and bounds what a false claim can weigh.
CAP_MAY_COST = 0.05


@dataclass(frozen=True)
class Recommendation:
    method: str
    buffer_size: int
    cap: float | None
    label: Label  # the worst off under FedFa with the buffer asked about
    before: float  # its multiple of the fair share there
    after: float  # and with the recommendation
    reason: str

    def __str__(self) -> str:
        cap = "" if self.cap is None else f", cap {self.cap:g}"
        return f"{SHOWN[self.method]}, K={self.buffer_size}{cap}: {self.reason}"


def recommend(
    labels: Sequence[Label], plain: Floats, settings: Sequence[WhatIf], size: int
) -> Recommendation:
    """The least change from FedFa that keeps every label; else the one that does most.

    In this order: FedFa as it is, FedRAW with the same buffer (capped, where that costs nothing),
    FedRAW with larger buffers, FedBuff, CA2FL, which stores an update of every client.
    """
    worst = int(plain.argmin())
    before = float(plain[worst])

    def chosen(setting: WhatIf, reason: str) -> Recommendation:
        after = float(setting.label_influence[worst])
        change = f"label {labels[worst]} goes from {before:.2f} to {after:.2f} of its fair share"
        words = reason if setting.method == "fedfa" else f"{change}; {reason}"
        return Recommendation(
            setting.method, setting.buffer_size, setting.cap, labels[worst], before, after, words
        )

    at = {(s.method, s.buffer_size, s.cap): s for s in settings}
    if _keeps_all(now := at["fedfa", size, None]):
        return chosen(now, f"every label has at least {before:.2f} of its fair share already")
    candidates = [
        _capped_if_free(at, k) for k in sorted({s.buffer_size for s in settings}) if k >= size
    ]
    for setting in candidates:
        if _keeps_all(setting):
            larger = "" if setting.buffer_size == size else ", with a larger buffer"
            return chosen(setting, f"no label is at risk then{larger}")
    buffered, cached = at["fedbuff", size, None], at["ca2fl", size, None]
    if _keeps_all(buffered):
        return chosen(buffered, "adding updates forgets less, and FedRAW leaves some at risk")
    if _keeps_all(cached):
        return chosen(
            cached, "FedRAW leaves some at risk; CA2FL stores an update per client for it"
        )
    best = max([*candidates, buffered, cached], key=lambda s: _least(s) / THRESHOLDS[s.method][1])
    least = labels[best.worst]
    return chosen(
        best,
        f"the most any setting here does, yet label {least} stays at "
        f"{float(best.label_influence.min()):.2f}: more holders, or quicker ones, are needed",
    )


def _keeps_all(setting: WhatIf) -> bool:
    return verdict(setting.method, _least(setting)) == "kept"


def _least(setting: WhatIf) -> float:
    return float(setting.label_influence.min())


def _capped_if_free(at: dict[tuple[str, int, float | None], WhatIf], size: int) -> WhatIf:
    plain = at["fedraw", size, None]
    capped = [s for (m, k, cap), s in at.items() if m == "fedraw" and k == size and cap is not None]
    free = [s for s in capped if _least(s) >= (1 - CAP_MAY_COST) * _least(plain)]
    return min(free, key=lambda s: s.cap or 1.0) if free else plain
