"""The audit: which labels an asynchronous federation is about to lose, before any training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from fedraw.analysis.groups import FEW_BINS, Groups
from fedraw.analysis.influence import RULES, Rule, influence
from fedraw.analysis.inputs import Counts, Times, holders, rare_labels_of, seconds_of, table_of
from fedraw.analysis.label_influence import LabelShares
from fedraw.analysis.presence import arrival_shares, group_presence, presence
from fedraw.analysis.recommendation import Recommendation, recommend
from fedraw.analysis.staleness import mean_staleness
from fedraw.analysis.uncertainty import Interval, intervals
from fedraw.analysis.verdict import ENOUGH_UPDATES, Verdict, in_words, verdict
from fedraw.analysis.what_if import Slower, WhatIf, if_slower, sizes_for, what_if
from fedraw.core.labels import LabelTable
from fedraw.core.rarity import rarest, rarity_scores
from fedraw.core.types import ClientId, Floats, Ints, Label
from fedraw.core.weighting import check_cap
from fedraw.errors import BadInput

METHODS = ("fedfa", "fedbuff", "ca2fl", "fedraw", "fedraw-replay")


@dataclass(frozen=True, eq=False)
class Audit:
    """What can be said of a federation beforehand. Arrays follow `clients` or `labels`.

    `label_influence` is a multiple of the fair share: at 1 a label weighs in the global model as
    its samples weigh among all samples. The verdicts go by `standing`: how loudly
    a label speaks beside the others, and how much of the model comes from clients that hold it.
    """

    buffer_size: int
    cap: float | None  # FedRAW's, by water-filling
    clients: tuple[ClientId, ...]
    labels: tuple[Label, ...]
    rare_labels: tuple[Label, ...]
    rare_by_coverage: bool  # or named by the caller
    holds_rare: npt.NDArray[np.bool_]  # by client
    samples: Ints  # by client
    coverage: Ints  # by label: how many clients hold it
    fair_share: Floats  # by label: its share of all samples
    seconds: Floats  # by client
    times_known: bool
    holders_slowness: Floats  # by label: how many times as long its holders take as all clients
    holders_share: Floats  # by label: how many of all arrivals are of its holders
    scores: Floats  # by client
    replayed: Ints  # whose last update fedraw-replay keeps: positions, the rarest first
    presence: dict[str, Floats]  # by method and client
    influence: dict[str, Floats]  # by method and client
    label_influence: dict[str, Floats]  # by method and label
    standing: dict[str, Floats]  # by method and label
    label_interval: dict[str, Interval] | None  # what the uncertainty of the times leaves open
    rare_presence: dict[str, float | None]  # percent; None: no label is rare
    rare_staleness: float | None  # arrivals between two of one holder of a rare label, on average
    verdicts: dict[str, tuple[Verdict, ...]]  # by method and label
    what_if: tuple[WhatIf, ...]
    slower: tuple[Slower, ...]
    recommendation: Recommendation

    def worst_first(self) -> list[int]:
        """Positions of the labels, the one of the lowest standing under FedFa first."""
        return [int(i) for i in np.argsort(self.standing["fedfa"], kind="stable")]

    def in_words(self, label: int) -> str:
        """The verdicts on a label (by position): 'lost under FedFa; kept by CA2FL, FedRAW'."""
        return in_words({method: self.verdicts[method][label] for method in METHODS})

    def arrivals_until_heard(self, label: int) -> float:
        """How many arrivals it takes until a label's holders have sent enough for replay."""
        return ENOUGH_UPDATES / float(self.holders_share[label])

    def endangered(
        self, worst: Verdict = "at risk", methods: Sequence[str] = METHODS
    ) -> list[tuple[str, Label]]:
        """The (method, label) pairs with this verdict or a worse one; "lost" is the worst."""
        verdicts = ("lost",) if worst == "lost" else ("lost", "at risk")
        return [
            (method, label)
            for method in methods
            for label, verdict in zip(self.labels, self.verdicts[method], strict=True)
            if verdict in verdicts
        ]


def audit(
    counts: Counts,
    times: Times | None = None,
    buffer_size: int = 10,
    *,
    cap: float | None = None,
    rare: Sequence[Label] | None = None,
    interval: tuple[Floats, Floats] | None = None,
) -> Audit:
    """Say, from label counts and mean training times alone, which labels will be lost.

    counts: a LabelTable, or one histogram per client. times: seconds by client; without them all
    are as fast, and `slower` says what happens if the holders of rare labels are not. interval: the
    ends of a 95 % interval of each time, where it is an estimate.

    >>> sites = {i: {"common": 90} for i in range(9)} | {9: {"common": 50, "odd": 40}}
    >>> found = audit(sites, {i: 1.0 for i in range(9)} | {9: 4.0}, buffer_size=5)
    >>> found.rare_labels, round(found.rare_presence["fedfa"], 1)
    (('odd',), 12.8)
    >>> [round(float(found.label_influence[m][1]), 2) for m in ("fedfa", "fedraw")]
    [0.27, 1.11]
    """
    table = table_of(counts)
    seconds = seconds_of(times, table.clients)
    _check_size(buffer_size, table)
    if cap is not None:
        check_cap("water-filling", cap, buffer_size, name="cap")
    coverage = table.coverage()
    rare_labels = rare_labels_of(rare, table)
    holding = holders(table, rare_labels)
    scores, shares = rarity_scores(table), arrival_shares(seconds)
    slots = max(sizes_for(len(table), buffer_size))
    groups = Groups.of(1 / seconds, scores, holding, slots=slots)
    coarse = Groups.of(1 / seconds, scores, holding, FEW_BINS, slots)
    labels = LabelShares(table, coarse, 1 / seconds, scores)
    rules = rules_with(cap)
    replayed = rarest(scores, buffer_size)
    stays = {m: replayed if rule.weighting == "replay" else None for m, rule in rules.items()}
    within = {
        m: presence(shares, buffer_size, rule.buffer, kept=stays[m]) for m, rule in rules.items()
    }
    weight = {
        m: _by_client(groups, influence(groups, buffer_size, rule), rule, within[m], scores)
        for m, rule in rules.items()
    }
    voices = {m: labels.of_clients(weight[m]) for m in METHODS if m != "fedbuff"}
    voices["fedbuff"] = voices["fedfa"]  # blocks or a window: a client weighs its arrivals
    settings = what_if(coarse, labels, holding, buffer_size, cap)
    return Audit(
        buffer_size=buffer_size,
        cap=cap,
        clients=table.clients,
        labels=table.labels,
        rare_labels=rare_labels,
        rare_by_coverage=rare is None,
        holds_rare=holding,
        samples=table.totals(),
        coverage=coverage,
        fair_share=table.fair_shares(),
        seconds=seconds,
        times_known=times is not None,
        holders_slowness=labels.mean_of_holders(seconds) / seconds.mean(),
        holders_share=labels.sum_over_holders(shares),
        scores=scores,
        replayed=replayed,
        presence=within,
        influence=weight,
        label_influence={m: voices[m].influence for m in METHODS},
        standing={m: voices[m].standing for m in METHODS},
        label_interval=intervals(coarse, labels, buffer_size, rules, seconds, interval),
        rare_presence={
            method: 100
            * group_presence(shares, holding, buffer_size, rule.buffer, kept=stays[method])
            if rare_labels
            else None
            for method, rule in rules.items()
        },
        rare_staleness=mean_staleness(shares, holding) if rare_labels else None,
        verdicts={m: tuple(verdict(m, float(own)) for own in voices[m].standing) for m in METHODS},
        what_if=settings,
        slower=if_slower(coarse, labels, holding, buffer_size, rules) if rare_labels else (),
        recommendation=recommend(table.labels, settings, buffer_size, cap),
    )


def rules_with(cap: float | None) -> dict[str, Rule]:
    """The methods' rules, FedRAW's with the cap."""
    rules = {method: RULES[method] for method in METHODS}
    if cap is not None:
        rules["fedraw"] = replace(rules["fedraw"], cap="water-filling", cap_at=cap)
    return rules


def _check_size(size: int, table: LabelTable) -> None:
    if size < 1:
        raise BadInput(f"a buffer of {size} holds nothing; give a size from 1 on")
    if size > len(table):
        raise BadInput(
            f"a buffer of {size} is larger than the federation: FedRAW keeps one slot per client, "
            f"so with {len(table)} clients it would never fill; give a size from 1 to {len(table)}"
        )


def _by_client(
    groups: Groups, of_group: Floats, rule: Rule, within: Floats, scores: Floats
) -> Floats:
    """A client's part of its group's influence: by its own presence and score."""
    group = groups.of_client
    own = of_group[group]
    if groups.many.size == group.size or rule.weighting == "cached":
        return own
    own = own * within / (np.bincount(group, within) / groups.many)[group]
    if rule.weighting == "rarity":
        own = own * scores / groups.score[group]
    return np.asarray(own / own.sum(), np.float64)
