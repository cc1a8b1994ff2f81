"""An outcome as Markdown, and all of them as one JSON document."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from textwrap import fill
from typing import Any

from fedraw_studies.outcomes import Measured, Outcome, RowOutcome

WIDTH = 100
NOTHING = "–"
_MARKS = "abcdefghijklmnopqrstuvwxyz"


def markdown(outcome: Outcome) -> str:
    """Title, what the paper did, how it was reduced, and each row twice: theirs and ours."""
    reasons = _reasons(outcome)
    parts = [f"# {outcome.title}\n", fill(outcome.caption, WIDTH) + "\n", _reduction(outcome)]
    parts.append(_table(outcome, reasons))
    notes = [f"({mark}) not comparable: {why}." for why, mark in reasons.items()]
    missing = [f"{row.label}: {_seeds(row.missing)}" for row in outcome.rows if row.missing]
    if missing:
        notes.append(f"Not run yet: {'; '.join(missing)}.")
    return "\n".join([*parts, *(fill(note, WIDTH) + "\n" for note in notes)])


def document(outcomes: Sequence[Outcome], scale: str) -> dict[str, Any]:
    """Everything but the curves, which are in the cells."""
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


def write_documents(
    outcomes: Sequence[Outcome], scale: str, out: Path, beside: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """OUT/<artefact>.md of all that are begun, and OUT/summary.json with what belongs `beside`."""
    out.mkdir(parents=True, exist_ok=True)
    begun = [outcome for outcome in outcomes if outcome.is_begun]
    for outcome in begun:
        _write(out / f"{outcome.artefact}.md", markdown(outcome))
    content = document(begun, scale) | dict(beside or {})
    _write(out / "summary.json", json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    return content


def _write(path: Path, text: str) -> None:
    draft = path.with_name(f"{path.name}.part")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)


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
    """Each reason once, with the letter that stands for it."""
    found = [m.not_comparable for row in outcome.rows for m in row.metrics.values()]
    distinct = dict.fromkeys(why for why in found if why is not None)
    return dict(zip(distinct, _MARKS, strict=False))


def _reduction(outcome: Outcome) -> str:
    """How far this is from the paper's protocol."""
    if not any(row.records or row.missing for row in outcome.rows):
        return "Nothing is trained for it, at any scale.\n"
    by_text: dict[str, list[str]] = {}
    for title, text in outcome.reductions.items():
        by_text.setdefault(text, []).append(title)
    said = "; ".join(f"{', '.join(titles)}: {text}" for text, titles in by_text.items())
    return fill(f"Scale `{outcome.scale}`. {said}.", WIDTH) + "\n"


def _table(outcome: Outcome, reasons: dict[str, str]) -> str:
    digits = {metric: decimals(outcome, metric) for metric in outcome.columns}
    lines = [["", "", *outcome.columns]]
    for row in outcome.rows:
        theirs = [_theirs(row.metrics[metric], reasons) for metric in outcome.columns]
        if any(text != NOTHING for text in theirs):
            lines.append([row.label, "paper", *theirs])
        ours = [_ours(row.metrics[m], digits[m]) for m in outcome.columns]
        lines.append(["" if lines[-1][0] == row.label else row.label, "ours", *ours])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rule = ["-" * width for width in widths[:2]] + ["-" * (w - 1) + ":" for w in widths[2:]]
    return "".join(_piped(line, widths) for line in [lines[0], rule, *lines[1:]])


def _piped(line: Sequence[str], widths: Sequence[int]) -> str:
    left = [text.ljust(width) for text, width in zip(line[:2], widths, strict=False)]
    right = [text.rjust(width) for text, width in zip(line[2:], widths[2:], strict=True)]
    return f"| {' | '.join(left + right)} |\n"


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
    """As many as the paper has in this column, at least one; weights have three."""
    figures = [row.metrics[metric].paper for row in outcome.rows]
    printed = [figure.decimals for figure in figures if figure is not None]
    return max(1, *printed) if printed else 3 if "Weight" in metric else 1


def _seeds(seeds: Sequence[int]) -> str:
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"
