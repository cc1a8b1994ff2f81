"""What a part of a claim is judged by: its rows seed by seed, and what the paper prints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import NamedTuple

from fedraw.experiment.spec import Spec
from fedraw_studies.claims import BENCHMARK, SERVER_STATE, Part, fixed_values
from fedraw_studies.figure import Figure
from fedraw_studies.outcomes import Outcome, RowOutcome
from fedraw_studies.plan import key_of
from fedraw_studies.rules import Interval

NOTHING = "–"
Run = str  # the name of its cell


class Row(NamedTuple):
    """One metric of one row."""

    values: Mapping[int, float | None]  # by seed
    paper: Figure | None = None
    is_doubtful: bool = False  # the paper's figure must not be compared
    done: frozenset[Run] = frozenset()
    missing: frozenset[Run] = frozenset()


@dataclass(frozen=True)
class Evidence:
    """Both sides of a part, on the seeds that all its rows have."""

    a: Sequence[Row]
    b: Sequence[Row]
    seeds: Sequence[int]

    @property
    def rows(self) -> list[Row]:
        return [*self.a, *self.b]

    @property
    def done(self) -> frozenset[Run]:
        return frozenset().union(*(row.done for row in self.rows))

    @property
    def missing(self) -> frozenset[Run]:
        return frozenset().union(*(row.missing for row in self.rows))

    @property
    def is_defined(self) -> bool:
        return all(row.values[seed] is not None for row in self.rows for seed in self.seeds)

    def first(self) -> list[float]:
        return _known(self.a[0].values[seed] for seed in self.seeds)

    def best_other(self) -> list[float]:
        return [max(_known(row.values[seed] for row in self.b)) for seed in self.seeds]

    def differences(self) -> list[float]:
        """A − B; A itself where there is no B."""
        if not self.b:
            return self.first()
        return [one - other for one, other in zip(self.first(), self.best_other(), strict=True)]

    def means(self) -> list[float]:
        """Of the rows of a sweep."""
        return [fmean(_known(row.values[seed] for seed in self.seeds)) for row in self.a]


def gather(part: Part, outcomes: Mapping[str, Outcome]) -> Evidence:
    a, b = ([_row(part, label, outcomes) for label in side] for side in (part.a, part.b))
    first, *others = [row.values for row in (*a, *b)]
    return Evidence(a, b, [seed for seed in first if all(seed in own for own in others)])


def paper_words(part: Part, evidence: Evidence) -> str:
    """The paper's figures, as printed; of several others the best."""
    if part.paper is not None:
        return part.paper
    if _is_sweep(part, evidence):
        printed = [_printed(row) for row in evidence.a]
        return ", ".join(printed) if set(printed) != {NOTHING} else NOTHING
    first = _printed(evidence.a[0])
    if not evidence.b:
        return first
    best = max(evidence.b, key=lambda row: row.paper.values[0] if row.paper else float("-inf"))
    return f"{first} against {_printed(best)}"


def our_words(part: Part, evidence: Evidence) -> str:
    """Mean ± sd of both sides, and the mean of the differences with its interval."""
    if not evidence.seeds:
        return NOTHING
    if not evidence.is_defined:
        return "undefined"
    digits = 3 if "Weight" in part.metric else 1
    said = _said(part, evidence)
    if _is_sweep(part, evidence):
        return ", ".join(f"{mean:.{digits}f}" for mean in evidence.means()) + said
    first = _spread(evidence.first(), digits)
    if not evidence.b:
        return first + said
    both = f"{first} against {_spread(evidence.best_other(), digits)}"
    if part.rule == "wider":
        return both + said
    mean, low, high = Interval.of(evidence.differences())
    between = f" ({low:+.{digits}f} to {high:+.{digits}f})" if len(evidence.seeds) > 1 else ""
    return f"{both}: {mean:+.{digits}f}{between}{said}"


def _row(part: Part, label: str, outcomes: Mapping[str, Outcome]) -> Row:
    if part.artefact in (SERVER_STATE, BENCHMARK):
        return Row(dict(enumerate(fixed_values(part.artefact, label))))
    row = outcomes[part.artefact].row(label)
    measured = row.metrics[part.metric]
    values = dict(zip(measured.seeds, measured.ours.values, strict=True))
    odd = measured.not_comparable is not None
    return Row(values, measured.paper, odd, _cells(row, row.records), _cells(row, row.missing))


def _cells(row: RowOutcome, seeds: Iterable[int]) -> frozenset[Run]:
    listed = list(seeds)
    key = key_of(Spec.read(row.spec)) if listed else ""
    return frozenset(f"{key}-{seed}" for seed in listed)


def _is_sweep(part: Part, evidence: Evidence) -> bool:
    return part.rule in ("ordered", "none") and len(evidence.a) > 1


def _printed(row: Row) -> str:
    return NOTHING if row.paper is None else row.paper.printed + " (doubtful)" * row.is_doubtful


def _said(part: Part, evidence: Evidence) -> str:
    if part.artefact in (SERVER_STATE, BENCHMARK):
        return ", measured elsewhere" if part.artefact == BENCHMARK else ""
    count = len(evidence.seeds)
    return ", one seed" if count == 1 else f", {count} seeds"


def _spread(values: Sequence[float], digits: int) -> str:
    mean = f"{fmean(values):.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ± {pstdev(values):.{digits}f}"


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]
