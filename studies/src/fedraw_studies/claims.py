"""The paper's claims, from `paper/claims.toml`, and our verdict on each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite
from statistics import fmean, pstdev
from typing import Any

from fedraw_studies.artefacts import DYNAMICS, NAMES, Basis, PaperValue, study_file
from fedraw_studies.dynamics import DynamicsResults, distinct
from fedraw_studies.federations import federation_outcome
from fedraw_studies.markdown import NOTHING
from fedraw_studies.outcomes import TAIL, Finding, Outcome, RowOutcome, supporting_outcomes
from fedraw_studies.rules import (
    CONFIDENCE,
    Judged,
    MeanInterval,
    Verdict,
    below,
    comparable,
    corrected,
    every,
    greater,
    inside,
    ordered,
    seeds_text,
    together,
    wider,
)

Runs = frozenset[str]  # the names of cells


@dataclass(frozen=True)
class Part:
    """One comparison that a claim consists of."""

    name: str
    rule: str
    artefact: str = ""
    metric: str = ""
    a: tuple[str, ...] = ()  # rows of the artefact; a sweep has several
    b: tuple[str, ...] = ()  # the rows to compare with; of several, the best of each seed counts
    less: str = ""  # a metric of the same row that is subtracted
    limit: float = 0.0  # margin or bound
    falling: bool = False
    condition: bool = False  # a condition of the claim, not the claim itself
    tables: tuple[str, ...] = ()  # training-free tables, for the rule "inside"
    why: str = ""  # why there is nothing to judge
    paper: str | None = None  # the paper's value, if no table prints it


@dataclass(frozen=True)
class Claim:
    """A statement of the paper and its parts."""

    name: str
    text: str
    where: str
    parts: tuple[Part, ...]
    note: str = ""
    headline: bool = False


@dataclass(frozen=True)
class Evidence:
    """Both sides of a part, on the seeds that all of its rows have."""

    a: Sequence[Finding]
    b: Sequence[Finding]
    basis: Basis
    done: Runs  # that it uses
    missing: Runs  # that it still needs

    @classmethod
    def of(cls, part: Part, outcome: Outcome, *, tail: bool = False) -> Evidence:
        """Collect the rows of a part from the outcome of its artefact.

        With `tail` a value is the mean of the last five evaluations, if the metric has one.
        """
        a, b = ([outcome.row(label) for label in side] for side in (part.a, part.b))
        one, other = ([_finding(part, row, tail) for row in side] for side in (a, b))
        done = _cells([(row, list(row.records)) for row in (*a, *b)])
        missing = _cells([(row, row.missing) for row in (*a, *b)])
        return cls(one, other, outcome.artefact.basis, done, missing)

    @property
    def seeds(self) -> list[int]:
        """The seeds that all rows have."""
        first, *others = [own.values for own in (*self.a, *self.b)]
        return [seed for seed in first if all(seed in own for own in others)]

    @property
    def is_defined(self) -> bool:
        """Whether the metric has a value in every run."""
        rows = (*self.a, *self.b)
        return all(own.values[seed] is not None for own in rows for seed in self.seeds)

    @property
    def is_exact(self) -> bool:
        """Whether the values are counts, which involve no chance."""
        return self.basis is Basis.COUNT

    @property
    def from_seeds(self) -> int:
        """The number of seeds that it uses; a count and a recorded measurement have none."""
        return len(self.seeds) if self.basis in (Basis.RUNS, Basis.WEIGHTS) else 0

    def first(self) -> list[float]:
        """Return the values of A, seed by seed."""
        return self._known(self.a[0])

    def best_other(self) -> list[float]:
        """Return the best of B, seed by seed."""
        return [max(values) for values in zip(*map(self._known, self.b), strict=True)]

    def differences(self) -> list[float]:
        """Return A − B, seed by seed; A itself if there is no B."""
        if not self.b:
            return self.first()
        return [one - other for one, other in zip(self.first(), self.best_other(), strict=True)]

    def cross_products(self) -> list[float]:
        """Return A1 · B2 − A2 · B1, seed by seed: positive where A1/A2 is above B1/B2."""
        rows = zip(*map(self._known, (*self.a, *self.b)), strict=True)
        return [a1 * b2 - a2 * b1 for a1, a2, b1, b2 in rows]

    def means(self) -> list[float]:
        """Return the means of the rows of a sweep."""
        return [fmean(self._known(own)) for own in self.a]

    def other_means(self) -> list[float]:
        """Return the means of the rows of B."""
        return [fmean(self._known(own)) for own in self.b]

    def _known(self, own: Finding) -> list[float]:
        return [value for seed in self.seeds if (value := own.values[seed]) is not None]


@dataclass(frozen=True)
class Second:
    """The verdict on a part by the mean of the last five evaluations."""

    verdict: Verdict
    ours: str
    why: str = ""


@dataclass(frozen=True)
class PartVerdict:
    """The verdict on one part, with both sides as text."""

    part: Part
    verdict: Verdict
    paper: str = NOTHING
    ours: str = NOTHING
    why: str = ""  # printed after the verdict
    done: Runs = frozenset()
    missing: Runs = frozenset()
    so_far: Verdict | None = None  # by the finished runs, while others are missing
    seeds: int = 0
    difference: MeanInterval | None = None
    second: Second | None = None  # only at strict scales


@dataclass(frozen=True)
class ClaimVerdict:
    """The verdict on a claim."""

    claim: Claim
    parts: tuple[PartVerdict, ...]

    @property
    def verdict(self) -> Verdict:
        """The verdict of all parts, by the last model."""
        return _of_claim([(own.part.condition, own.verdict) for own in self.parts])

    @property
    def second(self) -> Verdict | None:
        """The verdict of all parts by the mean of the last five evaluations, if that is judged."""
        if all(own.second is None for own in self.parts):
            return None
        return _of_claim(
            [
                (own.part.condition, own.verdict if own.second is None else own.second.verdict)
                for own in self.parts
            ]
        )

    @property
    def runs(self) -> tuple[int, int]:
        """The number of its finished runs, and the number that it needs."""
        done = Runs().union(*(own.done for own in self.parts))
        missing = Runs().union(*(own.missing for own in self.parts))
        return len(done), len(done | missing)


def _of_claim(parts: Sequence[tuple[bool, Verdict]]) -> Verdict:
    """Combine the parts of a claim; a condition can only turn "holds" into "partly"."""
    if any(verdict is Verdict.NOT_RUN for _, verdict in parts):
        return Verdict.NOT_RUN
    verdict = together([verdict for is_condition, verdict in parts if not is_condition])
    conditions = together([verdict for is_condition, verdict in parts if is_condition])
    doubtful = conditions in (Verdict.PARTLY, Verdict.FAILS)
    return Verdict.PARTLY if verdict is Verdict.HOLDS and doubtful else verdict


def load_claims() -> list[Claim]:
    """Load all claims, the most important first."""
    return [
        Claim(
            table["name"],
            table["claim"],
            table["where"],
            tuple(part for own in table["parts"] for part in _parts(own)),
            table.get("note", ""),
            table.get("headline", False),
        )
        for table in study_file("claims")["claims"]
    ]


def judge(
    outcomes: Sequence[Outcome], dynamics: DynamicsResults | None, *, strict: bool = False
) -> list[ClaimVerdict]:
    """Judge all claims about these outcomes; a part with unfinished runs is not judged yet.

    A scale that does not have all artefacts of a claim cannot judge it, so the claim is left out.
    `strict` widens intervals for the number of claims that chance can decide, and judges every
    part a second time, by the mean of the last five evaluations.
    """
    known = [*outcomes, *supporting_outcomes(), federation_outcome()]
    by_name = {own.name: own for own in known}
    claims = [claim for claim in load_claims() if _can_be_judged(claim, outcomes, by_name)]
    confidence = corrected(decided_by_chance(claims, by_name)) if strict else CONFIDENCE

    def judged(part: Part) -> PartVerdict:
        own = _judge(part, by_name, dynamics, confidence)
        return replace(own, second=_second(part, by_name, own, confidence)) if strict else own

    return [ClaimVerdict(claim, tuple(map(judged, claim.parts))) for claim in claims]


def _can_be_judged(claim: Claim, outcomes: Sequence[Outcome], known: Mapping[str, Outcome]) -> bool:
    """Return whether all artefacts of a claim are known, and some are of this scale."""
    needed = {part.artefact for part in claim.parts} - {"", DYNAMICS}
    own = {outcome.name for outcome in outcomes}
    return needed <= known.keys() and (own >= set(NAMES) or bool(needed & own))


def decided_by_chance(claims: Sequence[Claim], outcomes: Mapping[str, Outcome]) -> int:
    """Count the claims with a part that uses runs, finished or not, and a statistical test."""
    return sum(
        any(
            part.rule in _BY_CHANCE and outcomes[part.artefact].artefact.basis is Basis.RUNS
            for part in claim.parts
        )
        for claim in claims
    )


def as_json(judged: Sequence[ClaimVerdict]) -> list[dict[str, Any]]:
    """Return claims, parts and verdicts, ready for JSON."""
    return [
        {
            "name": own.claim.name,
            "claim": own.claim.text,
            "where": own.claim.where,
            "verdict": own.verdict.value,
            **({} if own.second is None else {"last_five": own.second.value}),
            "headline": own.claim.headline,
            "note": own.claim.note,
            "parts": [_part_json(part) for part in own.parts],
        }
        for own in judged
    ]


def _parts(table: Mapping[str, Any]) -> Iterator[Part]:
    """Yield one part for every entry of `each`, which replaces {} in its texts."""
    for entry in table.get("each", [""]):
        own = {key: _filled(value, entry) for key, value in table.items() if key != "each"}
        name, metric = own.pop("name", f"{entry}, {{m}}"), own.get("metric", "")
        name = name.replace("{m}", metric).removesuffix(f", {entry}")
        limit = own.pop("margin", None) or own.pop("bound", 0.0)
        a, b = (_listed(own.pop(side, ())) for side in ("a", "b"))
        yield Part(name, a=a, b=b, limit=limit, **own)


def _filled(value: Any, entry: str) -> Any:
    if isinstance(value, list):
        return tuple(text.replace("{}", entry) for text in value)
    return value.replace("{}", entry) if isinstance(value, str) else value


def _listed(rows: str | tuple[str, ...]) -> tuple[str, ...]:
    return (rows,) if isinstance(rows, str) else rows


def _part_json(own: PartVerdict) -> dict[str, Any]:
    part, difference = own.part, own.difference
    ends = None if difference is None else [e if isfinite(e) else None for e in difference]
    return {
        "name": part.name,
        "rule": part.rule,
        "limit": part.limit or None,
        "artefact": part.artefact,
        "metric": part.metric,
        "less": part.less or None,
        "a": list(part.a),
        "b": list(part.b),
        "condition": part.condition,
        "paper": own.paper,
        "ours": own.ours,
        "difference": ends,  # mean, and its 95 % interval
        "verdict": own.verdict.value,
        "why": own.why,
        "seeds": own.seeds,
        "runs": len(own.done),
        "runs_needed": len(own.done | own.missing),
        "so_far": None if own.so_far is None else own.so_far.value,
        **({} if own.second is None else {"last_five": _second_json(own.second)}),
    }


def _second_json(own: Second) -> dict[str, str]:
    return {"ours": own.ours, "verdict": own.verdict.value, "why": own.why}


def _judge(
    part: Part,
    outcomes: Mapping[str, Outcome],
    dynamics: DynamicsResults | None,
    confidence: float,
) -> PartVerdict:
    if part.rule == "inside":
        return _inside(part, dynamics)
    if not part.artefact:
        return PartVerdict(part, Verdict.NOT_COMPARABLE, why=part.why)
    evidence = Evidence.of(part, outcomes[part.artefact])
    judged = _by_rule(part, evidence, confidence)
    waits = bool(evidence.missing) and part.rule != "none"
    pairs = bool(part.b) and part.rule != "ratio"
    shows = pairs and bool(evidence.seeds) and evidence.is_defined
    return PartVerdict(
        part,
        Verdict.NOT_RUN if waits else judged.verdict,
        paper_words(part, evidence),
        our_words(part, evidence, confidence),
        judged.why,
        evidence.done,
        evidence.missing,
        judged.verdict if waits and evidence.seeds else None,
        evidence.from_seeds,
        MeanInterval.of(evidence.differences(), confidence) if shows else None,
    )


def _second(
    part: Part, outcomes: Mapping[str, Outcome], first: PartVerdict, confidence: float
) -> Second | None:
    """Judge a part that uses runs by the mean of the last five evaluations."""
    if part.rule not in (*_BY_CHANCE, "every"):
        return None
    if outcomes[part.artefact].artefact.basis is not Basis.RUNS:
        return None
    evidence = Evidence.of(part, outcomes[part.artefact], tail=True)
    judged = _by_rule(part, evidence, confidence)
    waits = first.verdict is Verdict.NOT_RUN
    ours = our_words(part, evidence, confidence)
    return Second(Verdict.NOT_RUN if waits else judged.verdict, ours, judged.why)


def _by_rule(part: Part, evidence: Evidence, confidence: float) -> Judged:
    if part.rule != "none" and not evidence.seeds:
        return Judged(Verdict.NOT_RUN)
    if part.rule != "none" and not evidence.is_defined:
        return Judged(Verdict.NOT_COMPARABLE, f"{part.metric} is undefined in some runs")
    return _RULES[part.rule](part, evidence, confidence)


def _within(part: Part, evidence: Evidence, _: float) -> Judged:
    paper = evidence.a[0].paper if part.paper is None else PaperValue.of(part.paper)
    values = dict[int, float | None](enumerate(evidence.differences()))
    found = Finding.of(part.artefact, part.a[0], part.metric, paper, values)
    if paper is None or found.mean is None:
        return Judged(Verdict.NOT_COMPARABLE, "the paper has no figure")
    near = all(abs(value - found.mean) <= part.limit for value in paper.values)
    return Judged(Verdict.HOLDS if found.inside or near else Verdict.FAILS)


_RULES: dict[str, Callable[[Part, Evidence, float], Judged]] = {
    "greater": lambda _, own, sure: greater(own.differences(), exact=own.is_exact, confidence=sure),
    "comparable": lambda part, own, sure: comparable(
        own.differences(), part.limit, exact=own.is_exact, confidence=sure
    ),
    "every": lambda _, own, __: every(own.differences()),
    "ratio": lambda _, own, sure: greater(
        own.cross_products(), exact=own.is_exact, confidence=sure
    ),
    "below": lambda part, own, sure: below(
        own.first(), part.limit, exact=own.is_exact, confidence=sure
    ),
    "wider": lambda _, own, sure: wider(own.first(), own.best_other(), sure),
    "ordered": lambda part, own, sure: ordered(
        [(-1) ** part.falling * mean for mean in own.means()], sure
    ),
    "within": _within,
    "none": lambda part, *_: Judged(Verdict.NOT_COMPARABLE, part.why),
}
# The rules that are statistical tests, of which some succeed by chance.
_BY_CHANCE = ("greater", "comparable", "ratio", "below", "wider", "ordered")
# The rule "inside" is about all findings of whole tables, not about two sides.
RULES = (*_RULES, "inside")


def _inside(part: Part, dynamics: DynamicsResults | None) -> PartVerdict:
    if dynamics is None:
        return PartVerdict(part, Verdict.NOT_RUN, why="run 'fedraw reproduce dynamics'")
    own = [f for f in dynamics.findings if f.artefact in part.tables and f.inside is not None]
    once, seeds = distinct(own, dynamics.seeds), dynamics.seeds
    judged = inside([bool(f.inside) for f in own], [bool(f.inside) for f in once])
    ours = f"{judged.why}, {seeds_text(seeds)}"
    return PartVerdict(part, judged.verdict, f"{len(own)} figures", ours, seeds=seeds)


def paper_words(part: Part, evidence: Evidence) -> str:
    """Return the paper's values as printed; of several B, the best."""
    if part.paper is not None:
        return part.paper
    if _is_sweep(part):
        printed = [_printed(own) for own in evidence.a]
        return ", ".join(printed) if set(printed) != {NOTHING} else NOTHING
    first = _printed(evidence.a[0])
    if not evidence.b:
        return first
    best = max(evidence.b, key=lambda own: own.paper.values[0] if own.paper else -inf)
    return f"{first} against {_printed(best)}"


def our_words(part: Part, evidence: Evidence, confidence: float = CONFIDENCE) -> str:
    """Return mean ± sd of both sides, and the mean difference with its interval."""
    if not evidence.seeds:
        return NOTHING
    if not evidence.is_defined:
        return "undefined"
    digits = 3 if "Weight" in part.metric else 1
    if part.rule == "every":
        sides = (evidence.first(), evidence.best_other())
        return " against ".join(" / ".join(f"{v:.{digits}f}" for v in own) for own in sides)
    return _both_sides(part, evidence, digits, confidence) + _said(evidence)


def _both_sides(part: Part, evidence: Evidence, digits: int, confidence: float) -> str:
    if part.rule == "ratio":
        return f"{_ratio(evidence.means())} against {_ratio(evidence.other_means())}"
    if _is_sweep(part):
        return ", ".join(f"{mean:.{digits}f}" for mean in evidence.means())
    first = _spread(evidence.first(), digits)
    if not evidence.b:
        return first
    both = f"{first} against {_spread(evidence.best_other(), digits)}"
    if part.rule == "wider":
        return both
    mean, low, high = MeanInterval.of(evidence.differences(), confidence)
    between = f" ({low:+.{digits}f} to {high:+.{digits}f})" if len(evidence.seeds) > 1 else ""
    return f"{both}: {mean:+.{digits}f}{between}"


def _finding(part: Part, row: RowOutcome, tail: bool) -> Finding:
    """Return a row's metric, minus another one if the part asks for that."""
    own = _single(part, row, part.metric, tail)
    if not part.less:
        return own
    other = _single(part, row, part.less, tail)
    pairs = {seed: (value, other.values[seed]) for seed, value in own.values.items()}
    values = {s: None if x is None or y is None else x - y for s, (x, y) in pairs.items()}
    paper = _difference(own.paper, other.paper)
    return Finding.of(part.artefact, row.label, f"{part.metric} − {part.less}", paper, values)


def _single(part: Part, row: RowOutcome, metric: str, tail: bool) -> Finding:
    """Return a column of the artefact, or any other metric of its runs.

    With `tail` it is the mean of the last five evaluations; a metric of the whole run has none and
    stays as it is.
    """
    own = row.metrics.get(metric)
    paper = None if own is None else own.paper
    if tail and all(metric in record.tail for record in row.records.values()):
        return Finding.of(part.artefact, row.label, metric, paper, row.values(f"{TAIL}{metric}"))
    return own or Finding.of(part.artefact, row.label, metric, None, row.values(metric))


def _difference(one: PaperValue | None, other: PaperValue | None) -> PaperValue | None:
    if one is None or other is None:
        return None
    return PaperValue.of(f"{fmean(one.values) - fmean(other.values):.{one.decimals}f}")


def _ratio(means: Sequence[float]) -> str:
    """Format two means and their ratio.

    >>> _ratio([4.5, 0.25]), _ratio([4.5, 0.0])
    ('4.5 over 0.2 (18.0 times)', '4.5 over 0.0')
    """
    one, other = means
    return f"{one:.1f} over {other:.1f}" + (f" ({one / other:.1f} times)" if other else "")


def _cells(rows: Sequence[tuple[RowOutcome, Sequence[int]]]) -> Runs:
    return frozenset(f"{row.key}-{seed}" for row, seeds in rows for seed in seeds)


def _is_sweep(part: Part) -> bool:
    return part.rule in ("ordered", "none") and len(part.a) > 1


def _printed(own: Finding) -> str:
    doubtful = " (doubtful)" if own.not_comparable else ""
    return NOTHING if own.paper is None else own.paper.printed + doubtful


def _said(evidence: Evidence) -> str:
    if evidence.basis is Basis.COUNT:
        return ""
    if evidence.basis is Basis.MEASUREMENT:
        return ", measured elsewhere"
    return f", {seeds_text(len(evidence.seeds))}"


def _spread(values: Sequence[float], digits: int) -> str:
    mean = f"{fmean(values):.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ± {pstdev(values):.{digits}f}"
