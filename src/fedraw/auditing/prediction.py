"""The audit: which labels an asynchronous federation will lose, predicted before any training."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from fedraw.auditing.horizon import ARRIVALS, Horizon, cautions, round_time
from fedraw.auditing.influence import PARTICIPATION, influence
from fedraw.auditing.label_counts import (
    Frame,
    counts_of_frame,
    read_label_counts,
    times_of_frame,
)
from fedraw.auditing.methods import (
    COLUMNS,
    DEFAULT_BUFFER,
    ENOUGH_UPDATES,
    METHODS,
    VERDICTS,
    Rule,
    Verdict,
    audited_method,
    in_words,
    rules_with_cap,
    title,
)
from fedraw.auditing.participation import debtors
from fedraw.auditing.presence import (
    FEW_BINS,
    Groups,
    arrival_shares,
    group_presence,
    presence,
    replayed_clients,
    wanted_shares,
)
from fedraw.auditing.standing import (
    LabelStandings,
    LabelWeights,
    StandingInterval,
    standing_intervals,
)
from fedraw.auditing.times import read_times
from fedraw.auditing.what_if import (
    Recommendation,
    ServerSetting,
    SlowerHolders,
    if_slower,
    recommend,
    sizes_for,
    what_if,
)
from fedraw.core.labels import LabelTable
from fedraw.core.rarity import holders, rare_labels_of, rarity_scores
from fedraw.core.settings import shown
from fedraw.core.types import (
    LONGEST_TIME,
    SHORTEST_TIME,
    ClientId,
    Floats,
    Ints,
    Label,
    LabelCounts,
)
from fedraw.core.weighting import check_cap
from fedraw.errors import BadInput

LARGEST_RATIO = 1e12  # of two clients' times

# A table, the counts of each client, the path of a file, or a DataFrame.
Counts = LabelTable | Mapping[Any, LabelCounts] | str | PathLike[str] | Frame
Seconds = Mapping[Any, float] | Sequence[float] | Floats
# The share of the time for which each client is online.
Shares = Mapping[Any, float] | Sequence[float] | Floats


@dataclass(frozen=True, eq=False)
class Audit:
    """The prediction for a federation. Arrays are in the order of `clients` or `labels`.

    `label_influence` is a multiple of the fair share: at 1, a label's weight in the global model is
    its share of all samples. Verdicts follow from `standing` (see `auditing.standing`).
    """

    arrivals: int  # the horizon
    baseline: str  # the method that the user runs today
    buffer: int  # K
    cap: float | None  # on FedRAW's weights, by water-filling
    clients: tuple[ClientId, ...]
    labels: tuple[Label, ...]
    rare_labels: tuple[Label, ...]
    rare_by_coverage: bool  # False if the caller named the rare labels
    holds_rare: npt.NDArray[np.bool_]  # by client
    samples: Ints  # by client
    coverage: Ints  # by label: the number of clients that hold it
    fair_share: Floats  # by label: its share of all samples
    label_samples: Ints  # by label
    first_heard: Floats  # by label: the time of its fastest holder
    seconds: Floats  # by client
    times_known: bool
    holders_slowness: Floats  # by label: mean time of its holders over the mean time of all clients
    holders_share: Floats  # by label: the share of all arrivals that come from its holders
    scores: Floats  # by client
    replayed: Ints  # positions of the clients whose last update fedraw-replay keeps, rarest first
    presence: dict[str, Floats]  # by method and client
    influence: dict[str, Floats]  # by method and client
    label_influence: dict[str, Floats]  # by method and label
    standing: dict[str, Floats]  # by method and label
    standing_interval: dict[str, StandingInterval] | None  # None if the times are not estimates
    rare_presence: dict[str, float | None]  # percent; None if no label is rare
    rare_staleness: float | None  # mean number of arrivals between two of a holder of a rare label
    horizon: Horizon
    round_time: float  # of a method that waits for all clients, over that of as many arrivals
    cautions: tuple[str, ...]  # what was not calibrated, a sentence each
    expected_recall: dict[str, Floats]  # by method and label, within the horizon, from 0 to 1
    verdicts: dict[str, tuple[Verdict, ...]]  # by method and label, within the horizon
    what_if: tuple[ServerSetting, ...]
    slower: tuple[SlowerHolders, ...]
    recommendation: Recommendation

    def __repr__(self) -> str:
        many = f"{len(self.clients):,} clients, {len(self.labels):,} labels, K={self.buffer}"
        fate = "; ".join(
            f"{title(method)}: {found.count('lost')} lost, {found.count('at risk')} at risk"
            + (f", {found.count('late')} late" if "late" in found else "")
            for method, found in self.verdicts.items()
            if method in COLUMNS
        )
        return f"<Audit of {many}; {fate}; recommends {self.recommendation.setting}>"

    def worst_first(self, method: str | None = None) -> list[int]:
        """Return the positions of the labels by their standing, lowest first.

        Without a method, it is that of the baseline.
        """
        standing = self.standing[self.baseline if method is None else method]
        return [int(i) for i in np.argsort(standing, kind="stable")]

    def aggregations(self, method: str) -> float:
        """Return how often a method aggregates within the horizon."""
        return self.horizon.aggregations(method, self.buffer)

    @property
    def updates(self) -> Floats:
        """The expected number of arrivals from the holders of each label within the horizon."""
        return self.arrivals * self.holders_share

    def in_words(self, label: int) -> str:
        """Return the verdicts on a label, such as 'lost under FedFa; kept by CA2FL, FedRAW'."""
        return in_words({method: self.verdicts[method][label] for method in COLUMNS})

    def arrivals_until_heard(self, label: int) -> float:
        """Return the expected number of arrivals until replay has enough of a label's updates."""
        return ENOUGH_UPDATES / float(self.holders_share[label])

    def endangered(
        self, worst: Verdict = "at risk", methods: Sequence[str] = COLUMNS
    ) -> list[tuple[str, Label]]:
        """Return the (method, label) pairs with this verdict or a worse one ("lost" is worst).

        A label that is late is endangered like one at risk.
        """
        verdicts = VERDICTS[: VERDICTS.index("late" if worst == "at risk" else worst) + 1]
        return [
            (method, label)
            for method in methods
            for label, found in zip(self.labels, self.verdicts[method], strict=True)
            if found in verdicts
        ]


def audit(  # noqa: PLR0913 - one for each fact or choice
    counts: Counts,
    seconds: Seconds | Frame | str | Path | None = None,
    buffer: int | None = None,
    *,
    cap: float | None = None,
    rare: Sequence[Label] | None = None,
    interval: tuple[Floats, Floats] | None = None,
    availability: Shares | None = None,
    arrivals: int = ARRIVALS,
    baseline: str = "fedavg",
) -> Audit:
    """Predict from label counts and mean training times alone which labels will be lost.

    Args:
        counts: One histogram per client; a DataFrame with the columns site, label and count, or
            with a row for each site and a column for each label; the path of such a table as CSV
            or Parquet; or a LabelTable.
        seconds: The mean training time of each client: a mapping, a sequence in the clients' order,
            a DataFrame with the columns site and seconds, or the path of such a table or of an
            event log. Without it all clients are equally fast, and `slower` shows what happens if
            the holders of rare labels are slower.
        buffer: The server's buffer size K; by default that of the strategies, or the number of
            clients if there are fewer.
        cap: A cap on FedRAW's weights, by water-filling.
        rare: The rare labels; by default those of low coverage.
        interval: The ends of a 95 % interval of each client's time, if the times are estimates.
        availability: The share of the time for which each client is online, unless the times
            already include it; see `effective_seconds`.
        arrivals: The horizon: the number of updates that the server will receive in the run.
        baseline: The method that you run today. The recommendation is relative to it.

    >>> sites = {i: {"common": 90} for i in range(9)} | {9: {"common": 50, "odd": 40}}
    >>> found = audit(sites, {i: 1.0 for i in range(9)} | {9: 4.0}, buffer=5)
    >>> found.rare_labels, round(found.rare_presence["fedfa"], 1)
    (('odd',), 12.8)
    >>> [round(float(found.standing[m][1]), 3) for m in ("fedfa", "fedraw")]
    [0.025, 0.105]
    >>> print(found.recommendation.toml)
    strategy.name = "fedraw-replay-debt"
    strategy.buffer = 5

    """
    table = _table(counts)
    if isinstance(seconds, Mapping) and not isinstance(counts, LabelTable | Mapping):
        seconds = {str(client): value for client, value in seconds.items()}  # as in the table
    if isinstance(seconds, str | Path):
        times = read_times(Path(seconds), [str(client) for client in table.clients])
        seconds = times.seconds
        if interval is None and times.arrivals is not None:
            interval = times.low, times.high
    elif hasattr(seconds, "columns"):
        seconds = times_of_frame(cast(Frame, seconds))
    mean_seconds = seconds_of(cast("Seconds | None", seconds), table.clients)
    if availability is not None:
        slower = effective_seconds(mean_seconds, availability, table.clients) / mean_seconds
        mean_seconds = mean_seconds * slower
        interval = interval and (interval[0] * slower, interval[1] * slower)
    if buffer is None:
        buffer = min(DEFAULT_BUFFER, len(table))
    _check_buffer(buffer, table)
    _check_arrivals(arrivals)
    baseline = audited_method(baseline)
    if cap is not None:
        _check_cap(cap, buffer)
    if rare is not None:
        _check_rare(rare)
    rare_labels = rare_labels_of(rare, table)
    holding = holders(table, rare_labels)
    scores, rates, rules = rarity_scores(table), 1 / mean_seconds, rules_with_cap(cap)
    slots = max(sizes_for(len(table), buffer))
    samples = table.totals()
    groups = Groups.of(rates, scores, holding, slots=slots, samples=samples)
    coarse = Groups.of(rates, scores, holding, FEW_BINS, slots, samples)
    labels = LabelWeights(table, coarse, rates, scores)
    within, weight, together = _clients(
        groups, mean_seconds, scores, samples, holding, buffer, rules
    )
    standings = _labels(labels, weight)
    shares = arrival_shares(mean_seconds)
    coverage, holders_share = table.coverage(), labels.sum_over_holders(shares)
    horizon = Horizon(arrivals, len(table), holders_share, coverage)
    settings = what_if(coarse, labels, holding, buffer, cap, horizon)
    return Audit(
        arrivals=arrivals,
        baseline=baseline,
        buffer=buffer,
        cap=cap,
        clients=table.clients,
        labels=table.labels,
        rare_labels=rare_labels,
        rare_by_coverage=rare is None,
        holds_rare=holding,
        samples=samples,
        coverage=coverage,
        fair_share=table.fair_shares(),
        label_samples=table.label_totals(),
        first_heard=_first_heard(table, mean_seconds),
        seconds=mean_seconds,
        times_known=seconds is not None or availability is not None,
        holders_slowness=labels.mean_of_holders(mean_seconds) / mean_seconds.mean(),
        holders_share=holders_share,
        scores=scores,
        replayed=replayed_clients(scores, buffer),
        presence=within,
        influence=weight,
        label_influence={m: standings[m].influence for m in METHODS},
        standing={m: standings[m].standing for m in METHODS},
        standing_interval=standing_intervals(coarse, labels, buffer, rules, mean_seconds, interval),
        rare_presence=together,
        rare_staleness=_mean_return(shares, holding) if rare_labels else None,
        horizon=horizon,
        round_time=round_time(coarse.rate, coarse.many),
        cautions=cautions(arrivals, len(table)),
        expected_recall={m: horizon.recall(m, standings[m].standing, buffer) for m in METHODS},
        verdicts={m: horizon.verdicts(m, standings[m].standing, buffer) for m in METHODS},
        what_if=settings,
        slower=if_slower(coarse, labels, holding, buffer, rules, horizon) if rare_labels else (),
        recommendation=recommend(table.labels, settings, buffer, cap, len(table), baseline),
    )


def _first_heard(table: LabelTable, seconds: Floats) -> Floats:
    """Return by label the time after which a first holder has sent something."""
    held, first = table.count > 0, np.full(len(table.labels), np.inf)
    np.minimum.at(first, table.column[held], seconds[table.row_of_entry()[held]])
    return first


def _table(counts: Counts) -> LabelTable:
    """Return the label counts as a table, in whatever form the caller has them."""
    if isinstance(counts, LabelTable):
        return counts
    if isinstance(counts, Mapping):
        return LabelTable.from_counts(counts)
    if isinstance(counts, str | PathLike):
        return read_label_counts(Path(counts)).table
    if isinstance(counts, Frame):
        return counts_of_frame(counts).table
    raise BadInput(
        f"counts = {counts!r:.60} are not label counts; give a dictionary with the counts of each "
        "client, such as {'north': {'cat': 3}}, a DataFrame with the columns site, label and "
        "count, or the path of a CSV file"
    )


def seconds_of(seconds: Seconds | None, clients: Sequence[ClientId]) -> Floats:
    """Return mean seconds in the order of the clients; all are equal if nothing is known.

    >>> seconds_of({"b": 2, "a": 1}, ["a", "b"])
    array([1., 2.])
    """
    if seconds is None:
        return np.ones(len(clients))
    if isinstance(seconds, Mapping):
        seconds = _in_order(seconds, clients)
    try:
        values = np.asarray(seconds, np.float64)
    except (TypeError, ValueError):
        raise BadInput(_first_not_a_number(seconds, clients)) from None
    if values.shape != (len(clients),):
        raise BadInput(f"{values.size} times for {len(clients)} clients; give one per client")
    wrong = ~((values >= SHORTEST_TIME) & (values <= LONGEST_TIME))
    if wrong.any():
        i = int(np.argmax(wrong))
        raise BadInput(
            f"client {clients[i]!r}: {values[i]:g} is not a valid time; give seconds from "
            f"{SHORTEST_TIME:g} to {LONGEST_TIME:g}"
        )
    if values.max() > LARGEST_RATIO * values.min():
        slow, fast = clients[int(values.argmax())], clients[int(values.argmin())]
        raise BadInput(
            f"client {slow!r} takes {values.max():g} seconds and client {fast!r} "
            f"{values.min():g}, so the slower one would never arrive; check the units, or leave "
            "it out"
        )
    return values


def effective_seconds(seconds: Floats, availability: Shares, clients: Sequence[ClientId]) -> Floats:
    """Return the mean seconds between updates of clients that are online part of the time.

    A client that pauses while it is offline and continues when it is back needs its seconds of
    online time, which take seconds / share on average. The share of each client in all arrivals is
    then exact in the long run. Presence and influence assume memoryless arrivals. That holds
    approximately if clients go on and off within the time between two of their updates, and fails
    if they stay offline much longer.

    >>> effective_seconds(np.array([1.0, 2.0]), {"a": 1, "b": 0.1}, ["a", "b"])
    array([ 1., 20.])
    """
    if isinstance(availability, Mapping):
        availability = _in_order(availability, clients, "availability")
    try:
        shares = np.asarray(availability, np.float64)
    except (TypeError, ValueError):
        raise BadInput("availability must be numbers; give a share for each client") from None
    if shares.shape != (len(clients),):
        raise BadInput(f"{shares.size} shares for {len(clients)} clients; give one per client")
    wrong = ~((shares > 0) & (shares <= 1))
    if wrong.any():
        i = int(np.argmax(wrong))
        raise BadInput(
            f"client {clients[i]!r}: {shares[i]:g} is not a share of the time; give a number above "
            "0 and at most 1"
        )
    return seconds_of(seconds / shares, clients)


def _first_not_a_number(seconds: Sequence[Any] | Floats, clients: Sequence[ClientId]) -> str:
    for client, value in zip(clients, seconds, strict=False):
        try:
            float(value)
        except (TypeError, ValueError):
            return f"client {client!r}: {value!r} is not a number; give seconds above 0"
    return "times must be numbers; give one per client"


def _in_order(
    seconds: Mapping[Any, float], clients: Sequence[ClientId], what: str = "time"
) -> list[float]:
    known = set(clients)
    named = "the times name" if what == "time" else f"the {what} names"
    for client in seconds:
        if client not in known:
            raise BadInput(
                f"{named} client {client!r}, which is not in the label counts; "
                "remove it, or add its counts"
            )
    for client in clients:
        if client not in seconds:
            raise BadInput(f"client {client!r} has no {what}; give the {what} of every client")
    return [seconds[client] for client in clients]


def _check_buffer(size: int, table: LabelTable) -> None:
    if not isinstance(size, Integral) or isinstance(size, bool):
        raise BadInput(
            f"buffer = {shown(size)} is not an integer; give a size from 1 to {len(table)}"
        )
    if size < 1:
        raise BadInput(f"a buffer of {size} holds nothing; give a size of at least 1")
    if size > len(table):
        raise BadInput(
            f"a buffer of {size} is larger than the federation: FedRAW keeps one slot per client, "
            f"so with {len(table)} clients it would never fill; give a size from 1 to {len(table)}"
        )


def _check_arrivals(arrivals: int) -> None:
    """Refuse a horizon that is no number of arrivals."""
    if not isinstance(arrivals, Integral) or isinstance(arrivals, bool) or arrivals < 1:
        raise BadInput(
            f"arrivals = {shown(arrivals)} is not a horizon; give the number of updates that the "
            "server will receive in the run, such as 3000"
        )


def _check_cap(cap: float, size: int) -> None:
    if not isinstance(cap, Real) or isinstance(cap, bool):
        raise BadInput(f"cap = {shown(cap)} is not a weight; use a number above 0 and at most 1")
    check_cap("water-filling", cap, size, name="cap")


def _check_rare(rare: Sequence[Label]) -> None:
    # A text is a sequence too, of labels with one letter each.
    if isinstance(rare, str) or not isinstance(rare, Iterable):
        named = shown(rare)
        raise BadInput(f"rare = {named} is not a list of labels; write brackets, such as [{named}]")


def _mean_return(shares: Floats, holding: npt.NDArray[np.bool_]) -> float:
    """Return the mean number of arrivals between two of a member of the group: |G| / p_G."""
    return int(holding.sum()) / float(shares[holding].sum())


def _clients(
    groups: Groups,
    seconds: Floats,
    scores: Floats,
    samples: Ints,
    holding: npt.NDArray[np.bool_],
    size: int,
    rules: Mapping[str, Rule],
) -> tuple[dict[str, Floats], dict[str, Floats], dict[str, float | None]]:
    """Return, by method, every client's presence and influence, and the presence of a rare one."""
    shares = arrival_shares(seconds)
    alone = Groups.singly(1 / seconds, scores, samples)
    within: dict[str, Floats] = {}
    weight: dict[str, Floats] = {}
    together: dict[str, float | None] = {}
    for method, rule in rules.items():
        kept = None
        if rule.weighting == "replay":
            kept = replayed_clients(scores, size)
        elif rule.weighting == "debt":
            wanted = wanted_shares(scores, samples, rule.target)
            kept = np.flatnonzero(debtors(shares, wanted, size))
        slots = rule.slots(size, shares.size)
        within[method] = presence(shares, slots, rule.buffer, kept=kept)
        if rule.weighting in PARTICIPATION:  # cheap enough without grouping
            weight[method] = influence(alone, size, rule)
        else:
            of_group = influence(groups, size, rule)
            weight[method] = _by_client(groups, of_group, rule, within[method], scores)
        if holding.any():
            anyone = group_presence(shares, holding, slots, rule.buffer, kept=kept)
            together[method] = 100 * anyone
        else:
            together[method] = None
    return within, weight, together


def _labels(labels: LabelWeights, weight: Mapping[str, Floats]) -> dict[str, LabelStandings]:
    # With a window and with blocks, a client's weight is its share of arrivals.
    found = {m: labels.of_clients(weight[m]) for m in METHODS if m != "fedbuff"}
    return found | {"fedbuff": found["fedfa"]}


def _by_client(
    groups: Groups, of_group: Floats, rule: Rule, within: Floats, scores: Floats
) -> Floats:
    """Divide the influence of each group among its clients by their presence and score."""
    group = groups.of_client
    own = of_group[group]
    if groups.many.size == group.size or rule.weighting == "cached":
        return own
    own = own * within / (np.bincount(group, within) / groups.many)[group]
    if rule.weighting == "rarity":
        own = own * scores / groups.score[group]
    return np.asarray(own / own.sum(), np.float64)
