"""The view model of an audit: everything that the terminal, the page and the JSON document show.

`terminal` and `page` only lay out its contents, so that they cannot disagree. The JSON document is
the view itself, written out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from fedraw.auditing.methods import (
    BY_METHOD,
    COLUMNS,
    ENOUGH_UPDATES,
    METHODS,
    THRESHOLDS,
    VERDICTS,
    Verdict,
    same_rule,
    title,
)
from fedraw.auditing.prediction import Audit
from fedraw.auditing.what_if import Recommendation, ServerSetting
from fedraw.auditing.words import (
    TIED,
    UNKNOWN,
    Name,
    Words,
    enumeration,
    limit,
    plain_number,
    plain_text,
    rounded,
    standing_percent,
)
from fedraw.core.text import counted, duration
from fedraw.core.types import ClientId, Floats, Ints, Label
from fedraw.strategies.catalog import SENT

FATES: dict[Verdict, str] = {"lost": "about to be lost", "at risk": "at risk", "late": "late"}
COST_COLUMNS = ("models on the server", "clients send", "uses labels", "merit")
COST_CAPTION = (
    "merit: the mean recall of rare labels in the arena on digits and HAM10000, with each method's "
    "rate tuned (docs/research/arena.md). The recommendation goes by the lowest expected recall of "
    "a label, and by merit among settings that promise the same."
)


@dataclass(frozen=True)
class LabelUnderMethod:
    """A label's standing and verdict under one method."""

    method: str
    influence: float  # as a multiple of the fair share
    standing: float
    verdict: Verdict
    interval: tuple[float, float] | None  # of the standing; None if the times are not estimates
    recall: float  # expected within the horizon, from 0 to 1


@dataclass(frozen=True)
class LabelRow:
    """A label with its verdicts."""

    label: Label
    rare: bool
    coverage: int
    fair_share: float
    holders_slowness: float
    holders_share: float
    updates: float  # expected from its holders within the horizon
    methods: dict[str, LabelUnderMethod]
    verdict: str  # of all methods, in words


@dataclass(frozen=True)
class WorstLabel:
    """The worst label under one setting: a cell of the what-if tables."""

    method: str
    cap: float | None
    buffer: int
    label: Label
    influence: float
    standing: float
    verdict: Verdict
    rare_presence: float | None  # percent; None if no label is rare
    recommended: bool = False


@dataclass(frozen=True)
class SlowerColumn:
    """The worst rare label by method if the holders of rare labels took `ratio` times as long."""

    ratio: float
    worst: dict[str, WorstLabel]


@dataclass(frozen=True)
class MethodCost:
    """What a method requires of the server and of the clients, and its measured merit."""

    method: str
    models: float | None  # that the server stores
    sends: str  # what clients send
    labels: bool  # whether the method uses labels
    merit: float | None  # mean AvgRare where it was measured, in percent
    aggregations: float  # within the horizon
    time: float  # that the horizon takes, over that of an asynchronous method


@dataclass(frozen=True)
class ClientRow:
    """A client with its presence and influence by method, from 0 to 1."""

    client: ClientId
    rare: bool  # holds a rare label
    samples: int
    share: float  # of all samples
    score: float
    seconds: float | None  # None if no times are known
    presence: dict[str, float]
    influence: dict[str, float]


@dataclass(frozen=True, eq=False)
class AuditView:
    """An audit, the source of its times and the notes of its inputs, ready to be rendered.

    Rows of clients are built on demand, because there may be a million.
    """

    audit: Audit
    source: str  # of the times
    notes: tuple[str, ...] = ()
    name: str = ""  # what was audited, such as the name of the label file
    method: str | None = None  # of the headline; by default the baseline

    @property
    def headline_method(self) -> str:
        """The method that the headline is about."""
        return self.method or self.audit.baseline

    @property
    def under(self) -> str:
        """The method of the headline, such as " under FedRAW"."""
        return f" under {title(self.headline_method)}"

    @property
    def recommendation(self) -> Recommendation:
        """The recommended setting."""
        return self.audit.recommendation

    @cached_property
    def labels(self) -> tuple[LabelRow, ...]:
        """All labels, in the order of the label counts."""
        rare = set(self.audit.rare_labels)
        return tuple(
            _label_row(self.audit, i, label in rare) for i, label in enumerate(self.audit.labels)
        )

    @cached_property
    def worst_first(self) -> tuple[LabelRow, ...]:
        """All labels by their standing under the headline's method, the lowest first."""
        return tuple(self.labels[i] for i in self.audit.worst_first(self.headline_method))

    @cached_property
    def settings(self) -> tuple[WorstLabel, ...]:
        """The worst label under every setting of the what-if grid."""
        best, every = self.recommendation, range(len(self.audit.labels))
        chosen = (best.method, best.buffer, best.cap)
        return tuple(
            _worst_of(self.audit, s, every, (s.method, s.buffer, s.cap) == chosen)
            for s in self.audit.what_if
        )

    @cached_property
    def recommended(self) -> ServerSetting:
        """The recommended setting with the labels under it."""
        best = self.recommendation
        chosen = best.method, best.buffer, best.cap
        return next(s for s in self.audit.what_if if (s.method, s.buffer, s.cap) == chosen)

    @cached_property
    def slower(self) -> tuple[SlowerColumn, ...]:
        """The worst rare label if holders of rare labels were slower; empty if none is rare."""
        rare = [self.audit.labels.index(label) for label in self.audit.rare_labels]
        return tuple(
            SlowerColumn(
                slow.ratio, {m: _worst_of(self.audit, slow.settings[m], rare) for m in METHODS}
            )
            for slow in self.audit.slower
        )

    @cached_property
    def costs(self) -> tuple[MethodCost, ...]:
        """What each method requires, with this many clients and this buffer."""
        clients, size = len(self.audit.clients), self.audit.buffer
        return tuple(
            MethodCost(
                m,
                own.models(clients, size),
                own.sends,
                own.labels,
                own.merit,
                self.audit.aggregations(m),
                self.audit.round_time if own.waits else 1.0,
            )
            for m, own in ((method, BY_METHOD[method]) for method in METHODS)
        )

    def grid(self) -> tuple[list[int], dict[tuple[str, float | None], list[WorstLabel | None]]]:
        """Return the what-if grid: buffer sizes across, methods and caps down.

        A cell is None if the cap cannot be met with that buffer. Capped rows follow the uncapped
        one, and ablations come last. Methods with the same rule share a row.
        """
        first = {(s.method, s.cap, s.buffer): s for s in self.settings}
        at = {key: s for key, s in first.items() if same_rule(s.method)[0] == s.method}
        for s in self.settings:
            if s.recommended:
                key = same_rule(s.method)[0], s.cap, s.buffer
                at[key] = replace(at[key], recommended=True)
        sizes = sorted({size for _, _, size in at})

        def order(row: tuple[str, float | None]) -> tuple[int, float]:
            method, cap = row
            place = METHODS.index(method) if method in METHODS else len(METHODS)
            return place, 0.0 if cap is None else 2.0 - cap

        rows = sorted(dict.fromkeys((method, cap) for method, cap, _ in at), key=order)
        return sizes, {row: [at.get((*row, size)) for size in sizes] for row in rows}

    def client(self, i: int) -> ClientRow:
        """Return the client at a position."""
        audit = self.audit
        samples = int(audit.samples[i])
        return ClientRow(
            audit.clients[i],
            bool(audit.holds_rare[i]),
            samples,
            samples / self.samples,
            float(audit.scores[i]),
            float(audit.seconds[i]) if audit.times_known else None,
            {m: float(audit.presence[m][i]) for m in METHODS},
            {m: float(audit.influence[m][i]) for m in METHODS},
        )

    def clients_by(self, method: str, *, per_sample: bool) -> Ints:
        """Return the clients' positions by influence, or by influence over share of samples."""
        weight = self.relative_influence(method) if per_sample else self.audit.influence[method]
        return np.asarray(np.argsort(-weight, kind="stable"), np.int64)

    def relative_influence(self, method: str) -> Floats:
        """Return the influence of every client over its share of all samples."""
        samples = self.audit.samples.astype(np.float64)
        return np.asarray(self.audit.influence[method] * (samples.sum() / samples), np.float64)

    @cached_property
    def samples(self) -> int:
        """The number of samples of all clients."""
        return int(self.audit.samples.sum())

    @property
    def rare_clients(self) -> int:
        """The number of clients that hold a rare label."""
        return int(self.audit.holds_rare.sum())

    def tally(self, method: str) -> dict[Verdict, int]:
        """Return the number of labels with each verdict."""
        return {word: self.audit.verdicts[method].count(word) for word in VERDICTS}

    @property
    def headline(self) -> str:
        """What happens to the labels under the method that was asked for, or the baseline."""
        many = self.tally(self.headline_method)
        fates = [(many[word], fate) for word, fate in FATES.items() if many[word]]
        if not fates:
            return f"No label is at risk{self.under}"
        (first, fate), *rest = fates
        total = counted(len(self.audit.labels), "label")
        more = "".join(f", {n:,} more {'is' if n == 1 else 'are'} {fate}" for n, fate in rest)
        return f"{first:,} of {total} {'is' if first == 1 else 'are'} {fate}{self.under}{more}"

    @property
    def lead(self) -> Words:
        """Which labels the headline means, and why."""
        method = self.headline_method
        setting = f"if the server {self._rule_in_words}"
        worst = [row for row in self.worst_first if row.methods[method].verdict != "kept"]
        if not worst:
            worse = [title(m) for m in COLUMNS if set(self.audit.verdicts[m]) - {"kept"}]
            if worse:
                *others, last = worse
                either = f"{', '.join(others)} or {last}" if others else last
                return (f"This holds {setting}, but not under {either}.",)
            return (f"This holds {'even ' if method == 'fedfa' else ''}{setting}.",)
        if all(row.methods[method].verdict == "late" for row in worst):
            return (
                f"I{setting[1:]}, {counted(self.audit.arrivals, 'arrival')} are too few to learn "
                f"{'label' if len(worst) == 1 else 'labels'} ",
                *enumeration([row.label for row in worst]),
                f". These are {counted(round(self.audit.aggregations(method)), 'aggregation')}.",
            )
        worst = [row for row in worst if row.methods[method].verdict != "late"]
        first, one = worst[0], len(worst) == 1
        return (
            f"I{setting[1:]}, {'label' if one else 'labels'} ",
            *enumeration([row.label for row in worst]),
            f" {'has' if one else 'have'} too little influence on the model. ",
            *(("It",) if one else ("Label ", Name(first.label))),
            f" is held by {counted(first.coverage, 'client')} and has a standing of "
            f"{standing_percent(first.methods[method].standing, method)}; it would be kept from "
            f"{limit(THRESHOLDS[method].kept)} on.",
        )

    @property
    def _rule_in_words(self) -> str:
        """What a server does under the headline's method, after the words "the server"."""
        method, size, cap = self.headline_method, self.audit.buffer, self.audit.cap
        if method == "fedavg":
            return "waits for all sites and averages their models (FedAvg)"
        if method == "fedfa":
            last = "only the last update" if size == 1 else f"the last {size:,} updates"
            return f"averages {last}, regardless of sender (FedFa)"
        buffer = f" with K={size}" if BY_METHOD[method].has_buffer else ""
        capped = f" and a cap of {cap:g}" if cap is not None and method == "fedraw" else ""
        return f"runs {title(method)}{buffer}{capped}"

    @property
    def horizon(self) -> str:
        """The horizon, and what it is for the baseline and the recommended setting."""
        audit, best = self.audit, self.recommendation
        arrivals = counted(audit.arrivals, "arrival")
        baseline = f"{title(audit.baseline)} makes {_times(audit.aggregations(audit.baseline))}"
        if best.method == audit.baseline and best.buffer == audit.buffer:
            return f"In {arrivals} {baseline}."
        own = _times(audit.horizon.aggregations(best.method, best.buffer))
        return f"In {arrivals} {baseline}, and {best.setting} makes {own}."

    @property
    def waiting(self) -> str:
        """What it costs in time to wait for all sites; empty if the baseline does not."""
        if not BY_METHOD[self.audit.baseline].waits:
            return ""
        return (
            f"A round of {title(self.audit.baseline)} waits for the slowest site, so the run takes "
            f"{plain_number(self.audit.round_time)} times as long as an asynchronous one."
        )

    @property
    def one_pass(self) -> str:
        """What one pass would need: no arrivals, but features of a fixed map."""
        audit = self.audit
        fewest = int(np.argmin(audit.label_samples))
        when = "from the message of its first holder on"
        if audit.times_known:
            last = int(np.argmax(audit.first_heard))
            seconds = duration(float(audit.first_heard[last]))
            when += f" (the last label, {audit.labels[last]}, after {seconds})"
        samples = counted(int(audit.label_samples[fewest]), "sample")
        return (
            "Try one pass first if features of a fixed map are at hand, such as a pre-trained "
            f"network: every site sends sums once, and the model knows a label {when}. "
            f"The smallest label, {audit.labels[fewest]}, has {samples}. "
            "docs/explanation/choose.md says when training is better."
        )

    @property
    def rare_rule(self) -> str:
        """The rule by which the rare labels are rare."""
        if not self.audit.rare_by_coverage:
            return "as given"
        median = f"{float(np.median(self.audit.coverage)):,g}"
        return f"held by at most half as many clients as the median label ({median})"

    @property
    def replay(self) -> str:
        """Which updates replay keeps, and what the verdicts on both replays assume."""
        audit = self.audit
        words = f"Replay keeps the last update of {counted(audit.replayed.size, 'client')}."
        if not audit.replayed.size:
            words = (
                "Replay equals FedBuff here: no client's rarity score is above twice the median."
            )
        if not audit.rare_labels:
            return words
        rare = [audit.labels.index(label) for label in audit.rare_labels]
        rarest = max(rare, key=audit.arrivals_until_heard)
        arrivals = counted(rounded(audit.arrivals_until_heard(rarest)), "arrival")
        return (
            f"{words} The verdicts on replay and debt replay assume {ENOUGH_UPDATES} updates from "
            f"a label's holders; for label {audit.labels[rarest]} this takes {arrivals}."
        )

    @property
    def staleness(self) -> str:
        """How often a holder of a rare label returns; empty if no label is rare."""
        if self.audit.rare_staleness is None:
            return ""
        arrivals = counted(rounded(self.audit.rare_staleness), "arrival")
        return f"A holder of a rare label returns after about {arrivals} on average."


def _times(aggregations: float) -> str:
    return counted(max(0, round(aggregations)), "aggregation")


def verdict_bounds() -> list[str]:
    """Describe the thresholds, with the methods that share them."""
    families: dict[tuple[float, float], list[str]] = {}
    for method in COLUMNS:
        families.setdefault(THRESHOLDS[method], []).append(BY_METHOD[method].title)
    return [
        f"{plain_text(enumeration(names))}: lost below {limit(lost)}, kept from {limit(kept)} on"
        for (lost, kept), names in families.items()
    ]


def grid_title(method: str, cap: float | None = None) -> str:
    """Return the name of a row of the what-if grid: all methods of one rule.

    >>> grid_title("fedraw", 0.3)
    'FedRAW, cap 0.3'
    """
    if cap is not None:
        return title(method, cap)
    return ", ".join(map(title, same_rule(method)))


def cost_cells(cost: MethodCost) -> tuple[str, ...]:
    """Return the cells of a row of the table of costs."""
    return (
        UNKNOWN if cost.models is None else f"{cost.models:,.0f}",
        SENT[cost.sends],
        "yes" if cost.labels else "no",
        UNKNOWN if cost.merit is None else f"{cost.merit:.0f}{TIED}%",
    )


def cap_words(cap: float | None) -> str:
    """Describe what a cap means for a client's weight."""
    if cap is None:
        return "none: under FedRAW only the rarity scores determine a client's weight"
    return f"{cap:g}: under FedRAW no client has more than {100 * cap:g} % weight"


def _label_row(audit: Audit, i: int, rare: bool) -> LabelRow:
    def under(method: str) -> LabelUnderMethod:
        interval = None
        if audit.standing_interval is not None:
            ends = audit.standing_interval[method]
            interval = float(ends.low[i]), float(ends.high[i])
        influence, standing = audit.label_influence[method][i], audit.standing[method][i]
        return LabelUnderMethod(
            method,
            float(influence),
            float(standing),
            audit.verdicts[method][i],
            interval,
            float(audit.expected_recall[method][i]),
        )

    return LabelRow(
        audit.labels[i],
        rare,
        int(audit.coverage[i]),
        float(audit.fair_share[i]),
        float(audit.holders_slowness[i]),
        float(audit.holders_share[i]),
        float(audit.updates[i]),
        {method: under(method) for method in METHODS},
        audit.in_words(i),
    )


def _worst_of(
    audit: Audit, setting: ServerSetting, among: Sequence[int], recommended: bool = False
) -> WorstLabel:
    """Return the label with the lowest standing among those at the given positions."""
    worst = among[int(np.argmin(setting.standing[list(among)]))]
    standing = float(setting.standing[worst])
    return WorstLabel(
        setting.method,
        setting.cap,
        setting.buffer,
        audit.labels[worst],
        float(setting.label_influence[worst]),
        standing,
        setting.verdicts[worst],
        setting.rare_presence,
        recommended,
    )


def json_document(view: AuditView) -> Iterator[str]:
    """Yield the view as JSON in pieces, because a million clients make a large document.

    `rare_presence` is in percent, and the presence of a client is from 0 to 1.
    """
    head = {
        "headline": view.headline,
        "cautions": list(view.audit.cautions),
        "federation": _federation_json(view),
        "rare_presence": view.audit.rare_presence,
        "labels": [_label_json(row) for row in view.labels],
        "what_if": [_setting_json(cell) for cell in view.settings],
        "slower": [_slower_json(column) for column in view.slower],
        "methods": {cost.method: _cost_json(cost) for cost in view.costs},
        "recommendation": _recommendation_json(view.recommendation),
        "one_pass": _one_pass_json(view.audit),
    }
    yield json.dumps(head, indent=2)[:-2] + ',\n  "clients": [\n'
    last = len(view.audit.clients) - 1
    for i in range(last + 1):
        yield f"    {json.dumps(vars(view.client(i)))}{',' if i < last else ''}\n"
    yield "  ]\n}\n"


def _one_pass_json(audit: Audit) -> dict[str, Any]:
    """Return by label its samples and the time until a first holder was heard, if it is known."""
    heard = audit.first_heard.tolist() if audit.times_known else [None] * len(audit.labels)
    samples = audit.label_samples.tolist()
    return {
        "strategy": "one-pass",
        "labels": [
            {"label": label, "samples": n, "first_heard": seconds}
            for label, n, seconds in zip(audit.labels, samples, heard, strict=True)
        ],
    }


def _federation_json(view: AuditView) -> dict[str, Any]:
    audit = view.audit
    return {
        "clients": len(audit.clients),
        "labels": len(audit.labels),
        "samples": view.samples,
        "rare_labels": list(audit.rare_labels),
        "rare_clients": view.rare_clients,
        "rare_staleness": audit.rare_staleness,
        "replayed_clients": int(audit.replayed.size),
        "buffer": audit.buffer,
        "cap": audit.cap,
        "arrivals": audit.arrivals,
        "baseline": audit.baseline,
        "times": view.source,
        "notes": list(view.notes),
    }


def _label_json(row: LabelRow) -> dict[str, Any]:
    document: dict[str, Any] = {
        "label": row.label,
        "coverage": row.coverage,
        "fair_share": row.fair_share,
        "rare": row.rare,
        "holders_slowness": row.holders_slowness,
        "holders_share": row.holders_share,
        "updates": row.updates,
        "influence": {m: found.influence for m, found in row.methods.items()},
        "standing": {m: found.standing for m, found in row.methods.items()},
        "expected_recall": {m: found.recall for m, found in row.methods.items()},
        "verdict": row.verdict,
        "verdicts": {m: found.verdict for m, found in row.methods.items()},
    }
    intervals = {m: found.interval for m, found in row.methods.items() if found.interval}
    return document | ({"interval": intervals} if intervals else {})


def _setting_json(cell: WorstLabel) -> dict[str, Any]:
    return {
        "method": cell.method,
        "buffer": cell.buffer,
        "cap": cell.cap,
        "worst_label": cell.label,
        "worst_influence": cell.influence,
        "worst_standing": cell.standing,
        "verdict": cell.verdict,
        "rare_presence": cell.rare_presence,
    }


def _slower_json(column: SlowerColumn) -> dict[str, Any]:
    return {
        "ratio": column.ratio,
        "worst_rare_influence": {m: cell.influence for m, cell in column.worst.items()},
        "worst_rare_standing": {m: cell.standing for m, cell in column.worst.items()},
        "verdicts": {m: cell.verdict for m, cell in column.worst.items()},
        "rare_presence": {m: cell.rare_presence for m, cell in column.worst.items()},
    }


def _cost_json(cost: MethodCost) -> dict[str, Any]:
    return {
        "server_models": cost.models,
        "clients_send": cost.sends,
        "labels": cost.labels,
        "merit": cost.merit,
        "aggregations": cost.aggregations,
        "time": cost.time,
    }


def _recommendation_json(found: Recommendation) -> dict[str, Any]:
    return {
        "method": found.method,
        "buffer": found.buffer,
        "cap": found.cap,
        "settings": found.keys,
        "baseline": found.baseline,
        "label": found.label,
        "before": found.before,
        "after": found.after,
        "recall_before": found.recall_before,
        "recall_after": found.recall_after,
        "verdict": found.verdict,
        "reason": found.reason,
    }
