"""Every metric of a run: its formula, its name, and how it is averaged. NumPy only.

Recall and fairness come from test samples; the tests compare the scores with scikit-learn.
Participation and influence come from the arrivals of a log, which `RunState` reads one by one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from operator import mul
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from fedraw.core.labels import LabelTable
from fedraw.core.standing import standing, standing_scale
from fedraw.core.types import ClientId, Floats, Ints, Label
from fedraw.eventlog.records import InfluenceRule

# Quality of the model: higher is better; in percent, Jain in 0..1.
QUALITY = (
    "GlobalAcc",
    "AvgRare",
    "MacroF1",
    "RareF1",
    "RareF2",
    "Worst10",
    "LocalRare",
    "LocalCommon",
    "MeanClient",
    "Jain",
)
# Participation of rare clients: shares in percent, staleness in events.
PARTICIPATION = ("BufPres", "RarePart", "RareMeanStale", "RareMaxStale")
# The order of a full table.
METRICS = QUALITY + PARTICIPATION
# The tail is the mean of this many last evaluations. As many consecutive ones must reach a goal.
TAIL = 5
# Which values a table shows, by whether they are of the last model alone.
VALUES_OF = {False: "mean of the last five evaluations", True: "values of the last model"}
# The models that a run may have besides the last one; a metric of theirs begins with the word.
FURTHER_MODELS = ("calibrated",)


def is_shown_unasked(metric: str) -> bool:
    """Return whether a table shows a metric besides its usual columns.

    These are the user's own metrics, and the two main ones of further models.

    >>> metrics = ["rmse", "MacroF1", "calibrated MacroF1", "calibrated AvgRare"]
    >>> list(filter(is_shown_unasked, metrics))
    ['rmse', 'calibrated AvgRare']
    """
    model, _, name = metric.rpartition(" ")
    if model in FURTHER_MODELS:
        return name in ("GlobalAcc", "AvgRare")
    return metric not in BUILT_IN


def further_metrics(found: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the metrics of the further models in a summary or an evaluation.

    >>> further_metrics({"calibrated": {"metrics": {"AvgRare": 77.3}}})
    {'calibrated AvgRare': 77.3}
    """
    return {
        f"{model} {key}": value
        for model in FURTHER_MODELS
        for key, value in (found.get(model) or {}).get("metrics", {}).items()
    }


def measured(found: Mapping[str, Any]) -> dict[str, float | None]:
    """Return all metrics of a summary or an evaluation, by the names of their columns.

    >>> measured({"metrics": {"AvgRare": 50.0}, "own": {"MAE": 0.5}, "own_rare": {"MAE": 0.7}})
    {'AvgRare': 50.0, 'MAE': 0.5, 'rare MAE': 0.7}
    """
    rare = {f"rare {key}": value for key, value in (found.get("own_rare") or {}).items()}
    return {**found["metrics"], **(found.get("own") or {}), **rare, **further_metrics(found)}


def tail_of(evaluations: Sequence[Mapping[str, float | None]]) -> dict[str, float | None]:
    """Return the mean of the last five evaluations; None for a metric that one of them lacks.

    >>> tail_of([{"AvgRare": value} for value in (0.0, 40.0, 50.0, 60.0, 70.0, 80.0)])
    {'AvgRare': 60.0}
    """
    last = evaluations[-TAIL:]
    mean: dict[str, float | None] = {}
    for name in last[0] if last else ():
        values = [metrics.get(name) for metrics in last]
        known = [value for value in values if value is not None]
        mean[name] = sum(known) / len(known) if len(known) == len(values) else None
    return mean


# The columns of costs, in the order of tables.
COSTS = ("hours", "MB", "kJ")


def cost_columns(costs: Mapping[str, float] | None) -> dict[str, float]:
    """Return the costs of a log's record by the names of their columns.

    >>> cost_columns({"hours": 0.5, "bytes": 3_000_000, "joules": 1200.0})
    {'hours': 0.5, 'MB': 3.0, 'kJ': 1.2}
    """
    if costs is None:
        return {}
    found = {"hours": costs["hours"], "MB": costs["bytes"] / 1e6}
    return found | ({"kJ": costs["joules"] / 1e3} if "joules" in costs else {})


# A model has collapsed if a score of it is less than this share of the way from chance to 100 %.
# The lowest of the 1,503 evaluated runs in studies/results/cpu are 0.137 (mean recall), 0.163
# (GlobalAcc) and 0.111 (MacroF1) of the way.
COLLAPSED_BELOW = 0.05


def has_collapsed(
    recall: Iterable[float | None], metrics: Mapping[str, float | None] | None = None
) -> bool:
    """Return whether a model is no better than chance.

    Chance is 100/n for n labels with test samples. A model that ignores its input, because it
    guesses or because it always gives the same answer, has a mean recall of exactly 100/n and a
    MacroF1 of at most 100/n, however common the labels are. A model has collapsed if its mean
    recall, its MacroF1 or its GlobalAcc is less than COLLAPSED_BELOW of the way from 100/n to 100.
    The result is False for fewer than two labels, which have no chance level.

    Args:
        recall: The recall of each label in percent; None for a label without test samples.
        metrics: MacroF1 and GlobalAcc in percent, as far as they are known.

    >>> has_collapsed([0.0, 0.0, 100.0, None]), has_collapsed([50.0, 0.0, 70.0])
    (True, False)
    >>> has_collapsed([50.0, 0.0, 70.0], {"MacroF1": 34.0, "GlobalAcc": 60.0})
    True

    """
    known = [value for value in recall if value is not None]
    if len(known) < 2:
        return False
    chance = 100 / len(known)
    scores = [sum(known) / len(known), *map((metrics or {}).get, ("MacroF1", "GlobalAcc"))]
    bar = chance + COLLAPSED_BELOW * (100 - chance)
    return any(score is not None and score < bar for score in scores)


def majority_share(confusion: Mapping[str, Mapping[str, int]]) -> float | None:
    """Return the share of the commonest label in the test set, in percent; None without samples.

    It is the GlobalAcc of a model that always answers that label.

    >>> majority_share({"cat": {"cat": 2, "dog": 1}, "dog": {"dog": 1}})
    75.0
    """
    tested = [sum(row.values()) for row in confusion.values()]
    return 100 * max(tested) / sum(tested) if any(tested) else None


def confusion(labels: Ints, predictions: Ints, names: Sequence[str]) -> dict[str, dict[str, int]]:
    """Count the test samples of each true label by predicted label, without the zeros.

    The size is bounded by the number of test samples, however many labels there are.

    >>> confusion(np.array([0, 0, 1]), np.array([0, 1, 1]), ("cat", "dog", "owl"))
    {'cat': {'cat': 1, 'dog': 1}, 'dog': {'dog': 1}}
    """
    pairs, counts = np.unique(labels * len(names) + predictions, return_counts=True)
    rows: dict[str, dict[str, int]] = {}
    for pair, count in zip(pairs.tolist(), counts.tolist(), strict=True):
        truth, prediction = divmod(pair, len(names))
        rows.setdefault(names[truth], {})[names[prediction]] = count
    return rows


def recall_per_label(labels: Ints, predictions: Ints, classes: int) -> list[float | None]:
    """Return the recall of each label in percent; None for a label without test samples.

    >>> recall_per_label(np.array([0, 0, 1]), np.array([0, 1, 1]), 3)
    [50.0, 100.0, None]
    """
    tested = np.bincount(labels, minlength=classes).tolist()
    right = np.bincount(labels[labels == predictions], minlength=classes).tolist()
    pairs = zip(right, tested, strict=True)
    return [100 * hits / total if total else None for hits, total in pairs]


def accuracy_metrics(
    labels: Ints, predictions: Ints, classes: int, rare: Collection[int]
) -> dict[str, float | None]:
    """Compute GlobalAcc, AvgRare, MacroF1, RareF1 and RareF2 in percent; None where undefined.

    AvgRare is the mean recall of the rare labels. RareF2 is their mean F-score with beta = 2,
    which weights recall higher than precision. Labels without test samples are left out of every
    mean, because nothing is known about their recall.

    >>> labels, predictions = np.array([0, 0, 0, 1, 1]), np.array([0, 0, 0, 0, 1])
    >>> metrics = accuracy_metrics(labels, predictions, 2, rare=[1])
    >>> [metrics[key] for key in ("GlobalAcc", "AvgRare")]
    [80.0, 50.0]
    """
    tested = np.bincount(labels, minlength=classes)
    predicted = np.bincount(predictions, minlength=classes)
    correct = np.bincount(labels[labels == predictions], minlength=classes)
    present = np.flatnonzero(tested)
    tested, predicted, correct = tested[present], predicted[present], correct[present]
    is_rare = np.isin(present, list(rare))
    # With beta² = b: F = (1 + b) · correct / (b · tested + predicted), and `tested` is never 0.
    f1, f2 = ((1 + b) * correct / (b * tested + predicted) for b in (1, 4))
    return {
        "GlobalAcc": _mean(labels == predictions, 100),
        "AvgRare": _mean((correct / tested)[is_rare], 100),
        "MacroF1": _mean(f1, 100),
        "RareF1": _mean(f1[is_rare], 100),
        "RareF2": _mean(f2[is_rare], 100),
    }


def client_accuracies(
    correct: npt.NDArray[np.bool_], owner: Ints, clients: int
) -> list[float | None]:
    """Return each client's accuracy in percent; None for a client without test samples.

    `correct` and `owner` have one entry per local test sample: whether the
    prediction was right, and the position of the client that holds the sample.

    >>> client_accuracies(np.array([True, False, True]), np.array([0, 0, 2]), clients=3)
    [50.0, None, 100.0]
    """
    tested = np.bincount(owner, minlength=clients).tolist()
    right = np.bincount(owner[correct], minlength=clients).tolist()
    return [100 * hits / n if n else None for hits, n in zip(right, tested, strict=True)]


def fairness_metrics(
    accuracies: Sequence[float | None], rare: Collection[int]
) -> dict[str, float | None]:
    """Compute Worst10, LocalRare, LocalCommon and MeanClient in percent, and Jain in 0..1.

    A metric is None where it is undefined. `rare` holds the positions of the rare clients. Clients
    without local test samples (None) are left out. Worst10 is the mean over the worst tenth of the
    clients, rounded up to whole clients.

    >>> fairness_metrics([50.0, 100.0, None], rare={0})["LocalRare"]
    50.0
    """
    known = {c: value for c, value in enumerate(accuracies) if value is not None}
    values = np.array(sorted(known.values()), dtype=np.float64)
    tenth = -(-len(values) // 10)
    return {
        "Worst10": _mean(values[:tenth]),
        "LocalRare": _mean(np.array([v for c, v in known.items() if c in rare])),
        "LocalCommon": _mean(np.array([v for c, v in known.items() if c not in rare])),
        "MeanClient": _mean(values),
        "Jain": jain(values),
    }


def jain(values: Floats) -> float | None:
    """Compute Jain's index (Σ a)² / (N Σ a²).

    It is 1 if all values are equal, 1/N if all but one are 0, and None if all are 0.

    >>> jain(np.array([1.0, 1.0])), jain(np.array([1.0, 0.0])), jain(np.zeros(2))
    (1.0, 0.5, None)
    """
    squares = float(np.square(values).sum())
    return float(values.sum()) ** 2 / (len(values) * squares) if squares else None


def _mean(values: npt.NDArray[Any], times: float = 1) -> float | None:
    return times * float(values.mean()) if values.size else None


# Weights with a smaller relative difference count as equal.
TIE = 1e-12


def mean_squared_error(outputs: npt.NDArray[Any], targets: npt.NDArray[Any]) -> float:
    """Return the mean squared error over all samples and outputs.

    >>> mean_squared_error(np.array([[1.0], [4.0]]), np.array([1.0, 2.0]))
    2.0
    """
    errors = np.asarray(outputs, np.float64).reshape(targets.shape) - targets
    return float(np.mean(errors**2))


def r_squared(outputs: npt.NDArray[Any], targets: npt.NDArray[Any]) -> float:
    """Return R², the part of the variance of the targets that the outputs explain.

    Of several outputs, it is the mean of each one's R². It is 0 for a model that predicts the mean
    of the test targets, and not a number where the targets do not vary.

    >>> r_squared(np.array([[1.0], [4.0]]), np.array([1.0, 5.0]))
    0.875
    """
    truth = np.asarray(targets, np.float64).reshape(len(targets), -1)
    errors = np.asarray(outputs, np.float64).reshape(truth.shape) - truth
    variance = truth.var(axis=0)
    if not variance.all():
        return float("nan")
    return float(np.mean(1 - np.mean(errors**2, axis=0) / variance))


# What a regression is measured by, unless the user gives metrics.
REGRESSION_METRICS: Mapping[str, Callable[[npt.NDArray[Any], npt.NDArray[Any]], float]] = {
    "MSE": mean_squared_error,
    "R2": r_squared,
}


class Participation:
    """Statistics over the arrivals of a run; shares are in percent, staleness in events.

    Undefined statistics are None. `rare` are the clients that are rare at the time of an arrival.

    BufPres         share of aggregations with a rare client in the buffer
    RarePart        share of arrivals that come from rare clients
    RareMeanStale   mean staleness of the rare clients' arrivals
    RareMaxStale    largest staleness of the rare clients' arrivals
    RareHoldsMax    share of aggregations in which only rare clients have the largest weight
    Rho, RhoMean    K Σ w² of an aggregation, largest and mean: 1 is uniform, K is one client alone

    >>> own = Participation()
    >>> own.rare_arrived(stale=4)
    >>> own.aggregated(["rare", "other"], [0.75, 0.25], rare={"rare"})
    >>> found = own.metrics(arrivals=2, any_rare=True)
    >>> found["BufPres"], found["RareMeanStale"], found["Rho"]
    (100.0, 4.0, 1.25)
    """

    def __init__(self, attacker: ClientId | None = None) -> None:
        self.aggregations = 0
        self._attacker = attacker
        self._with_rare = 0
        self._rare_arrivals = 0
        self._rare_stale_sum = 0
        self._rare_stale_max: int | None = None
        self._rare_on_top = 0
        self._attacker_on_top = 0
        self._attacker_weights: list[float] = []
        self._rho_sum = 0.0
        self._rho_max: float | None = None

    def rare_arrived(self, stale: int) -> None:
        """Add the staleness of a rare client's arrival."""
        self._rare_arrivals += 1
        self._rare_stale_sum += stale
        if self._rare_stale_max is None or stale > self._rare_stale_max:
            self._rare_stale_max = stale

    def aggregated(
        self,
        buffer: Sequence[ClientId],
        weights: Sequence[float | None],
        rare: AbstractSet[ClientId],
    ) -> None:
        """Add an aggregation of the buffer."""
        self.aggregations += 1
        with_rare = not rare.isdisjoint(buffer)
        self._with_rare += with_rare
        # A user's own strategy may report no weights, or some that are not finite.
        if not weights or len(weights) != len(buffer) or None in weights:
            return
        known = cast("Sequence[float]", weights)
        rho = len(known) * sum(map(mul, known, known))
        self._rho_sum += rho
        if self._rho_max is None or rho > self._rho_max:
            self._rho_max = rho
        attacked = self._attacker is not None and self._attacker in buffer
        if not (with_rare or attacked):
            return  # neither a rare client nor the attacker can have the largest weight
        largest = max(known) * (1 - TIE)
        top = {client for client, weight in zip(buffer, known, strict=True) if weight >= largest}
        self._rare_on_top += top <= rare
        if attacked:
            self._attacker_on_top += top == {self._attacker}
            own = (w for c, w in zip(buffer, known, strict=True) if c == self._attacker)
            self._attacker_weights.append(sum(own))

    def metrics(self, arrivals: int, *, any_rare: bool) -> dict[str, float | None]:
        """Return all statistics by name; `any_rare` says whether a client was ever rare."""
        arrived, longest, total = self._rare_arrivals, self._rare_stale_max, self.aggregations
        claims, attacked = self._attacker_weights, self._attacker is not None
        return {
            "BufPres": _share(self._with_rare, total) if any_rare else None,
            "RarePart": _share(arrived, arrivals) if any_rare else None,
            "RareMeanStale": self._rare_stale_sum / arrived if arrived else None,
            "RareMaxStale": None if longest is None else float(longest),
            "RareHoldsMax": _share(self._rare_on_top, total) if any_rare else None,
            "AttackerHoldsMax": _share(self._attacker_on_top, total) if attacked else None,
            "AttackerWeightMin": min(claims) if claims else None,
            "AttackerWeightMean": sum(claims) / len(claims) if claims else None,
            "AttackerWeightMax": max(claims) if claims else None,
            "Rho": self._rho_max,
            "RhoMean": None if self._rho_max is None else self._rho_sum / total,
            "Aggregations": float(total),
        }


def _share(part: int, whole: int) -> float | None:
    return 100 * part / whole if whole else None


# Every other metric is the user's own.
BUILT_IN = frozenset({*METRICS, "RareInfluence", *Participation().metrics(0, any_rare=False)})


class Influence:
    """π_i, the mean weight of client i over the aggregations of a run.

    With the rule "cache", N is the number of members at the time of an aggregation. When a client
    leaves, its cached update no longer counts, but its earlier weight stays.

    >>> own = Influence()
    >>> own.aggregated(["a", "b"], [0.75, 0.25], members=3)
    >>> own.aggregated(["b", "b"], [0.5, 0.5], members=3)
    >>> own.by_client()
    {'a': 0.375, 'b': 0.625}
    """

    def __init__(self, rule: InfluenceRule = "slots") -> None:
        self._cached = rule == "cache"
        self._aggregations = 0
        self._total: defaultdict[ClientId, float] = defaultdict(float)
        # For the rule "cache": N, the number of aggregations since N last changed, and the first of
        # them that includes each cached client.
        self._members = 0
        self._span = 0
        self._since: dict[ClientId, int] = {}
        # The total weight of each rare client when it became rare; and the total weight that
        # clients, which are no longer rare, had while they were rare.
        self._rare_since: dict[ClientId, float] = {}
        self._rare_once = 0.0

    def aggregated(
        self,
        buffer: Sequence[ClientId],
        weights: Sequence[float | None],
        members: int,
        away: Container[ClientId] = (),
    ) -> None:
        """Add an aggregation; the update of a client that is away may still be in the buffer."""
        self._aggregations += 1
        if self._cached:
            if self._members != members:
                self._settle(members)
            self._span += 1
            for client in buffer:
                if client not in away:
                    self._since.setdefault(client, self._span)
            return
        total = self._total
        # A user's own strategy may report no weights, or some that are not finite.
        for client, weight in zip(buffer, weights, strict=False):
            total[client] += weight or 0.0

    def weights(
        self, buffer: Sequence[ClientId], weights: Sequence[float | None]
    ) -> dict[ClientId, float]:
        """Return the weight of each client in the last aggregation."""
        if self._cached:  # every step includes the last update of each client
            return dict.fromkeys(self._since, 1 / max(1, self._members))
        found: dict[ClientId, float] = {}
        for client, weight in zip(buffer, weights, strict=False):
            found[client] = found.get(client, 0.0) + (weight or 0.0)
        return found

    def left(self, client: ClientId, members: int) -> None:
        """Take a client's update out of the cache; `members` are those that stay."""
        if self._cached:
            self._settle(members)
            self._since.pop(client, None)

    def count_as(self, client: ClientId, is_rare: bool) -> None:
        """Set whether the client counts as rare from now on; its past weight does not change."""
        total = self._aggregations * self._mean(client)
        if is_rare:
            self._rare_since.setdefault(client, total)
        elif client in self._rare_since:
            self._rare_once += total - self._rare_since.pop(client)

    def _settle(self, members: int) -> None:
        """Add the weights of the aggregations since N last changed to the totals."""
        for client, first in self._since.items():
            self._total[client] += (self._span - first + 1) / max(1, self._members)
            self._since[client] = 1
        self._span, self._members = 0, members

    def _mean(self, client: ClientId) -> float:
        """Return π_i of one client, as far as there was an aggregation."""
        count, first = max(1, self._aggregations), self._since.get(client)
        lately = 0.0
        if first is not None:
            lately = (self._span - first + 1) / count / max(1, self._members)
        return self._total.get(client, 0.0) / count + lately

    def by_client(self) -> dict[ClientId, float]:
        """Return π_i of every client in any aggregation; empty before the first aggregation."""
        clients = dict.fromkeys([*self._total, *self._since])
        return {client: self._mean(client) for client in clients}

    def rare_share(self) -> float | None:
        """Return the share of all weight, in percent, that clients had while they were rare."""
        if not self._aggregations:
            return None
        count = self._aggregations
        now = sum(self._mean(client) - since / count for client, since in self._rare_since.items())
        return 100 * (now + self._rare_once / count)


class LabelInfluence(NamedTuple):
    """The share of the global model that comes from the samples of one label."""

    influence: float  # Λ_l = Σ_i π_i freq(l, i)
    fair_share: float  # the label's share of all samples
    ratio: float  # influence / fair_share; below 1, the label is underrepresented


def label_influence(
    influence: Mapping[ClientId, float], table: LabelTable
) -> dict[Label, LabelInfluence]:
    """Return Λ_l and the fair share of each label.

    >>> table = LabelTable.from_counts({"a": {"cat": 2}, "b": {"cat": 1, "dog": 1}})
    >>> label_influence({"a": 0.75, "b": 0.25}, table)["dog"]
    LabelInfluence(influence=0.125, fair_share=0.25, ratio=0.5)
    """
    weight = np.array([influence.get(client, 0.0) for client in table.clients])
    weighted = weight[table.row_of_entry()] * table.share
    totals = np.bincount(table.column, weights=weighted, minlength=len(table.labels))
    pairs = zip(table.labels, totals.tolist(), table.fair_shares().tolist(), strict=True)
    return {label: LabelInfluence(total, fair, total / fair) for label, total, fair in pairs}


def label_standing(influence: Mapping[ClientId, float], table: LabelTable) -> dict[Label, float]:
    """Return the standing of each label, given the influence of each client so far.

    >>> table = LabelTable.from_counts({"a": {"cat": 3, "dog": 1}, "b": {"cat": 4}})
    >>> found = label_standing({"a": 0.5, "b": 0.5}, table)
    >>> round(found["cat"], 2), round(found["dog"], 2)
    (1.32, 0.35)
    """
    weight = np.array([influence.get(client, 0.0) for client in table.clients])
    own = weight[table.row_of_entry()]
    many = len(table.labels)
    weighted = np.bincount(table.column, weights=own * table.share, minlength=many)
    holders = np.bincount(table.column, weights=own, minlength=many)
    found = standing(weighted, holders, standing_scale(table))
    return dict(zip(table.labels, found.tolist(), strict=True))
