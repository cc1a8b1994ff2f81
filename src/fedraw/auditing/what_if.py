"""The worst label under other buffers, methods, caps and speeds, and the setting to recommend."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from fedraw.auditing.horizon import Horizon
from fedraw.auditing.influence import influence, kept
from fedraw.auditing.methods import (
    BY_METHOD,
    METHODS,
    RULES,
    VERDICTS,
    AuditedMethod,
    Rule,
    Verdict,
    capped,
    title,
)
from fedraw.auditing.presence import Groups, group_presence
from fedraw.auditing.standing import LabelWeights
from fedraw.auditing.words import Name, Words, about, plain_text
from fedraw.core.types import Floats, Label
from fedraw.strategies.catalog import SENT

SIZES = (3, 5, 10, 20, 50)
CAP = 0.3  # the paper's cap, which no honest client of its federations reaches
RATIOS = (1.0, 2.0, 5.0, 10.0, 20.0)
# Up to this many sites, half as many slots kept labels best (`python -m benchmarks.few_sites`).
FEW_SITES = 12
# Expected recalls that differ by at most this much are considered equal.
TIE = 0.05
_WAITS_FOR_ALL = (
    "; the buffer has a slot for every client, so training waits for all of them: set a smaller "
    "buffer if clients may drop out"
)


@dataclass(frozen=True, eq=False)
class ServerSetting:
    """A method with a buffer size and a cap, and the labels under it."""

    method: str
    buffer: int
    cap: float | None
    label_influence: Floats  # multiples of the fair share
    standing: Floats
    rare_presence: float | None  # percent; None if no label is rare
    recall: Floats  # expected within the horizon, from 0 to 1
    verdicts: tuple[Verdict, ...]

    @property
    def worst(self) -> int:
        """The position of the label of the lowest standing."""
        return int(np.argmin(self.standing))

    @property
    def effect(self) -> float:
        """The lowest expected recall."""
        return float(self.recall.min())

    @property
    def verdict(self) -> Verdict:
        """The worst verdict on any label."""
        return min(self.verdicts, key=VERDICTS.index)


@dataclass(frozen=True, eq=False)
class SlowerHolders:
    """Every method if the holders of rare labels took `ratio` times as long."""

    ratio: float
    settings: dict[str, ServerSetting]  # by method


def sizes_for(clients: int, own: int) -> list[int]:
    """Return the buffer sizes of the grid, which has smaller ones for a small federation."""
    few = (2,) if clients < 10 else ()
    return sorted({s for s in (*few, *SIZES, own, half_of(clients, own)) if s <= clients})


def half_of(clients: int, own: int) -> int:
    """Return half as many slots as a small federation has sites, or else the given buffer size."""
    return max(1, min(own, max(2, clients // 2))) if clients <= FEW_SITES else own


def what_if(
    groups: Groups,
    labels: LabelWeights,
    rare: npt.NDArray[np.bool_],
    size: int,
    cap: float | None,
    horizon: Horizon,
) -> tuple[ServerSetting, ...]:
    """Compute the grid: all methods and ablations, buffer sizes, FedRAW with and without a cap."""
    caps = sorted({CAP, CAP if cap is None else cap})
    rules = [*RULES.items(), *(("fedraw", capped(c)) for c in caps)]
    group = groups.members(rare)
    return tuple(
        _under(groups, labels, group, k, method, rule, horizon)
        for k in sizes_for(int(groups.many.sum()), size)
        for method, rule in rules
        if rule.cap == "none" or rule.cap_at >= 1 / k
    )


def if_slower(
    groups: Groups,
    labels: LabelWeights,
    rare: npt.NDArray[np.bool_],
    size: int,
    rules: Mapping[str, Rule],
    horizon: Horizon,
) -> tuple[SlowerHolders, ...]:
    """Compute every method with the holders of rare labels slower by each of `RATIOS`."""
    group = groups.members(rare)

    def slower(ratio: float) -> SlowerHolders:
        changed = replace(groups, rate=np.where(group, groups.rate / ratio, groups.rate))
        share = labels.sum_over_holders(changed.shares[changed.of_client])
        later = replace(horizon, share=share)
        found = {
            m: _under(changed, labels, group, size, m, rule, later) for m, rule in rules.items()
        }
        return SlowerHolders(ratio, found)

    return tuple(map(slower, RATIOS))


def _under(
    groups: Groups,
    labels: LabelWeights,
    group: npt.NDArray[np.bool_],
    size: int,
    method: str,
    rule: Rule,
    horizon: Horizon,
) -> ServerSetting:
    """Evaluate a method; `group` marks the groups with holders of rare labels."""
    present = None
    if group.any():
        stays = kept(groups, size, rule)
        slots = rule.slots(size, int(groups.many.sum()))
        share = group_presence(groups.shares, group, slots, rule.buffer, groups.many, stays)
        present = 100 * share
    found = labels.of_groups(influence(groups, size, rule), rule.weighting)
    cap = None if rule.cap == "none" else rule.cap_at
    recall = horizon.recall(method, found.standing, size)
    verdicts = horizon.verdicts(method, found.standing, size)
    return ServerSetting(
        method, size, cap, found.influence, found.standing, present, recall, verdicts
    )


@dataclass(frozen=True)
class Recommendation:
    """The setting to use, and why."""

    method: str
    buffer: int
    cap: float | None
    baseline: str  # the method that the user runs today
    label: Label  # the label of the lowest expected recall under the baseline
    before: float  # its standing there
    after: float  # its standing with the recommended setting
    recall_before: float  # the lowest expected recall of a label under the baseline, from 0 to 1
    recall_after: float  # the lowest one with the recommended setting
    verdict: Verdict  # the worst one on any label with the recommended setting
    words: Words  # the reason, with label names marked

    @property
    def setting(self) -> str:
        """The recommended setting, such as 'FedRAW, K=10, cap 0.3'."""
        return _setting(self)

    @property
    def keys(self) -> dict[str, str | int | float]:
        """The keys of a spec with their values; a Flower run config has them below `fedraw`."""
        named: dict[str, str | int | float] = {"strategy.name": self.method}
        if BY_METHOD[self.method].has_buffer:
            named["strategy.buffer"] = self.buffer
        if self.cap is not None:
            named |= {"strategy.cap": "water-filling", "strategy.cap_at": self.cap}
        return named

    @property
    def toml(self) -> str:
        """The keys as lines of a SPEC.toml."""
        return "\n".join(f"{key} = {json.dumps(value)}" for key, value in self.keys.items())

    @property
    def reason(self) -> str:
        """The reason as plain text."""
        return plain_text(self.words)

    def __str__(self) -> str:
        return f"{self.setting}: {self.reason}"


def _setting(found: Recommendation | ServerSetting) -> str:
    size = f", K={found.buffer}" if BY_METHOD[found.method].has_buffer else ""
    cap = "" if found.cap is None else f", cap {found.cap:g}"
    return f"{title(found.method)}{size}{cap}"


def recommend(
    labels: Sequence[Label],
    settings: Sequence[ServerSetting],
    size: int,
    cap: float | None,
    clients: int,
    baseline: str = "fedavg",
) -> Recommendation:
    """Recommend the setting of the largest lowest expected recall of a label.

    Of settings that differ by at most `TIE`, those of the best verdict count. The baseline comes
    first, then settings of which the server does not store an update of every client, then the
    measured merit. A method without a
    measured merit is not recommended, nor is one that waits for all clients, unless it is the
    baseline.
    """
    at = {(s.method, s.buffer, s.cap): s for s in settings}
    now = at[baseline, size, cap if baseline == "fedraw" else None]
    candidates = [now, *_candidates(at, size, cap, clients)]
    top = max(s.effect for s in candidates)
    tied = [s for s in candidates if s.effect >= top - TIE]
    verdict = max((s.verdict for s in tied), key=VERDICTS.index)
    best, *others = [s for s in tied if s.verdict == verdict]
    worst = int(np.argmin(now.recall))
    words: Words = ()
    if best is not now:
        words = (
            "the expected recall of label ",
            Name(labels[worst]),
            f" goes from {about(now.effect)} ({now.verdicts[worst]} under {title(baseline)}) to "
            f"{about(float(best.recall[worst]))}; ",
        )
    words = (*words, *_outlook(labels, best, stays=best is now), _costs(best, now))
    if best is now and BY_METHOD[baseline].waits and others:
        words = (*words, f"; {_setting(others[0])} promises as much without waiting for all sites")
    if best.buffer >= clients and BY_METHOD[best.method].rule.buffer == "dedup":
        words = (*words, _WAITS_FOR_ALL)
    return Recommendation(
        best.method,
        best.buffer,
        best.cap,
        baseline,
        labels[worst],
        float(now.standing[worst]),
        float(best.standing[worst]),
        now.effect,
        best.effect,
        best.verdict,
        words,
    )


def _outlook(labels: Sequence[Label], best: ServerSetting, *, stays: bool) -> Words:
    """Say what becomes of the labels with the recommended setting."""
    if best.verdict == "kept":
        return ("no label is at risk" if stays else "no label is at risk then",)
    i = next(i for i, word in enumerate(best.verdicts) if word == best.verdict)
    remedy = "it needs more samples, more holders or faster holders"
    if best.verdict == "late":
        remedy = "it needs more arrivals"
    no_more = "no setting promises more, but " if stays else ""
    return (f"{no_more}label ", Name(labels[i]), f" is still {best.verdict}; {remedy}")


def _candidates(
    at: dict[tuple[str, int, float | None], ServerSetting],
    size: int,
    cap: float | None,
    clients: int,
) -> list[ServerSetting]:
    """Return the settings to choose from, the preferred ones first.

    FedRAW may have a larger buffer than the given one. The other methods have the given buffer, or
    half as many slots as a small federation has sites.
    """
    found = []
    for method in sorted(map(BY_METHOD.__getitem__, METHODS), key=_preference):
        if method.merit is None or method.waits:
            continue
        if method.name == "fedraw":
            sizes = sorted({s.buffer for s in at.values() if s.buffer >= size})
            found += [
                _capped_if_free(at, k) if cap is None else at["fedraw", k, cap] for k in sizes
            ]
            continue
        for k in sorted({size, half_of(clients, size)}):
            setting, buffered = at.get((method.name, k, None)), at.get(("fedbuff", k, None))
            # If no client is rare enough for replay, it is the same as FedBuff.
            same = setting and buffered and np.allclose(setting.standing, buffered.standing, 1e-9)
            if setting and (method.name in ("fedbuff", "fedfa") or not same):
                found.append(setting)
    return found


def _preference(method: AuditedMethod) -> tuple[bool, float]:
    """Return a sort key: whether the server stores an update of every client, then merit."""
    _, _, per_client = method.memory or (0, 0, 1)
    return per_client > 0, -(method.merit or 0.0)


def _costs(best: ServerSetting, now: ServerSetting) -> str:
    """Say what a method costs that is not the baseline."""
    method, before = BY_METHOD[best.method], BY_METHOD[now.method]
    if method is before:
        return ""
    _, per_slot, per_client = method.memory or (0, 0, 1)
    costs = []
    if method.sends != before.sends:
        costs.append(f"clients send {SENT[method.sends]}")
    if per_client:
        costs.append("the server stores an update of every client")
    elif per_slot and method.sends == "delta":
        rare = " of rare clients" if method.rule.weighting == "replay" else ""
        costs.append(f"the server stores at most K updates{rare}")
    return f"; {', and '.join(costs)}" if costs else ""


def _capped_if_free(
    at: dict[tuple[str, int, float | None], ServerSetting], size: int
) -> ServerSetting:
    """Return FedRAW with the usual cap if it costs nothing: it bounds what false reports gain."""
    plain, with_cap = at["fedraw", size, None], at.get(("fedraw", size, CAP))
    if with_cap is None or with_cap.effect < plain.effect - TIE:
        return plain
    return with_cap
