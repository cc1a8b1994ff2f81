"""All documents of a reproduction: tables, verdicts, comparisons, and the block in the docs."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from textwrap import fill
from typing import Any

from fedraw.errors import BadInput
from fedraw.storage.files import atomic_write
from fedraw_studies import comparisons
from fedraw_studies.artefacts import (
    DYNAMICS,
    NAMES,
    Artefact,
    Basis,
    Scale,
    load_dynamics,
    study_file,
    study_of,
)
from fedraw_studies.claims import ClaimVerdict, PartVerdict, as_json, judge
from fedraw_studies.dynamics import DynamicsResults, distinct
from fedraw_studies.markdown import NOTHING, WIDTH, escaped_table, pipe_table, plain_text
from fedraw_studies.outcomes import Finding, Outcome, RowOutcome
from fedraw_studies.rules import Verdict

BEGIN, END = "<!-- verdicts -->", "<!-- /verdicts -->"
_INCLUDE = re.compile(r"(<!-- include (\S+) (\S+)(?: (\d+))? -->).*?(<!-- /include -->)", re.DOTALL)
ALL = "all"  # in place of a scale, in the marker of a document about all scales
UNFINISHED = "**Unfinished:"
DYNAMICS_HEAD = ("", "metric", "paper", "ours", "least to most", "away", "inside")
FURTHEST = 5
_MARKS = "abcdefghijklmnopqrstuvwxyz"


def write_documents(outcomes: Sequence[Outcome], scale: str, out: Path) -> dict[str, Any]:
    """Write all documents that the finished runs allow, and return the content of summary.json.

    These are a document for each study with a section for each artefact with results and for each
    comparison, the training-free tables, the verdicts if there is any finished run, and
    summary.json.
    """
    begun = [outcome for outcome in outcomes if outcome.is_begun]
    dynamics = DynamicsResults.read(out)
    judged = judge(outcomes, dynamics, strict=_is_strict(outcomes))
    sections = {outcome.name: outcome_markdown(outcome) for outcome in begun}
    for name in comparisons.NAMES:
        if (text := comparisons.comparison_markdown(name, outcomes)) is not None:
            sections[name] = text
    texts: dict[str, str] = {}
    for name, text in sections.items():
        before = texts.get(study_of(name))
        own = f"<!-- {name} -->\n{text}"
        texts[study_of(name)] = own if before is None else f"{before}\n{own}"
    if dynamics is not None:
        texts["dynamics"] = dynamics_markdown(load_dynamics(), dynamics)
    if any(row.records for outcome in outcomes for row in outcome.rows):
        texts["verdicts"] = verdicts_markdown(judged, outcomes)
    content = document(begun, scale) | {"claims": as_json(judged)}
    out.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        atomic_write(out / f"{name}.md", text.encode())
    summary = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    atomic_write(out / "summary.json", summary.encode())
    return content


def section_of(name: str, out: Path) -> str | None:
    """Return the section of an artefact or comparison in the document of its study, if written."""
    path = out / f"{study_of(name)}.md"
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    found = re.search(rf"<!-- {name} -->\n(.*?)(?=\n<!-- |\Z)", text, re.DOTALL)
    return None if found is None else found[1]


def write_dynamics(results: DynamicsResults, out: Path) -> str:
    """Write OUT/dynamics.json and OUT/dynamics.md, and return the text of the second."""
    results.write(out)
    text = dynamics_markdown(load_dynamics(), results)
    atomic_write(out / "dynamics.md", text.encode())
    return text


def refuse_document(path: Path) -> None:
    """Refuse a file without markers for tables or verdicts."""
    text = _text(path)
    if not _INCLUDE.search(text) and (BEGIN not in text or END not in text):
        raise BadInput(
            f"{path} has no markers; put {BEGIN} and {END} where the verdicts belong, or "
            "<!-- include SCALE TABLE --> and <!-- /include --> where a table belongs"
        )


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise BadInput(f"cannot use {path}: {problem}; give a Markdown file") from None


def write_block(path: Path, outcomes: Sequence[Outcome], out: Path) -> bool:
    """Write tables and verdicts between the markers of a Markdown file.

    Return False if a marker asks for a document about all scales and there is none.
    """
    refuse_document(path)
    try:
        text = fill_includes(_text(path), outcomes[0].scale, out)
        if BEGIN in text:
            judged = judge(outcomes, DynamicsResults.read(out), strict=_is_strict(outcomes))
            text = fill_block(text, judged, outcomes)
        atomic_write(path, text.encode())
    except OSError as problem:
        raise BadInput(f"cannot use {path}: {problem}; give a Markdown file") from None
    asked = [found[3] for found in _INCLUDE.finditer(text) if found[2] == ALL]
    return all((out.parent / f"{name}.md").exists() for name in asked)


def verdicts_markdown(judged: Sequence[ClaimVerdict], outcomes: Sequence[Outcome]) -> str:
    """Write an overview with one line per claim, then every claim with all its values."""
    parts = ["# The paper's claims, judged\n", _reductions(outcomes), _state(judged)]
    parts += [study_file("claims")["how_to_read"]]
    if _is_strict(outcomes):
        parts += [study_file("claims")["how_strictly"]]
    parts += [_overview(judged)]
    parts += [_section(own) for own in judged]
    return "\n".join(parts)


def fill_block(text: str, judged: Sequence[ClaimVerdict], outcomes: Sequence[Outcome]) -> str:
    """Replace the text between the markers by all claims, with headline claims in full."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise BadInput(f"no {BEGIN} … {END} in the text; put both markers where they belong")
    parts = [_reductions(outcomes), _state(judged), _overview(judged)]
    parts += [_section(own, "###") for own in judged if own.claim.headline and own.runs[0]]
    return f"{before}{BEGIN}\n\n" + "\n".join(parts) + f"\n{END}{after}"


def fill_includes(text: str, scale: str, out: Path) -> str:
    """Insert the tables of generated documents between the markers of a text.

    A marker names a scale, an artefact, a comparison or a document and, if not all of its tables
    are wanted, how many: `<!-- include level levels 1 -->`. It ends with `<!-- /include -->`. Only
    the markers of the given scale are filled, and those of the scale "all", whose documents are
    beside the folders of the scales, if they exist.
    """

    def filled(found: re.Match[str]) -> str:
        begin, own, name, count, end = found.groups()
        if own not in (scale, ALL):
            return found.group(0)
        file = (out.parent if own == ALL else out) / f"{name}.md"
        text = section_of(name, out)
        if text is None and file.exists():
            text = file.read_text(encoding="utf-8")
        if text is None and own == ALL:
            return found.group(0)
        if text is None:
            return "\n\n".join([begin, "*Not run yet.*", end])
        tables = _tables(text.splitlines())[: None if count is None else int(count)]
        return "\n\n".join([begin, *tables, end])

    return _INCLUDE.sub(filled, text)


def _tables(lines: Sequence[str]) -> list[str]:
    """Return the tables of a document, each after its heading and its note about missing runs."""
    found, heading = list[str](), ""
    for before, line in zip(["", *lines], lines, strict=False):
        if line.startswith("## "):
            heading = f"*{line.removeprefix('## ')}*\n\n"
        elif line.startswith(UNFINISHED):
            heading += f"{line}\n\n"
        elif line.startswith("|") and before.startswith("|"):
            found[-1] += f"\n{line}"
        elif line.startswith("|"):
            found.append(heading + line)
            heading = ""
    return found


def tally(judged: Sequence[dict[str, Any]]) -> str:
    """Count claims by verdict, from their JSON.

    >>> tally([{"verdict": "holds"}, {"verdict": "partly"}, {"verdict": "holds"}])
    '3 claims; holds: 2, partly: 1'
    """
    return f"{len(judged)} claims; {counted([own['verdict'] for own in judged])}"


def _state(judged: Sequence[ClaimVerdict]) -> str:
    runs = {run: True for own in judged for part in own.parts for run in part.done}
    runs |= {run: False for own in judged for part in own.parts for run in part.missing}
    waiting = [own for own in judged if own.verdict is Verdict.NOT_RUN]
    count = f"**{tally(as_json(judged))}.**"
    if waiting:
        parts = [part.verdict.value for own in judged for part in own.parts]
        count += (
            f" These results are partial: {sum(runs.values())} of the {len(runs)} runs that the "
            "claims need are finished. A part of a claim, such as one data set, is judged once its "
            f"runs are finished, and a claim once all parts are. {len(parts)} parts; "
            f"{counted(parts)}."
        )
    return fill(count, WIDTH) + "\n"


def _reductions(outcomes: Sequence[Outcome]) -> str:
    """Describe how the scale reduces the data sets of the paper."""
    said, scale = _grouped([own for own in outcomes if own.name in NAMES]), outcomes[0].scale
    caution = " It shows that everything runs, and nothing about the paper." * (scale == "smoke")
    return fill(f"Scale `{scale}`. {said}.{caution}", WIDTH) + "\n"


def _is_strict(outcomes: Sequence[Outcome]) -> bool:
    return bool(outcomes) and Scale.named(outcomes[0].scale).strict


def _overview(judged: Sequence[ClaimVerdict]) -> str:
    twice = any(own.second is not None for own in judged)
    head = ["claim", "where", "verdict", *["verdict, last five"] * twice, "parts"]
    return escaped_table(
        head,
        [
            [own.claim.text, own.claim.where, _bold(own), *[_second(own)] * twice, _of_parts(own)]
            for own in judged
        ],
    )


def _second(own: ClaimVerdict) -> str:
    return NOTHING if own.second is None else own.second.value


def _section(own: ClaimVerdict, level: str = "##") -> str:
    twice = own.second is not None
    lines = [
        [_name(part), part.paper, part.ours, _said(part), *_last_five(part) * twice]
        for part in own.parts
    ]
    columns = ["", "paper", "ours", "verdict", *["ours, last five", "verdict, last five"] * twice]
    head = f"{level} {plain_text(own.claim.text)}: {own.verdict.value}\n"
    note = f"\n{fill(plain_text(own.claim.note), WIDTH)}\n" if own.claim.note else ""
    return f"{head}\n{escaped_table(columns, lines)}{note}"


def _last_five(part: PartVerdict) -> list[str]:
    own = part.second
    if own is None:
        return [NOTHING, NOTHING]
    return [own.ours, f"{own.verdict.value}: {own.why}" if own.why else own.verdict.value]


def _bold(own: ClaimVerdict) -> str:
    if own.verdict is Verdict.NOT_RUN:
        done, needed = own.runs
        return f"not run yet ({done} of {needed} runs)" if needed else "not run yet"
    return f"**{own.verdict.value}**"


def _of_parts(own: ClaimVerdict) -> str:
    if len(own.parts) == 1:
        return own.parts[0].why or own.parts[0].ours
    return counted([part.verdict for part in own.parts])


def counted(verdicts: Sequence[str]) -> str:
    """Count verdicts, in the order of `Verdict`.

    >>> counted(["partly", "holds", "partly"])
    'holds: 1, partly: 2'
    """
    count = Counter(verdicts)
    return ", ".join(f"{own.value}: {count[own]}" for own in Verdict if count[own])


def _name(own: PartVerdict) -> str:
    return f"{own.part.name} (condition)" if own.part.condition else own.part.name


def _said(own: PartVerdict) -> str:
    if own.verdict is not Verdict.NOT_RUN:
        return f"{own.verdict.value}: {own.why}" if own.why else own.verdict.value
    if not own.done and not own.missing:
        return f"not run yet: {own.why}"
    so_far = "" if own.so_far is None else f"; so far {own.so_far.value}"
    return f"not run yet: {len(own.done)} of {len(own.done | own.missing)} runs{so_far}"


def outcome_markdown(outcome: Outcome) -> str:
    """Write title, caption, reduction, and each row twice: the paper's values and ours."""
    own, reasons = outcome.artefact, _reasons(outcome)
    parts = [f"# {own.title}\n", fill(own.caption, WIDTH) + "\n", _reduction(outcome)]
    if not outcome.is_complete:
        done, needed = outcome.runs
        parts.append(f"{UNFINISHED} {done} of {needed} runs.**\n")
    parts.append(_outcome_table(outcome, reasons))
    notes = [f"({mark}) not comparable: {why}." for why, mark in reasons.items()]
    missing = [
        f"{row.label}: seed{'s' * (len(row.missing) > 1)} {', '.join(map(str, row.missing))}"
        for row in outcome.rows
        if row.missing
    ]
    if missing:
        notes.append(f"Not run yet: {'; '.join(missing)}.")
    return "\n".join([*parts, *(fill(note, WIDTH) + "\n" for note in notes)])


def document(outcomes: Sequence[Outcome], scale: str) -> dict[str, Any]:
    """Return all outcomes for summary.json, without the curves, which are in the cells."""
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
        "artefacts": [_outcome_json(outcome) for outcome in outcomes],
    }


def dynamics_markdown(artefacts: Sequence[Artefact], results: DynamicsResults) -> str:
    """Write the training-free values of the paper next to ours, table by table."""
    file = study_file(DYNAMICS)
    parts = ["# Buffer dynamics: the paper's numbers and ours\n", f"{results.made}\n"]
    parts.append(file["how_to_read"])
    if results.seeds >= file["in_words_from_seeds"]:
        parts.append(fill(file["in_words"], WIDTH) + "\n")
    parts.append(dynamics_summary(results))
    for artefact in artefacts:
        parts.append(f"## {artefact.name}: {artefact.title}\n")
        lines = [_finding_line(own) for own in results.findings if own.artefact == artefact.name]
        parts.append(pipe_table(DYNAMICS_HEAD, lines, left=len(DYNAMICS_HEAD)))
        parts.append(fill(artefact.caption, WIDTH) + "\n")
    return "\n".join(parts)


def dynamics_summary(results: DynamicsResults) -> str:
    """Summarise which of the paper's values are inside, outside, and furthest from our mean."""
    judged = [finding for finding in results.findings if finding.inside is not None]
    outside = [finding for finding in judged if not finding.inside]
    once = distinct(results.findings, results.seeds)
    lead = (
        f"**{sum(bool(f.inside) for f in once)} of the paper's {len(once)} distinct figures are "
        f"inside.** {len(judged) - len(once)} more figures repeat another one or are the same for "
        f"every seed. With them, {len(judged) - len(outside)} of {len(judged)} are inside."
    )
    inside = [finding for finding in judged if finding.inside]
    furthest = sorted(inside, key=lambda finding: -abs(finding.away or 0.0))[:FURTHEST]
    parts = [fill(lead, WIDTH), ""]
    if outside:
        parts += ["These figures are outside:", "", *map(_finding_item, outside), ""]
    if furthest:
        parts += [
            "These figures are inside, but furthest from our mean:",
            "",
            *map(_finding_item, furthest),
            "",
        ]
    return "\n".join(parts)


def _finding_item(finding: Finding) -> str:
    row, metric, paper, ours, extremes, *_ = _finding_line(finding)
    where = f"{finding.artefact}, {row}"
    return f"- {where}: {metric} is {paper} in the paper and {ours} here, from {extremes}"


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


def _outcome_json(outcome: Outcome) -> dict[str, Any]:
    own = outcome.artefact
    return {
        "name": own.name,
        "title": own.title,
        "caption": own.caption,
        "reductions": own.reductions,
        "complete": outcome.is_complete,
        "runs": list(outcome.runs),
        "rows": [_row_json(row) for row in outcome.rows],
    }


def _row_json(row: RowOutcome) -> dict[str, Any]:
    return {
        "label": row.label,
        "dataset": row.dataset,
        "method": row.method,
        "seeds": list(row.seeds),
        "missing_seeds": list(row.missing),
        "cells": [f"{row.key}-{seed}" for seed in row.records],
        "metrics": {
            metric: {
                "paper_printed": None if own.paper is None else own.paper.printed,
                "paper": None if own.paper is None else list(own.paper.values),
                "not_comparable": own.not_comparable,
                "mean": own.mean,
                "sd": own.sd,
                "values": list(own.values.values()),
            }
            for metric, own in row.metrics.items()
        },
    }


def _reasons(outcome: Outcome) -> dict[str, str]:
    """Return each reason once, with the letter that refers to it."""
    found = [m.not_comparable for row in outcome.rows for m in row.metrics.values()]
    distinct = dict.fromkeys(why for why in found if why is not None)
    return dict(zip(distinct, _MARKS, strict=False))


def _reduction(outcome: Outcome) -> str:
    """Describe how the scale reduces the paper's protocol."""
    if outcome.artefact.basis is not Basis.RUNS:
        return "These values need no training at any scale.\n"
    return fill(f"Scale `{outcome.scale}`. {_grouped([outcome])}.", WIDTH) + "\n"


def _grouped(outcomes: Sequence[Outcome]) -> str:
    """List the reductions of the data sets; data sets with the same text share an entry."""
    by_text: dict[str, dict[str, None]] = {}
    for outcome in outcomes:
        for title, text in outcome.artefact.reductions.items():
            by_text.setdefault(text, {})[title] = None
    return "; ".join(f"{', '.join(titles)}: {text}" for text, titles in by_text.items())


def _outcome_table(outcome: Outcome, reasons: Mapping[str, str]) -> str:
    columns = outcome.artefact.columns
    lines: list[list[str]] = []
    for row in outcome.rows:
        theirs = [_theirs(row.metrics[metric], reasons) for metric in columns]
        printed = any(text != NOTHING for text in theirs)
        if printed:
            lines.append([row.label, "paper", *theirs])
        ours = [_ours(row.metrics[m], decimals(outcome, m)) for m in columns]
        lines.append(["" if printed else row.label, "ours", *ours])
    return pipe_table(["", "", *columns], lines, left=2)


def _theirs(own: Finding, reasons: Mapping[str, str]) -> str:
    text = NOTHING if own.paper is None else own.paper.printed
    return text if own.not_comparable is None else f"{text} ({reasons[own.not_comparable]})"


def _ours(own: Finding, digits: int) -> str:
    values = list(own.values.values())
    known = [value for value in values if value is not None]
    if not known:
        return NOTHING
    if len(known) == 1 or (own.paper is not None and own.paper.is_by_seed):
        return " / ".join(NOTHING if v is None else f"{v:.{digits}f}" for v in values)
    if own.mean is None or own.sd is None:
        return f"undefined in {len(values) - len(known)} of {len(values)}"
    return f"{own.mean:.{digits}f} ± {own.sd:.{digits}f}"


def decimals(outcome: Outcome, metric: str) -> int:
    """Return the number of decimals of a column: the paper's, or 3 for weights, otherwise 1."""
    figures = [row.metrics[metric].paper for row in outcome.rows]
    printed = [figure.decimals for figure in figures if figure is not None]
    return max(1, *printed) if printed else 3 if "Weight" in metric else 1
