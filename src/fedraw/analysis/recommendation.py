"""One setting to use, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedraw.analysis.verdict import SHOWN
from fedraw.analysis.what_if import CAP, WhatIf
from fedraw.core.types import Label

# A cap costs nothing where it hardly ever binds, and bounds what a false claim can weigh.
CAP_MAY_COST = 0.05

_REPLAY_COSTS = "clients send differences, and the server keeps at most K updates of rare clients"


@dataclass(frozen=True)
class Recommendation:
    method: str
    buffer_size: int
    cap: float | None
    label: Label  # the one of the lowest standing under FedFa, with the buffer asked about
    before: float  # its multiple of the fair share there
    after: float  # and with the recommendation
    reason: str

    def __str__(self) -> str:
        cap = "" if self.cap is None else f", cap {self.cap:g}"
        return f"{SHOWN[self.method]}, K={self.buffer_size}{cap}: {self.reason}"


def recommend(
    labels: Sequence[Label], settings: Sequence[WhatIf], size: int, cap: float | None
) -> Recommendation:
    """The least change from FedFa that keeps every label; else the one that does most.

    In this order: FedFa as it is, FedRAW with the same buffer (with the cap asked for; or with the
    usual one, where that costs nothing), FedRAW with larger buffers, FedBuff, to which clients send
    differences, replay, which stores updates of rare clients besides, CA2FL, which stores an update
    of every client.
    """
    at = {(s.method, s.buffer_size, s.cap): s for s in settings}
    now, buffered, cached = (at[method, size, None] for method in ("fedfa", "fedbuff", "ca2fl"))
    replayed = _more_than(buffered, at.get(("fedraw-replay", size, None)))
    sizes = sorted({s.buffer_size for s in settings if s.buffer_size >= size})
    weighted = [_capped_if_free(at, k) if cap is None else at["fedraw", k, cap] for k in sizes]

    def chosen(setting: WhatIf, reason: str) -> Recommendation:
        worst = now.worst
        before, after = (float(s.label_influence[worst]) for s in (now, setting))
        change = f"label {labels[worst]} goes from {before:.2f} to {after:.2f} of its fair share; "
        words = reason if setting.method in ("fedfa", "fedbuff") else change + reason
        return Recommendation(
            setting.method, setting.buffer_size, setting.cap, labels[worst], before, after, words
        )

    if now.verdict == "kept":
        return chosen(now, "no label is at risk as it is")
    for setting in weighted:
        if setting.verdict == "kept":
            larger = "" if setting.buffer_size == size else ", with a larger buffer"
            return chosen(setting, f"no label is at risk then{larger}")
    if buffered.verdict == "kept":
        return chosen(buffered, "adding updates forgets less: no label is at risk then")
    for setting in replayed:
        if setting.verdict == "kept":
            return chosen(setting, f"no label is at risk then; {_REPLAY_COSTS}")
    if cached.verdict == "kept":
        return chosen(cached, "no label is at risk then; the server stores an update per client")
    every = [now, *weighted, buffered, *replayed, cached]
    best = max(every, key=lambda setting: setting.margin)
    least = labels[best.worst]
    return chosen(
        best,
        f"the most any setting here does, yet label {least} is {best.verdict}, with a standing of "
        f"{100 * float(best.standing.min()):.3g} %; more of its samples, or more or quicker "
        "holders, would help",
    )


def _more_than(buffered: WhatIf, replayed: WhatIf | None) -> list[WhatIf]:
    """Replay, unless nobody is rare enough for it: then it is FedBuff."""
    if replayed is None or np.allclose(replayed.standing, buffered.standing, rtol=1e-9):
        return []
    return [replayed]


def _capped_if_free(at: dict[tuple[str, int, float | None], WhatIf], size: int) -> WhatIf:
    plain, capped = at["fedraw", size, None], at.get(("fedraw", size, CAP))
    free = capped is not None and capped.margin >= (1 - CAP_MAY_COST) * plain.margin
    return capped if capped is not None and free else plain
