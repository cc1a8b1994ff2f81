"""Verdicts: every claim judged by its rules, from outcomes and training-free findings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from statistics import fmean, pstdev
from typing import Any, NamedTuple

from fedraw.experiment.spec import Spec
from fedraw_studies.artefacts import Basis, PaperValue
from fedraw_studies.claims import Claim, Part, load_claims
from fedraw_studies.dynamics import DynamicsResults, Finding, distinct
from fedraw_studies.outcomes import Outcome, RowOutcome, supporting_outcomes
from fedraw_studies.plan import key_of
from fedraw_studies.rules import (
    Judged,
    MeanInterval,
    Verdict,
    below,
    comparable,
    greater,
    inside,
    ordered,
    together,
    wider,
)

NOTHING = "–"
Run = str  # the name of its cell


class RowValues(NamedTuple):
    """One metric of one row of an artefact."""

    values: Mapping[int, float | None]  # by seed
    paper: PaperValue | None
    is_doubtful: bool  # the paper's value must not be compared
    done: frozenset[Run]
    missing: frozenset[Run]


@dataclass(frozen=True)
class Evidence:
    """Both sides of a part, on the seeds that all its rows have."""

    a: Sequence[RowValues]
    b: Sequence[RowValues]
    seeds: Sequence[int]
    basis: Basis

    @property
    def rows(self) -> list[RowValues]:
        """All rows of both sides."""
        return [*self.a, *self.b]

    @property
    def done(self) -> frozenset[Run]:
        """The finished runs that it rests on."""
        return frozenset().union(*(row.done for row in self.rows))

    @property
    def missing(self) -> frozenset[Run]:
        """The runs that it still needs."""
        return frozenset().union(*(row.missing for row in self.rows))

    @property
    def is_defined(self) -> bool:
        """Whether the metric has a value in every run."""
        return all(row.values[seed] is not None for row in self.rows for seed in self.seeds)

    @property
    def is_exact(self) -> bool:
        """Whether no chance is in the values, because they are counted."""
        return self.basis is Basis.COUNT

    @property
    def from_seeds(self) -> int:
        """How many seeds it rests on; a count and a recorded measurement have none."""
        return len(self.seeds) if self.basis in (Basis.RUNS, Basis.WEIGHTS) else 0

    def first(self) -> list[float]:
        """The values of A, seed by seed."""
        return _known(self.a[0].values[seed] for seed in self.seeds)

    def best_other(self) -> list[float]:
        """The best of B, seed by seed."""
        return [max(_known(row.values[seed] for row in self.b)) for seed in self.seeds]

    def differences(self) -> list[float]:
        """A − B, seed by seed; A itself where there is no B."""
        if not self.b:
            return self.first()
        return [one - other for one, other in zip(self.first(), self.best_other(), strict=True)]

    def means(self) -> list[float]:
        """The means of the rows of a sweep."""
        return [fmean(_known(row.values[seed] for seed in self.seeds)) for row in self.a]


@dataclass(frozen=True)
class PartVerdict:
    """What came of one part, with both sides in words."""

    part: Part
    verdict: Verdict
    paper: str = NOTHING
    ours: str = NOTHING
    why: str = ""  # said beside the verdict
    done: frozenset[Run] = frozenset()
    missing: frozenset[Run] = frozenset()
    so_far: Verdict | None = None  # by the finished runs, while others are missing
    seeds: int = 0
    difference: MeanInterval | None = None


@dataclass(frozen=True)
class ClaimVerdict:
    """What came of a claim."""

    claim: Claim
    parts: tuple[PartVerdict, ...]

    @property
    def verdict(self) -> Verdict:
        """The parts together; a condition can only turn "holds" into "partly"."""
        if any(own.verdict is Verdict.NOT_RUN for own in self.parts):
            return Verdict.NOT_RUN
        verdict = together([own.verdict for own in self.parts if not own.part.beside])
        conditions = together([own.verdict for own in self.parts if own.part.beside])
        doubtful = conditions in (Verdict.PARTLY, Verdict.FAILS)
        return Verdict.PARTLY if verdict is Verdict.HOLDS and doubtful else verdict

    @property
    def runs(self) -> tuple[int, int]:
        """How many of its runs are finished, and how many it needs."""
        done = frozenset[Run]().union(*(own.done for own in self.parts))
        missing = frozenset[Run]().union(*(own.missing for own in self.parts))
        return len(done), len(done | missing)


def judge(outcomes: Sequence[Outcome], dynamics: DynamicsResults | None) -> list[ClaimVerdict]:
    """Judge all claims; a part whose runs are not finished is not judged yet."""
    by_name = {own.artefact: own for own in [*outcomes, *supporting_outcomes()]}
    return [
        ClaimVerdict(claim, tuple(_judge(part, by_name, dynamics) for part in claim.parts))
        for claim in load_claims()
    ]


def as_json(judged: Sequence[ClaimVerdict]) -> list[dict[str, Any]]:
    """Return claims, parts and verdicts, ready for JSON."""
    return [
        {
            "name": own.claim.name,
            "claim": own.claim.text,
            "where": own.claim.where,
            "verdict": own.verdict.value,
            "headline": own.claim.headline,
            "note": own.claim.note,
            "parts": [_part_json(part) for part in own.parts],
        }
        for own in judged
    ]


def _part_json(own: PartVerdict) -> dict[str, Any]:
    part, difference = own.part, own.difference
    ends = None if difference is None else [e if isfinite(e) else None for e in difference]
    return {
        "name": part.name,
        "rule": part.rule,
        "limit": part.limit or None,
        "artefact": part.artefact,
        "metric": part.metric,
        "a": list(part.a),
        "b": list(part.b),
        "condition": part.beside,
        "paper": own.paper,
        "ours": own.ours,
        "difference": ends,  # mean, and its 95 % interval
        "verdict": own.verdict.value,
        "why": own.why,
        "seeds": own.seeds,
        "runs": len(own.done),
        "runs_needed": len(own.done | own.missing),
        "so_far": None if own.so_far is None else own.so_far.value,
    }


def _judge(
    part: Part, outcomes: Mapping[str, Outcome], dynamics: DynamicsResults | None
) -> PartVerdict:
    if part.rule == "inside":
        return _inside(part, dynamics)
    if not part.artefact:
        return PartVerdict(part, Verdict.NOT_COMPARABLE, why=part.why)
    evidence = gather(part, outcomes[part.artefact])
    judged = _by_rule(part, evidence)
    waits = bool(evidence.missing) and part.rule != "none"
    so_far = judged.verdict if waits and evidence.seeds else None
    shows = bool(part.b and evidence.seeds and evidence.is_defined)
    return PartVerdict(
        part,
        Verdict.NOT_RUN if waits else judged.verdict,
        paper_words(part, evidence),
        our_words(part, evidence),
        judged.why,
        evidence.done,
        evidence.missing,
        so_far,
        evidence.from_seeds,
        MeanInterval.of(evidence.differences()) if shows else None,
    )


def _by_rule(part: Part, evidence: Evidence) -> Judged:
    if part.rule != "none" and not evidence.seeds:
        return Judged(Verdict.NOT_RUN)
    if part.rule != "none" and not evidence.is_defined:
        return Judged(Verdict.NOT_COMPARABLE, f"{part.metric} is undefined in some runs")
    return _RULES[part.rule](part, evidence)


def _within(part: Part, evidence: Evidence) -> Judged:
    paper = evidence.a[0].paper if part.paper is None else PaperValue.of(part.paper)
    values = evidence.differences()
    found = Finding.of(part.artefact, part.a[0], part.metric, paper, values)
    if paper is None or found.mean is None:
        return Judged(Verdict.NOT_COMPARABLE, "the paper has no figure")
    near = all(abs(value - found.mean) <= part.limit for value in paper.values)
    return Judged(Verdict.HOLDS if found.inside or near else Verdict.FAILS)


_RULES: dict[str, Callable[[Part, Evidence], Judged]] = {
    "greater": lambda _, own: greater(own.differences(), exact=own.is_exact),
    "comparable": lambda part, own: comparable(own.differences(), part.limit, exact=own.is_exact),
    "below": lambda part, own: below(own.first(), part.limit, exact=own.is_exact),
    "wider": lambda _, own: wider(own.first(), own.best_other()),
    "ordered": lambda part, own: ordered([(-1) ** part.falling * mean for mean in own.means()]),
    "within": _within,
    "none": lambda part, _: Judged(Verdict.NOT_COMPARABLE, part.why),
}


def _inside(part: Part, dynamics: DynamicsResults | None) -> PartVerdict:
    if dynamics is None:
        return PartVerdict(part, Verdict.NOT_RUN, why="fedraw reproduce dynamics makes them")
    own = [f for f in dynamics.findings if f.artefact in part.tables and f.inside is not None]
    once, seeds = distinct(own, dynamics.seeds), dynamics.seeds
    judged = inside([bool(f.inside) for f in own], [bool(f.inside) for f in once])
    ours = f"{judged.why}, {_seeds(seeds)}"
    return PartVerdict(part, judged.verdict, f"{len(own)} figures", ours, seeds=seeds)


def gather(part: Part, outcome: Outcome) -> Evidence:
    """Collect the rows of a part from the outcome of its artefact."""
    a, b = ([_row(part, outcome.row(label)) for label in side] for side in (part.a, part.b))
    first, *others = [row.values for row in (*a, *b)]
    seeds = [seed for seed in first if all(seed in own for own in others)]
    return Evidence(a, b, seeds, outcome.basis)


def paper_words(part: Part, evidence: Evidence) -> str:
    """Say the paper's values as printed; of several B the best."""
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
    """Say mean ± sd of both sides, and the mean difference with its interval."""
    if not evidence.seeds:
        return NOTHING
    if not evidence.is_defined:
        return "undefined"
    digits = 3 if "Weight" in part.metric else 1
    said = _said(evidence)
    if _is_sweep(part, evidence):
        return ", ".join(f"{mean:.{digits}f}" for mean in evidence.means()) + said
    first = _spread(evidence.first(), digits)
    if not evidence.b:
        return first + said
    both = f"{first} against {_spread(evidence.best_other(), digits)}"
    if part.rule == "wider":
        return both + said
    mean, low, high = MeanInterval.of(evidence.differences())
    between = f" ({low:+.{digits}f} to {high:+.{digits}f})" if len(evidence.seeds) > 1 else ""
    return f"{both}: {mean:+.{digits}f}{between}{said}"


def _row(part: Part, row: RowOutcome) -> RowValues:
    measured = row.metrics[part.metric]
    values = dict(zip(measured.seeds, measured.ours.values, strict=True))
    doubtful = measured.not_comparable is not None
    done, missing = _cells(row, row.records), _cells(row, row.missing)
    return RowValues(values, measured.paper, doubtful, done, missing)


def _cells(row: RowOutcome, seeds: Iterable[int]) -> frozenset[Run]:
    listed = list(seeds)
    key = key_of(Spec.read(row.spec)) if listed else ""
    return frozenset(f"{key}-{seed}" for seed in listed)


def _is_sweep(part: Part, evidence: Evidence) -> bool:
    return part.rule in ("ordered", "none") and len(evidence.a) > 1


def _printed(row: RowValues) -> str:
    return NOTHING if row.paper is None else row.paper.printed + " (doubtful)" * row.is_doubtful


def _said(evidence: Evidence) -> str:
    if evidence.basis is Basis.COUNT:
        return ""
    if evidence.basis is Basis.MEASUREMENT:
        return ", measured elsewhere"
    return f", {_seeds(len(evidence.seeds))}"


def _seeds(count: int) -> str:
    return "one seed" if count == 1 else f"{count} seeds"


def _spread(values: Sequence[float], digits: int) -> str:
    mean = f"{fmean(values):.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ± {pstdev(values):.{digits}f}"


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]
