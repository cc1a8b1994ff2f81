"""Claims judged by their rules: from outcomes, from the training-free figures, from counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from fedraw.eventlog.compare import Stat
from fedraw_studies.claims import (
    BENCHMARK,
    SERVER_STATE,
    Claim,
    Part,
    load_claims,
)
from fedraw_studies.dynamics import Finding
from fedraw_studies.evidence import (
    NOTHING,
    Evidence,
    Run,
    gather,
    our_words,
    paper_words,
)
from fedraw_studies.figure import Figure
from fedraw_studies.outcomes import Outcome
from fedraw_studies.rules import (
    Interval,
    Judged,
    Verdict,
    below,
    comparable,
    greater,
    inside,
    ordered,
    together,
    wider,
)

Dynamics = Mapping[str, Any]  # what dynamics.json says


@dataclass(frozen=True)
class PartVerdict:
    part: Part
    verdict: Verdict
    paper: str = NOTHING
    ours: str = NOTHING
    why: str = ""  # in addition to the verdict
    done: frozenset[Run] = frozenset()
    missing: frozenset[Run] = frozenset()
    so_far: Verdict | None = None  # of the runs that are there, while others are not
    seeds: int = 0
    difference: Interval | None = None


@dataclass(frozen=True)
class ClaimVerdict:
    claim: Claim
    parts: tuple[PartVerdict, ...]

    @property
    def verdict(self) -> Verdict:
        """A condition may turn "holds" into "partly", and rescues nothing."""
        if any(own.verdict is Verdict.NOT_RUN for own in self.parts):
            return Verdict.NOT_RUN
        verdict = together([own.verdict for own in self.parts if not own.part.beside])
        conditions = together([own.verdict for own in self.parts if own.part.beside])
        doubtful = conditions in (Verdict.PARTLY, Verdict.FAILS)
        return Verdict.PARTLY if verdict is Verdict.HOLDS and doubtful else verdict

    @property
    def runs(self) -> tuple[int, int]:
        """Those that are finished, and all that it needs."""
        done = frozenset[Run]().union(*(own.done for own in self.parts))
        missing = frozenset[Run]().union(*(own.missing for own in self.parts))
        return len(done), len(done | missing)


def judge(outcomes: Sequence[Outcome], dynamics: Dynamics | None) -> list[ClaimVerdict]:
    """All claims; what is not run yet is said to be so."""
    by_name = {outcome.artefact: outcome for outcome in outcomes}
    return [
        ClaimVerdict(claim, tuple(_judge(part, by_name, dynamics) for part in claim.parts))
        for claim in load_claims()
    ]


def as_json(judged: Sequence[ClaimVerdict]) -> list[dict[str, Any]]:
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


def _judge(part: Part, outcomes: Mapping[str, Outcome], dynamics: Dynamics | None) -> PartVerdict:
    if part.rule == "inside":
        return _inside(part, dynamics)
    if not part.artefact:
        return PartVerdict(part, Verdict.NOT_COMPARABLE, why=part.why)
    evidence = gather(part, outcomes)
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
        0 if part.artefact in (SERVER_STATE, BENCHMARK) else len(evidence.seeds),
        Interval.of(evidence.differences()) if shows else None,
    )


def _by_rule(part: Part, evidence: Evidence) -> Judged:
    if part.rule != "none" and not evidence.seeds:
        return Judged(Verdict.NOT_RUN)
    if part.rule != "none" and not evidence.is_defined:
        return Judged(Verdict.NOT_COMPARABLE, f"{part.metric} is undefined in some runs")
    return _RULES[part.rule](part, evidence)


def _exact(part: Part) -> bool:
    """No chance is in what is counted."""
    return part.artefact == SERVER_STATE


def _within(part: Part, evidence: Evidence) -> Judged:
    figure = evidence.a[0].paper if part.paper is None else Figure.of(part.paper)
    stat = Stat.of(evidence.differences())
    found = Finding(part.artefact, part.a[0], part.metric, figure, stat).inside
    if figure is None or stat.mean is None:
        return Judged(Verdict.NOT_COMPARABLE, "the paper has no figure")
    near = all(abs(value - stat.mean) <= part.limit for value in figure.values)
    return Judged(Verdict.HOLDS if found or near else Verdict.FAILS)


_RULES: dict[str, Callable[[Part, Evidence], Judged]] = {
    "greater": lambda part, own: greater(own.differences(), exact=_exact(part)),
    "comparable": lambda part, own: comparable(own.differences(), part.limit, exact=_exact(part)),
    "below": lambda part, own: below(own.first(), part.limit, exact=_exact(part)),
    "wider": lambda _, own: wider(own.first(), own.best_other()),
    "ordered": lambda part, own: ordered([(-1) ** part.falling * mean for mean in own.means()]),
    "within": _within,
    "none": lambda part, _: Judged(Verdict.NOT_COMPARABLE, part.why),
}


def _inside(part: Part, dynamics: Dynamics | None) -> PartVerdict:
    if dynamics is None:
        return PartVerdict(part, Verdict.NOT_RUN, why="fedraw reproduce dynamics makes them")
    own = [row for row in dynamics["rows"] if row["artefact"] in part.tables]
    found = [row["inside"] for row in own if row["inside"] is not None]
    judged, seeds = inside(sum(found), len(found)), dynamics["seeds"]
    ours = f"{judged.why}, {'one seed' if seeds == 1 else f'{seeds} seeds'}"
    return PartVerdict(part, judged.verdict, f"{len(found)} figures", ours, seeds=seeds)
