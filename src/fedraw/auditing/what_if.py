"""The worst label under other buffers, methods, caps and speeds, and the setting to recommend."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from fedraw.auditing.influence import influence, kept
from fedraw.auditing.methods import (
    BY_METHOD,
    METHODS,
    RULES,
    THRESHOLDS,
    AuditedMethod,
    Rule,
    Verdict,
    capped,
    title,
    verdict,
)
from fedraw.auditing.presence import Groups, group_presence
from fedraw.auditing.standing import LabelWeights
from fedraw.auditing.words import Name, Words, plain_text, standing_percent
from fedraw.core.types import Floats, Label

SIZES = (3, 5, 10, 20, 50)
CAP = 0.3  # the paper's cap, which no honest client of its federations reaches
RATIOS = (1.0, 2.0, 5.0, 10.0, 20.0)
# Recommend the cap if it lowers the worst standing by at most this share: a cap bounds the weight
# that a false label report can gain.
CAP_MAY_COST = 0.05
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
    """Every method if the holders of rare labels took `ratio` times as long."""

    ratio: float
    settings: dict[str, ServerSetting]  # by method


def sizes_for(clients: int, own: int) -> list[int]:
    """Return the buffer sizes of the grid, which includes 2 for a small federation."""
    few = (2,) if clients < 10 else ()
    return sorted({size for size in (*few, *SIZES, own) if size <= clients})


def what_if(
    groups: Groups,
    labels: LabelWeights,
    rare: npt.NDArray[np.bool_],
    size: int,
    cap: float | None,
) -> tuple[ServerSetting, ...]:
    """Compute the grid: all methods and ablations, buffer sizes, FedRAW with and without a cap."""
    caps = sorted({CAP, CAP if cap is None else cap})
    rules = [*RULES.items(), *(("fedraw", capped(c)) for c in caps)]
    group = groups.members(rare)
    return tuple(
        _under(groups, labels, group, k, method, rule)
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
) -> tuple[SlowerHolders, ...]:
    """Compute every method with the holders of rare labels slower by each of `RATIOS`."""
    group = groups.members(rare)

    def slower(ratio: float) -> SlowerHolders:
        changed = replace(groups, rate=np.where(group, groups.rate / ratio, groups.rate))
        found = {m: _under(changed, labels, group, size, m, rule) for m, rule in rules.items()}
        return SlowerHolders(ratio, found)

    return tuple(map(slower, RATIOS))


def _under(
    groups: Groups,
    labels: LabelWeights,
    group: npt.NDArray[np.bool_],
    size: int,
    method: str,
    rule: Rule,
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
    return ServerSetting(method, size, cap, found.influence, found.standing, present)


@dataclass(frozen=True)
class Recommendation:
    """The setting to use, and why."""

    method: str
    buffer: int
    cap: float | None
    label: Label  # the label of the lowest standing under FedFa with the given buffer
    before: float  # its standing there
    after: float  # its standing with the recommended setting
    verdict: Verdict  # on the label that has the lowest standing with the recommended setting
    words: Words  # the reason, with label names marked

    @property
    def setting(self) -> str:
        """The recommended setting, such as 'FedRAW, K=10, cap 0.3'."""
        size = f", K={self.buffer}" if BY_METHOD[self.method].has_buffer else ""
        cap = "" if self.cap is None else f", cap {self.cap:g}"
        return f"{title(self.method)}{size}{cap}"

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


def recommend(
    labels: Sequence[Label],
    settings: Sequence[ServerSetting],
    size: int,
    cap: float | None,
    clients: int,
) -> Recommendation:
    """Recommend the smallest change from FedFa that keeps all labels, or else the best setting.

    The order is: FedFa as it is; FedRAW with the same buffer (with the given cap, or with the usual
    one if it costs nothing); FedRAW with larger buffers; then the methods whose clients send
    differences, starting with those that store the least: a few models, an update per slot, an
    update of every client. Methods with the same storage are ordered by their measured merit, and
    a method without a measured merit is not recommended.
    """
    at = {(s.method, s.buffer, s.cap): s for s in settings}
    now = at["fedfa", size, None]
    candidates = _candidates(at, size, cap)
    kept_by = next(((s, why) for s, why in candidates if s.verdict == "kept"), None)
    best, reason = kept_by or (max((s for s, _ in candidates), key=lambda s: s.margin), "")
    worst = now.worst
    before, after = (float(s.standing[worst]) for s in (now, best))
    words: Words = (reason,)
    if not reason:
        words = (
            "no setting in the grid does more, but label ",
            Name(labels[best.worst]),
            f" is still {best.verdict}, with a standing of "
            f"{standing_percent(float(best.standing.min()), best.method)}; "
            "it needs more samples, more holders or faster holders",
        )
    if best.method not in ("fedfa", "fedbuff"):  # FedBuff gives a label the standing of FedFa
        old, new = standing_percent(before, "fedfa"), standing_percent(after, best.method)
        change = f" goes from a standing of {old} ({now.verdict} under FedFa) to {new}; "
        words = ("label ", Name(labels[worst]), change, *words)
    if best.buffer >= clients and BY_METHOD[best.method].rule.buffer == "dedup":
        words = (*words, _WAITS_FOR_ALL)
    return Recommendation(
        best.method, best.buffer, best.cap, labels[worst], before, after, best.verdict, words
    )


def _candidates(
    at: dict[tuple[str, int, float | None], ServerSetting], size: int, cap: float | None
) -> list[tuple[ServerSetting, str]]:
    """Return the settings to choose from, the smallest change first, with a reason for each."""
    now, buffered = at["fedfa", size, None], at["fedbuff", size, None]
    found = [(now, "no label is at risk")]
    for k in sorted({s.buffer for s in at.values() if s.buffer >= size}):
        larger = "" if k == size else " with a larger buffer"
        weighted = _capped_if_free(at, k) if cap is None else at["fedraw", k, cap]
        found.append((weighted, f"no label is at risk then{larger}"))
    for method in sorted(map(BY_METHOD.__getitem__, METHODS), key=_cost):
        setting = at.get((method.name, size, None))
        # AREA's residuals need clients that never lose their state, which no server can verify.
        if method.sends != "delta" or method.merit is None or setting is None:
            continue
        # If no client is rare enough for replay, it is the same as FedBuff.
        if method.name == "fedbuff" or not np.allclose(
            setting.standing, buffered.standing, rtol=1e-9
        ):
            found.append((setting, _why(method)))
    return found


def _cost(method: AuditedMethod) -> tuple[int, float]:
    """Return a sort key: what the server stores (few models, per slot, per client), then merit."""
    _, per_slot, per_client = method.memory or (0, 0, 1)
    stores = 2 if per_client else 1 if per_slot else 0
    return stores, -(method.merit or 0.0)


def _why(method: AuditedMethod) -> str:
    """Return the reason to choose a method that keeps every label, and its cost."""
    if method.name == "fedbuff":
        return "adding updates forgets less, so no label is at risk then"
    stores, _ = _cost(method)
    if stores == 2:
        return "no label is at risk then; the server stores an update of every client"
    costs = "clients send differences"
    if stores == 1:
        rare = " of rare clients" if method.rule.weighting == "replay" else ""
        costs += f", and the server stores at most K updates{rare}"
    return f"no label is at risk then; {costs}"


def _capped_if_free(
    at: dict[tuple[str, int, float | None], ServerSetting], size: int
) -> ServerSetting:
    plain, with_cap = at["fedraw", size, None], at.get(("fedraw", size, CAP))
    if with_cap is None or with_cap.margin < (1 - CAP_MAY_COST) * plain.margin:
        return plain
    return with_cap
