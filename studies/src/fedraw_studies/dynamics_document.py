"""The paper's training-free numbers beside ours, as one Markdown document."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill
from typing import NamedTuple

from fedraw_studies.dynamics import Artefact, Finding, distinct

HOW_TO_READ = """\
Nothing is trained: the arrivals, the buffer and the weights are those of a full run. *Ours* is the
mean ± standard deviation over the seeds. A figure of the paper is *inside* if it lies within our
mean ± 2 sd, or between our least and our most, up to its rounding; of several printed values, all
must. *Away* is its distance from our mean in our standard deviations. Shares are in percent,
staleness in events.
"""

# Read off 30 seeds, and too coarse to change with more; with fewer the tables speak for themselves.
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


class Line(NamedTuple):
    row: str
    metric: str
    paper: str
    ours: str
    extremes: str
    away: str
    inside: str


HEAD = Line("", "metric", "paper", "ours", "least to most", "away", "inside")
WIDTH = 100
FURTHEST = 5


def markdown(artefacts: Sequence[Artefact], found: Sequence[Finding], origin: str) -> str:
    """`origin` says by which command, when and on what the numbers were made."""
    parts = ["# Buffer dynamics: the paper's numbers and ours\n", f"{origin}\n", HOW_TO_READ]
    if min(len(finding.stat.values) for finding in found) >= WORDS_HOLD_FROM:
        parts.append(fill(IN_WORDS, WIDTH) + "\n")
    parts.append(verdict(found))
    for artefact in artefacts:
        own = [finding for finding in found if finding.artefact == artefact.name]
        parts.append(f"## {artefact.name}: {artefact.title}\n")
        parts.append(_table([_line(finding) for finding in own]))
        parts.append(fill(artefact.note, WIDTH) + "\n")
    return "\n".join(parts)


def verdict(found: Sequence[Finding]) -> str:
    """How many of the paper's figures are inside, those furthest away, and each that is not."""
    judged = [finding for finding in found if finding.inside is not None]
    outside = [finding for finding in judged if not finding.inside]
    once = distinct(found)
    lead = (
        f"**{sum(bool(f.inside) for f in once)} of the paper's {len(once)} distinct figures are "
        f"inside.** With the {len(judged) - len(once)} figures that repeat another one or follow "
        f"from the settings whatever the seed, it is {len(judged) - len(outside)} of {len(judged)}."
    )
    inside = [finding for finding in judged if finding.inside]
    furthest = sorted(inside, key=lambda finding: -abs(finding.away or 0.0))[:FURTHEST]
    parts = [fill(lead, WIDTH), ""]
    if outside:
        parts += ["Outside:", "", *map(_item, outside), ""]
    if furthest:
        parts += ["Inside, but furthest from our mean:", "", *map(_item, furthest), ""]
    return "\n".join(parts)


def _item(finding: Finding) -> str:
    line = _line(finding)
    return (
        f"- {finding.artefact}, {line.row}: {line.metric} {line.paper} in the paper; here "
        f"{line.ours}, from {line.extremes}"
    )


def _line(finding: Finding) -> Line:
    stat, paper = finding.stat, finding.paper
    inside = {True: "yes", False: "**no**", None: ""}[finding.inside]
    printed = "–" if paper is None else paper.printed
    if stat.mean is None or stat.sd is None:
        return Line(finding.row, finding.metric, printed, "undefined", "", "", inside)
    digits = _decimals(finding, stat.mean)
    ours = f"{stat.mean:.{digits}f} ± {stat.sd:.{digits}f}"
    extremes = f"{min(finding.known):.{digits}f} to {max(finding.known):.{digits}f}"
    away = "" if finding.away is None else f"{finding.away:+.1f}"
    return Line(finding.row, finding.metric, printed, ours, extremes, away, inside)


def _decimals(finding: Finding, mean: float) -> int:
    """As many as the paper has, at least one; weights have three."""
    if finding.paper is None:
        return 3 if abs(mean) <= 1 else 1
    return max(1, finding.paper.decimals)


def _table(lines: Sequence[Line]) -> str:
    widths = [max(map(len, column)) for column in zip(HEAD, *lines, strict=True)]
    rule = Line(*("-" * width for width in widths))
    return "".join(_piped(line, widths) for line in (HEAD, rule, *lines))


def _piped(line: Line, widths: Sequence[int]) -> str:
    cells = [text.ljust(width) for text, width in zip(line, widths, strict=True)]
    return f"| {' | '.join(cells)} |\n"
