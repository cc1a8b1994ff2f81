"""The rules for judging claims; `paper/claims.toml` explains them and assigns them."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from itertools import permutations
from math import inf, sqrt
from statistics import fmean, stdev
from typing import NamedTuple

from fedraw.core.intervals import student_quantile

# With fewer seeds, no test can exclude chance.
FEW = 3
CONFIDENCE = 0.95
# All permutations of a sweep are enumerated, so it must be short.
LONGEST_SWEEP = 8


class Verdict(StrEnum):
    """The verdict on a claim or on one of its parts."""

    HOLDS = "holds"
    PARTLY = "partly"
    FAILS = "does not hold"
    NOT_COMPARABLE = "cannot be compared"
    NOT_RUN = "not run yet"


class Judged(NamedTuple):
    """A verdict and its explanation."""

    verdict: Verdict
    why: str = ""


class MeanInterval(NamedTuple):
    """A mean over seeds and its confidence interval."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float], confidence: float = CONFIDENCE) -> MeanInterval:
        """Compute Student's interval, by default of 95 %; unbounded for a single value.

        >>> MeanInterval.of([1.0, 2.0, 3.0])
        MeanInterval(mean=2.0, low=-0.48..., high=4.48...)
        """
        mean = fmean(values)
        if len(values) < 2:
            return cls(mean, -inf, inf)
        quantile = student_quantile(len(values) - 1, confidence)
        half = quantile * stdev(values) / sqrt(len(values))
        return cls(mean, mean - half, mean + half)


def corrected(claims: int) -> float:
    """Return the confidence at which P(a wrong "holds" among all claims) is at most 5 %.

    This is Bonferroni's correction. A claim holds only if all of its parts do, so the number of its
    parts does not matter.

    >>> round(corrected(1), 4), round(corrected(20), 4)
    (0.95, 0.9975)
    """
    return 1 - (1 - CONFIDENCE) / max(1, claims)


def greater(
    differences: Sequence[float], *, exact: bool = False, confidence: float = CONFIDENCE
) -> Judged:
    """Judge whether A − B, seed by seed, is above zero; `exact` values involve no chance.

    >>> greater([5.0, 6.0, 7.0]).verdict.value, greater([-5.0, 6.0, 7.0]).verdict.value
    ('holds', 'partly')
    >>> greater([5.0])
    Judged(verdict=<Verdict.PARTLY: 'partly'>, why='one seed')
    """
    interval = MeanInterval.of(differences, confidence)
    if interval.mean <= 0:
        return Judged(Verdict.FAILS)
    if exact:
        return Judged(Verdict.HOLDS)
    if len(differences) < FEW:
        return Judged(Verdict.PARTLY, seeds_text(len(differences)))
    if interval.low <= 0:
        return Judged(Verdict.PARTLY, "within chance")
    return Judged(Verdict.HOLDS)


def below(
    values: Sequence[float], bound: float, *, exact: bool = False, confidence: float = CONFIDENCE
) -> Judged:
    """Judge whether a mean is below a bound, and its interval too.

    >>> below([0.0, 1.0, 2.0], 5.0).verdict.value
    'holds'
    """
    return greater([bound - value for value in values], exact=exact, confidence=confidence)


def comparable(
    differences: Sequence[float],
    margin: float,
    *,
    exact: bool = False,
    confidence: float = CONFIDENCE,
) -> Judged:
    """Judge whether the mean difference is within ± margin, and its interval too.

    >>> comparable([1.0, -1.0, 0.5], 3.0).verdict.value
    'holds'
    >>> comparable([1.0, -4.0, 0.5], 3.0).verdict.value
    'partly'
    """
    both = differences, [-difference for difference in differences]
    return worse(*(below(own, margin, exact=exact, confidence=confidence) for own in both))


def every(differences: Sequence[float]) -> Judged:
    """Judge whether A − B is above zero in every seed.

    >>> every([5.0, 0.1, 7.0])
    Judged(verdict=<Verdict.HOLDS: 'holds'>, why='3 of 3 seeds')
    >>> every([5.0, -0.1, 7.0]).verdict.value, every([5.0, -0.1]).verdict.value
    ('partly', 'does not hold')
    """
    above, seeds = sum(difference > 0 for difference in differences), len(differences)
    why = f"{above} of {seeds} seeds"
    if above == seeds and seeds >= FEW:
        return Judged(Verdict.HOLDS, why)
    return Judged(Verdict.PARTLY if 2 * above > seeds else Verdict.FAILS, why)


def wider(a: Sequence[float], b: Sequence[float], confidence: float = CONFIDENCE) -> Judged:
    """Judge whether A spreads more over the seeds than B, by the F test of two variances.

    For equal numbers of seeds F is turned into Student's t: (√F − 1/√F)·√df / 2.

    >>> wider([0.0, 10.0, 20.0], [9.0, 10.0, 11.0]).verdict.value
    'holds'
    >>> wider([8.0, 10.0, 12.0], [9.0, 10.0, 11.0])
    Judged(verdict=<Verdict.PARTLY: 'partly'>, why='within chance')
    """
    if len(a) < 2:
        return Judged(Verdict.NOT_COMPARABLE, "one seed has no spread")
    ours, theirs = stdev(a), stdev(b)
    if ours <= theirs:
        return Judged(Verdict.FAILS)
    if len(a) < FEW:
        return Judged(Verdict.PARTLY, seeds_text(len(a)))
    ratio = ours / theirs if theirs else inf
    df = len(a) - 1
    chance = (ratio - 1 / ratio) * sqrt(df) / 2 <= student_quantile(df, confidence)
    return Judged(Verdict.PARTLY, "within chance") if chance else Judged(Verdict.HOLDS)


def ordered(values: Sequence[float], confidence: float = CONFIDENCE) -> Judged:
    """Judge whether values rise along a sweep, by a permutation test of the rank correlation.

    >>> ordered([1, 2, 4, 3, 5, 6]).verdict.value, ordered([1, 3, 2]).verdict.value
    ('holds', 'partly')
    >>> ordered([3, 2, 1]).why
    'rank correlation -1.00'
    """
    correlation = rank_correlation(values)
    why = f"rank correlation {correlation:.2f}"
    if correlation <= 0:
        return Judged(Verdict.FAILS, why)
    if _share_as_ordered(values, correlation) > 1 - confidence:
        return Judged(Verdict.PARTLY, f"{why}, within chance")
    return Judged(Verdict.HOLDS, why)


def inside(every: Sequence[bool], once: Sequence[bool]) -> Judged:
    """Judge how many of the paper's values are within our seeds; each distinct one counts once.

    >>> inside([True, True, False], [True, False]).why
    '2 of 3 figures inside (1 of 2 distinct ones)'
    >>> inside([True, True], [True, True])
    Judged(verdict=<Verdict.HOLDS: 'holds'>, why='2 of 2 figures inside')
    """
    why = f"{sum(every)} of {len(every)} figures inside"
    if len(once) != len(every):
        why += f" ({sum(once)} of {len(once)} distinct ones)"
    if all(once):
        return Judged(Verdict.HOLDS, why)
    return Judged(Verdict.PARTLY if 2 * sum(once) >= len(once) else Verdict.FAILS, why)


def together(verdicts: Sequence[Verdict]) -> Verdict:
    """Combine the verdicts of a claim's parts: it holds only if all comparable parts hold.

    >>> together([Verdict.HOLDS, Verdict.FAILS]).value
    'partly'
    >>> together([Verdict.HOLDS, Verdict.NOT_COMPARABLE]).value
    'holds'
    """
    if Verdict.NOT_RUN in verdicts:
        return Verdict.NOT_RUN
    judged = set(verdicts) - {Verdict.NOT_COMPARABLE}
    if not judged:
        return Verdict.NOT_COMPARABLE
    return judged.pop() if len(judged) == 1 else Verdict.PARTLY


def worse(one: Judged, other: Judged) -> Judged:
    """Return the less favourable of two judgements."""
    order = (Verdict.FAILS, Verdict.PARTLY, Verdict.HOLDS)
    return min(one, other, key=lambda judged: order.index(judged.verdict))


def rank_correlation(values: Sequence[float]) -> float:
    """Return Spearman's correlation of the values with their order; 0 if all are equal.

    >>> rank_correlation([10, 30, 20]), rank_correlation([7, 7, 7])
    (0.5, 0.0)
    """
    ranks = [_rank(value, values) for value in values]
    middle = (len(values) - 1) / 2
    joint = sum((i - middle) * (rank - middle) for i, rank in enumerate(ranks))
    own = sum((rank - middle) ** 2 for rank in ranks)
    places = sum((i - middle) ** 2 for i in range(len(values)))
    return joint / sqrt(own * places) if own else 0.0


def _rank(value: float, values: Sequence[float]) -> float:
    """Return the rank of a value, from 0; equal values share their mean rank."""
    return sum(other < value for other in values) + (values.count(value) - 1) / 2


def _share_as_ordered(values: Sequence[float], correlation: float) -> float:
    """Return the share of permutations that are at least as well ordered, in either direction."""
    if len(values) > LONGEST_SWEEP:
        raise ValueError(f"a sweep of {len(values)} has too many orders to count")
    every = [abs(rank_correlation(order)) for order in permutations(values)]
    return sum(other >= correlation - 1e-9 for other in every) / len(every)


def seeds_text(seeds: int) -> str:
    """Format a number of seeds.

    >>> seeds_text(1), seeds_text(3)
    ('one seed', '3 seeds')
    """
    return "one seed" if seeds == 1 else f"{seeds} seeds"
