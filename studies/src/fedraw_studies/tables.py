"""Tables in Markdown: one writer of pipe tables, and the documents of outcomes and dynamics."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from textwrap import fill
from typing import Any

from fedraw_studies.artefacts import Artefact, Basis
from fedraw_studies.dynamics import DynamicsResults, Finding, distinct
from fedraw_studies.outcomes import Measured, Outcome, RowOutcome

WIDTH = 100
NOTHING = "–"
_MARKS = "abcdefghijklmnopqrstuvwxyz"

HOW_TO_READ_DYNAMICS = """\
Nothing is trained: the arrivals, the buffer and the weights are those of a full run. *Ours* is the
mean ± standard deviation over the seeds. A figure of the paper is *inside* if it lies within our
mean ± 2 sd, or between our least and our most, up to its rounding; of several printed values, all
must. *Away* is its distance from our mean in our standard deviations. Shares are in percent,
staleness in events.
"""

# The summary was read off 30 seeds; it is left out where there are fewer.
WORDS_HOLD_FROM = 30
IN_WORDS = (
    "In words: how often rare clients arrive and reach the buffer, how stale they are, how many "
    "aggregations there are and what a false claim weighs all come out as in the paper, whose "
    "every printed figure lies among our seeds. What one slot per client gains agrees on average "
    "(EMNIST, HAM10000, 10x, 20x), but of single seeds of the paper (2x; one of cat and dog) it is "
    "smaller than of any of ours, because there the two methods compared met different arrivals. "
    "The largest staleness at 2x is at our lower end: it is an extreme of one run, and the rare "
    "clients of that run were quicker than most draws make them. Under training times that never "
    "vary, the other common law of such simulators, one slot per client gains nothing and the "
    "largest staleness is a quarter of the paper's: its numbers need memoryless arrivals."
)
DYNAMICS_HEAD = ("", "metric", "paper", "ours", "least to most", "away", "inside")
FURTHEST = 5


def pipe_table(
    head: Sequence[str], lines: Sequence[Sequence[str]], *, left: int = 0, padded: bool = True
) -> str:
    """Write a Markdown table; the first `left` columns are aligned left, the others right.

    Without `padded`, columns are as wide as their texts and aligned left.

    >>> print(pipe_table(["", "AvgRare"], [["FedRAW", "30.2"]], left=1), end="")
    |        | AvgRare |
    | ------ | ------: |
    | FedRAW |    30.2 |
    """
    if not padded:
        return "".join(f"| {' | '.join(row)} |\n" for row in [head, ["---"] * len(head), *lines])
    widths = [max(map(len, column)) for column in zip(head, *lines, strict=True)]
    rule = ["-" * w if n < left else "-" * (w - 1) + ":" for n, w in enumerate(widths)]
    text = ""
    for row in (head, rule, *lines):
        cells = [
            cell.ljust(width) if n < left else cell.rjust(width)
            for n, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        text += f"| {' | '.join(cells)} |\n"
    return text


def outcome_markdown(outcome: Outcome) -> str:
    """Write title, caption, reduction, and each row twice: the paper's values and ours."""
    reasons = _reasons(outcome)
    parts = [f"# {outcome.title}\n", fill(outcome.caption, WIDTH) + "\n", _reduction(outcome)]
    parts.append(_table(outcome, reasons))
    notes = [f"({mark}) not comparable: {why}." for why, mark in reasons.items()]
    missing = [f"{row.label}: {_seeds(row.missing)}" for row in outcome.rows if row.missing]
    if missing:
        notes.append(f"Not run yet: {'; '.join(missing)}.")
    return "\n".join([*parts, *(fill(note, WIDTH) + "\n" for note in notes)])


def document(outcomes: Sequence[Outcome], scale: str) -> dict[str, Any]:
    """Return all outcomes for summary.json; the curves are left to the cells."""
    records = {
        f"{record.key}-{record.seed}": record
        for outcome in outcomes
        for row in outcome.rows
        for record in row.records.values()
    }
    return {
        "scale": scale,
        "fedraw": version("fedraw"),
        "cells": len(records),
        "core_hours": round(sum(r.seconds for r in records.values()) / 3600, 3),
        "notes": sorted({note for record in records.values() for note in record.notes}),
        "artefacts": [_artefact(outcome) for outcome in outcomes],
    }


def dynamics_markdown(artefacts: Sequence[Artefact], results: DynamicsResults) -> str:
    """Write the training-free values of the paper beside ours, table by table."""
    found = results.findings
    parts = ["# Buffer dynamics: the paper's numbers and ours\n", f"{results.made}\n"]
    parts.append(HOW_TO_READ_DYNAMICS)
    if results.seeds >= WORDS_HOLD_FROM:
        parts.append(fill(IN_WORDS, WIDTH) + "\n")
    parts.append(dynamics_summary(results))
    for artefact in artefacts:
        own = [finding for finding in found if finding.artefact == artefact.name]
        parts.append(f"## {artefact.name}: {artefact.title}\n")
        lines = [_finding_line(finding) for finding in own]
        parts.append(pipe_table(DYNAMICS_HEAD, lines, left=len(DYNAMICS_HEAD)))
        parts.append(fill(artefact.caption, WIDTH) + "\n")
    return "\n".join(parts)


def dynamics_summary(results: DynamicsResults) -> str:
    """Say how many of the paper's values are inside, which are not, and which are furthest away."""
    judged = [finding for finding in results.findings if finding.inside is not None]
    outside = [finding for finding in judged if not finding.inside]
    once = distinct(results.findings, results.seeds)
    lead = (
        f"**{sum(bool(f.inside) for f in once)} of the paper's {len(once)} distinct figures are "
        f"inside.** With the {len(judged) - len(once)} figures that repeat another one or follow "
        f"from the settings whatever the seed, it is {len(judged) - len(outside)} of {len(judged)}."
    )
    inside = [finding for finding in judged if finding.inside]
    furthest = sorted(inside, key=lambda finding: -abs(finding.away or 0.0))[:FURTHEST]
    parts = [fill(lead, WIDTH), ""]
    if outside:
        parts += ["Outside:", "", *map(_finding_item, outside), ""]
    if furthest:
        parts += ["Inside, but furthest from our mean:", "", *map(_finding_item, furthest), ""]
    return "\n".join(parts)


def _finding_item(finding: Finding) -> str:
    row, metric, paper, ours, extremes, *_ = _finding_line(finding)
    return (
        f"- {finding.artefact}, {row}: {metric} {paper} in the paper; here {ours}, from {extremes}"
    )


def _finding_line(finding: Finding) -> list[str]:
    paper, mean, low, high = finding.paper, finding.mean, finding.low, finding.high
    inside = {True: "yes", False: "**no**", None: ""}[finding.inside]
    printed = NOTHING if paper is None else paper.printed
    if mean is None or finding.sd is None or low is None or high is None:
        return [finding.row, finding.metric, printed, "undefined", "", "", inside]
    digits = max(1, paper.decimals) if paper is not None else 3 if abs(mean) <= 1 else 1
    ours = f"{mean:.{digits}f} ± {finding.sd:.{digits}f}"
    extremes = f"{low:.{digits}f} to {high:.{digits}f}"
    away = "" if finding.away is None else f"{finding.away:+.1f}"
    return [finding.row, finding.metric, printed, ours, extremes, away, inside]


def _artefact(outcome: Outcome) -> dict[str, Any]:
    return {
        "name": outcome.artefact,
        "title": outcome.title,
        "caption": outcome.caption,
        "reductions": dict(outcome.reductions),
        "complete": outcome.is_complete,
        "rows": [_document_row(row) for row in outcome.rows],
    }


def _document_row(row: RowOutcome) -> dict[str, Any]:
    return {
        "label": row.label,
        "dataset": row.dataset,
        "method": row.method,
        "seeds": list(row.seeds),
        "missing_seeds": list(row.missing),
        "cells": [f"{record.key}-{record.seed}" for record in row.records.values()],
        "metrics": {metric: _document_metric(m) for metric, m in row.metrics.items()},
    }


def _document_metric(measured: Measured) -> dict[str, Any]:
    paper, ours = measured.paper, measured.ours
    return {
        "paper_printed": None if paper is None else paper.printed,
        "paper": None if paper is None else list(paper.values),
        "not_comparable": measured.not_comparable,
        "mean": ours.mean,
        "sd": ours.sd,
        "values": list(ours.values),
    }


def _reasons(outcome: Outcome) -> dict[str, str]:
    """Each reason once, with the letter that refers to it."""
    found = [m.not_comparable for row in outcome.rows for m in row.metrics.values()]
    distinct = dict.fromkeys(why for why in found if why is not None)
    return dict(zip(distinct, _MARKS, strict=False))


def _reduction(outcome: Outcome) -> str:
    """How the scale reduces the paper's protocol."""
    if outcome.basis is not Basis.RUNS:
        return "Nothing is trained for it, at any scale.\n"
    by_text: dict[str, list[str]] = {}
    for title, text in outcome.reductions.items():
        by_text.setdefault(text, []).append(title)
    said = "; ".join(f"{', '.join(titles)}: {text}" for text, titles in by_text.items())
    return fill(f"Scale `{outcome.scale}`. {said}.", WIDTH) + "\n"


def _table(outcome: Outcome, reasons: dict[str, str]) -> str:
    digits = {metric: decimals(outcome, metric) for metric in outcome.columns}
    lines: list[list[str]] = []
    for row in outcome.rows:
        theirs = [_theirs(row.metrics[metric], reasons) for metric in outcome.columns]
        printed = any(text != NOTHING for text in theirs)
        if printed:
            lines.append([row.label, "paper", *theirs])
        ours = [_ours(row.metrics[m], digits[m]) for m in outcome.columns]
        lines.append(["" if printed else row.label, "ours", *ours])
    return pipe_table(["", "", *outcome.columns], lines, left=2)


def _theirs(measured: Measured, reasons: dict[str, str]) -> str:
    text = NOTHING if measured.paper is None else measured.paper.printed
    if measured.not_comparable is None:
        return text
    return f"{text} ({reasons[measured.not_comparable]})"


def _ours(measured: Measured, digits: int) -> str:
    stat, paper = measured.ours, measured.paper
    known = [value for value in stat.values if value is not None]
    if not known:
        return NOTHING
    if len(known) == 1 or (paper is not None and paper.is_by_seed):
        shown = [NOTHING if value is None else f"{value:.{digits}f}" for value in stat.values]
        return " / ".join(shown)
    if stat.mean is None or stat.sd is None:
        return f"undefined in {len(stat.values) - len(known)} of {len(stat.values)}"
    return f"{stat.mean:.{digits}f} ± {stat.sd:.{digits}f}"


def decimals(outcome: Outcome, metric: str) -> int:
    """As many decimals as the paper prints in this column, at least one; weights have three."""
    figures = [row.metrics[metric].paper for row in outcome.rows]
    printed = [figure.decimals for figure in figures if figure is not None]
    return max(1, *printed) if printed else 3 if "Weight" in metric else 1


def _seeds(seeds: Sequence[int]) -> str:
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"
