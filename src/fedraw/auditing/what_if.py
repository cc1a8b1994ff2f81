"""The worst label under other buffers, methods, caps and speeds, and the setting to recommend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from fedraw.auditing.groups import Groups
from fedraw.auditing.influence import influence, kept
from fedraw.auditing.methods import RULES, THRESHOLDS, Rule, Verdict, capped, title, verdict
from fedraw.auditing.presence import group_presence
from fedraw.auditing.standing import LabelWeights
from fedraw.auditing.words import Name, Words, plain_text
from fedraw.core.types import Floats, Label

SIZES = (3, 5, 10, 20, 50)
CAP = 0.3  # the paper's, which no honest client of its federations reaches
RATIOS = (1.0, 2.0, 5.0, 10.0, 20.0)
# Recommend the cap if it lowers the worst standing by at most this share: a cap bounds the weight
# that a false label report can gain.
CAP_MAY_COST = 0.05


@dataclass(frozen=True, eq=False)
class ServerSetting:
    """A method with a buffer size and a cap, and the labels under it."""

    method: str
    buffer: int
    cap: float | None
    label_influence: Floats  # multiples of the fair share
    standing: Floats
    rare_presence: float | None  # percent; None if no label is rare

    @property
    def worst(self) -> int:
        """The position of the label of the lowest standing."""
        return int(np.argmin(self.standing))

    @property
    def margin(self) -> float:
        """The lowest standing as a multiple of the standing from which a label is kept."""
        return float(self.standing.min()) / THRESHOLDS[self.method][1]

    @property
    def verdict(self) -> Verdict:
        """The verdict on the label of the lowest standing."""
        return verdict(self.method, float(self.standing.min()))


@dataclass(frozen=True, eq=False)
class SlowerHolders:
    """The labels by method if the holders of rare labels took `ratio` times as long."""

    ratio: float
    label_influence: dict[str, Floats]
    standing: dict[str, Floats]
    rare_presence: dict[str, float]

    def worst(self, method: str, labels: Sequence[int]) -> tuple[int, Verdict]:
        """The label of the lowest standing among `labels`, and its verdict."""
        own = self.standing[method]
        label = min(labels, key=lambda i: own[i])
        return label, verdict(method, float(own[label]))


def sizes_for(clients: int, own: int) -> list[int]:
    """The buffer sizes of the grid; a small federation gets a buffer of two as well."""
    few = (2,) if clients < 10 else ()
    return sorted({size for size in (*few, *SIZES, own) if size <= clients})


def what_if(
    groups: Groups,
    labels: LabelWeights,
    rare: npt.NDArray[np.bool_],
    size: int,
    cap: float | None,
) -> tuple[ServerSetting, ...]:
    """The grid: every method and ablation, several buffer sizes, FedRAW with and without a cap."""
    caps = sorted({CAP, CAP if cap is None else cap})
    rules = [
        *((method, None, rule) for method, rule in RULES.items()),
        *(("fedraw", c, capped(c)) for c in caps),
    ]
    group = groups.members(rare)
    return tuple(
        ServerSetting(
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
    labels: LabelWeights,
    rare: npt.NDArray[np.bool_],
    size: int,
    rules: Mapping[str, Rule],
) -> tuple[SlowerHolders, ...]:
    """Every method with the holders of rare labels slower by each of `RATIOS`."""
    group = groups.members(rare)
    rows = []
    for ratio in RATIOS:
        changed = replace(groups, rate=np.where(group, groups.rate / ratio, groups.rate))
        found = {
            m: labels.of_groups(influence(changed, size, r), r.weighting) for m, r in rules.items()
        }
        rows.append(
            SlowerHolders(
                ratio,
                {m: labels_.influence for m, labels_ in found.items()},
                {m: labels_.standing for m, labels_ in found.items()},
                {m: _percent(changed, group, size, r) for m, r in rules.items()},
            )
        )
    return tuple(rows)


def _percent(groups: Groups, group: npt.NDArray[np.bool_], size: int, rule: Rule) -> float:
    stays = kept(groups, size, rule)
    return 100 * group_presence(groups.shares, group, size, rule.buffer, groups.many, stays)


@dataclass(frozen=True)
class Recommendation:
    """The setting to use, and why."""

    method: str
    buffer: int
    cap: float | None
    label: Label  # the label of the lowest standing under FedFa with the given buffer
    before: float  # its influence there, as a multiple of the fair share
    after: float  # its influence with the recommended setting
    words: Words  # the reason, with label names marked

    @property
    def setting(self) -> str:
        """The recommended setting, such as 'FedRAW, K=10, cap 0.3'."""
        cap = "" if self.cap is None else f", cap {self.cap:g}"
        return f"{title(self.method)}, K={self.buffer}{cap}"

    @property
    def reason(self) -> str:
        """The reason as plain text."""
        return plain_text(self.words)

    def __str__(self) -> str:
        return f"{self.setting}: {self.reason}"


def recommend(
    labels: Sequence[Label], settings: Sequence[ServerSetting], size: int, cap: float | None
) -> Recommendation:
    """The smallest change from FedFa that keeps every label, or else the most effective setting.

    The order is: FedFa as it is; FedRAW with the same buffer (with the given cap, or with the usual
    one if it costs nothing); FedRAW with larger buffers; FedBuff, to which clients send
    differences; replay, which also stores updates of rare clients; CA2FL, which stores an update of
    every client.
    """
    at = {(s.method, s.buffer, s.cap): s for s in settings}
    now = at["fedfa", size, None]
    candidates = _candidates(at, size, cap)
    kept_by = next(((s, why) for s, why in candidates if s.verdict == "kept"), None)
    best, reason = kept_by or (max((s for s, _ in candidates), key=lambda s: s.margin), "")
    worst = now.worst
    before, after = (float(s.label_influence[worst]) for s in (now, best))
    words: Words = (reason,)
    if not reason:
        words = (
            "no setting in the grid does more, but label ",
            Name(labels[best.worst]),
            f" is still {best.verdict}, with a standing of {100 * float(best.standing.min()):.3g} "
            "%; it needs more samples, more holders or faster holders",
        )
    if best.method not in ("fedfa", "fedbuff"):
        change = f" goes from {before:.2f} to {after:.2f} of its fair share; "
        words = ("label ", Name(labels[worst]), change, *words)
    return Recommendation(best.method, best.buffer, best.cap, labels[worst], before, after, words)


def _candidates(
    at: dict[tuple[str, int, float | None], ServerSetting], size: int, cap: float | None
) -> list[tuple[ServerSetting, str]]:
    """The settings to choose from, the smallest change first, with the reason to choose each."""
    now, buffered, cached = (at[method, size, None] for method in ("fedfa", "fedbuff", "ca2fl"))
    found = [(now, "no label is at risk")]
    for k in sorted({s.buffer for s in at.values() if s.buffer >= size}):
        larger = "" if k == size else " with a larger buffer"
        weighted = _capped_if_free(at, k) if cap is None else at["fedraw", k, cap]
        found.append((weighted, f"no label is at risk then{larger}"))
    found.append((buffered, "adding updates forgets less, so no label is at risk then"))
    replayed = at.get(("fedraw-replay", size, None))
    # If no client is rare enough for replay, it is the same as FedBuff.
    if replayed and not np.allclose(replayed.standing, buffered.standing, rtol=1e-9):
        costs = "clients send differences, and the server stores at most K updates of rare clients"
        found.append((replayed, f"no label is at risk then; {costs}"))
    found.append((cached, "no label is at risk then; the server stores an update of every client"))
    return found


def _capped_if_free(
    at: dict[tuple[str, int, float | None], ServerSetting], size: int
) -> ServerSetting:
    plain, with_cap = at["fedraw", size, None], at.get(("fedraw", size, CAP))
    if with_cap is None or with_cap.margin < (1 - CAP_MAY_COST) * plain.margin:
        return plain
    return with_cap
