"""All documents of a reproduction: tables, verdicts, comparisons, and the block in the docs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

from fedraw.errors import BadInput
from fedraw_studies import comparisons
from fedraw_studies.artefacts import NAMES, load_dynamics
from fedraw_studies.dynamics import DynamicsResults
from fedraw_studies.outcomes import Outcome
from fedraw_studies.rules import Verdict
from fedraw_studies.tables import document, dynamics_markdown, outcome_markdown, pipe_table
from fedraw_studies.verdicts import ClaimVerdict, PartVerdict, as_json, judge

WIDTH = 100
BEGIN, END = "<!-- verdicts -->", "<!-- /verdicts -->"
HOW_TO_READ = """\
*Ours* is mean ± standard deviation over the seeds; after the colon is the mean difference, seed by
seed, and its 95 % interval. *Holds*: the interval excludes chance. *Partly*: only the direction is
right, or only some parts of the claim hold; of one seed there is no more than a direction. The
rules and the claims are in `fedraw_studies/paper/claims.toml`, written before the results.
"""


def write_documents(outcomes: Sequence[Outcome], scale: str, out: Path) -> dict[str, Any]:
    """Write all documents that the finished runs allow, and return the content of summary.json.

    These are a table for each artefact that is begun, the training-free tables, the comparisons,
    the verdicts once anything was run, and summary.json.
    """
    out.mkdir(parents=True, exist_ok=True)
    begun = [outcome for outcome in outcomes if outcome.is_begun]
    dynamics = DynamicsResults.read(out)
    judged = judge(outcomes, dynamics)
    texts = {outcome.artefact: outcome_markdown(outcome) for outcome in begun}
    if dynamics is not None:
        texts["dynamics"] = dynamics_markdown(load_dynamics(), dynamics)
    for name in comparisons.NAMES:
        if (text := comparisons.comparison_markdown(name, outcomes)) is not None:
            texts[name] = text
    if any(row.records for outcome in outcomes for row in outcome.rows):
        texts["verdicts"] = verdicts_markdown(judged, outcomes)
    for name, text in texts.items():
        _write(out / f"{name}.md", text)
    content = document(begun, scale) | {"claims": as_json(judged)}
    _write(out / "summary.json", json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    return content


def write_dynamics(results: DynamicsResults, out: Path) -> str:
    """Write OUT/dynamics.json and OUT/dynamics.md, and return the text of the second."""
    results.write(out)
    text = dynamics_markdown(load_dynamics(), results)
    _write(out / "dynamics.md", text)
    return text


def _write(path: Path, text: str) -> None:
    draft = path.with_name(f"{path.name}.part")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)


def verdicts_markdown(judged: Sequence[ClaimVerdict], outcomes: Sequence[Outcome]) -> str:
    """Write an overview with one line for each claim, then every claim with all its values."""
    parts = ["# The paper's claims, judged\n", _reductions(outcomes), _state(judged), HOW_TO_READ]
    parts.append(_overview(judged))
    parts += [_section(own) for own in judged]
    return "\n".join(parts)


def fill_block(text: str, judged: Sequence[ClaimVerdict], outcomes: Sequence[Outcome]) -> str:
    """Replace what is between the markers of a text by all claims, with headline claims in full."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise BadInput(f"no {BEGIN} … {END} in the file; put both markers where they belong")
    parts = [_reductions(outcomes), _state(judged), _overview(judged)]
    parts += [_section(own, "###") for own in judged if own.claim.headline and own.runs[0]]
    return f"{before}{BEGIN}\n\n" + "\n".join(parts) + f"\n{END}{after}"


def write_block(path: Path, outcomes: Sequence[Outcome], out: Path) -> None:
    """Write the verdicts between the markers of a Markdown file."""
    try:
        text = path.read_text(encoding="utf-8")
        path.write_text(
            fill_block(text, judge(outcomes, DynamicsResults.read(out)), outcomes), encoding="utf-8"
        )
    except (OSError, UnicodeDecodeError) as problem:
        raise BadInput(f"cannot use {path}: {problem}; give a Markdown file") from None


def tally(judged: Sequence[dict[str, Any]]) -> str:
    """Count claims by verdict, from their JSON.

    >>> tally([{"verdict": "holds"}, {"verdict": "partly"}, {"verdict": "holds"}])
    '3 claims; holds: 2, partly: 1'
    """
    return f"{len(judged)} claims; {_counted([own['verdict'] for own in judged])}"


def _state(judged: Sequence[ClaimVerdict]) -> str:
    runs = {run: True for own in judged for part in own.parts for run in part.done}
    runs |= {run: False for own in judged for part in own.parts for run in part.missing}
    waiting = [own for own in judged if own.verdict is Verdict.NOT_RUN]
    count = f"**{tally(as_json(judged))}.**"
    if waiting:
        count += (
            f" These results are partial: of the runs that claims need {sum(runs.values())} of "
            f"{len(runs)} are finished, and a claim is judged once all of its own are."
        )
    return fill(count, WIDTH) + "\n"


def _reductions(outcomes: Sequence[Outcome]) -> str:
    """How the scale reduces the data sets of the paper."""
    by_text: dict[str, list[str]] = {}
    for outcome in (own for own in outcomes if own.artefact in NAMES):
        for title, text in outcome.reductions.items():
            titles = by_text.setdefault(text, [])
            titles += [] if title in titles else [title]
    said = "; ".join(f"{', '.join(titles)}: {text}" for text, titles in by_text.items())
    scale = outcomes[0].scale
    caution = " It shows that everything runs, and nothing about the paper." * (scale == "smoke")
    return fill(f"Scale `{scale}`. {said}.{caution}", WIDTH) + "\n"


def _overview(judged: Sequence[ClaimVerdict]) -> str:
    return _table(
        ["claim", "where", "verdict", "of its parts"],
        [[own.claim.text, own.claim.where, _bold(own), _of_parts(own)] for own in judged],
    )


def _section(own: ClaimVerdict, level: str = "##") -> str:
    lines = [[_name(part), part.paper, part.ours, _said(part)] for part in own.parts]
    head = f"{level} {_plain(own.claim.text)}: {own.verdict.value}\n"
    note = f"\n{fill(_plain(own.claim.note), WIDTH)}\n" if own.claim.note else ""
    return f"{head}\n{_table(['', 'paper', 'ours', 'verdict'], lines)}{note}"


def _bold(own: ClaimVerdict) -> str:
    if own.verdict is Verdict.NOT_RUN:
        done, needed = own.runs
        return f"not run yet ({done} of {needed} runs)" if needed else "not run yet"
    return f"**{own.verdict.value}**"


def _of_parts(own: ClaimVerdict) -> str:
    if len(own.parts) == 1:
        return own.parts[0].why or own.parts[0].ours
    return _counted([part.verdict for part in own.parts])


def _counted(verdicts: Sequence[str]) -> str:
    count = Counter(verdicts)
    return ", ".join(f"{own.value}: {count[own]}" for own in Verdict if count[own])


def _name(own: PartVerdict) -> str:
    return f"{own.part.name} (condition)" if own.part.beside else own.part.name


def _said(own: PartVerdict) -> str:
    if own.verdict is not Verdict.NOT_RUN:
        return f"{own.verdict.value}: {own.why}" if own.why else own.verdict.value
    if not own.done and not own.missing:
        return f"not run yet: {own.why}"
    so_far = "" if own.so_far is None else f"; so far {own.so_far.value}"
    return f"not run yet: {len(own.done)} of {len(own.done | own.missing)} runs{so_far}"


def _table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    return pipe_table(head, [[_plain(text) for text in line] for line in lines], padded=False)


def _plain(text: str) -> str:
    r"""Escape a text for a cell of a table.

    >>> print(_plain("a|b <b>"))
    a\|b &lt;b&gt;
    """
    one_line = " ".join(text.split())
    escaped = one_line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return escaped.replace("|", "\\|")
