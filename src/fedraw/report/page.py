"""One page that shows what runs came to: a single HTML file that opens offline."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from fedraw.errors import BadInput
from fedraw.experiments.compare import Group, group_runs, notes_of
from fedraw.experiments.summary import METRICS
from fedraw.experiments.toml import to_toml
from fedraw.report import page_tables
from fedraw.report.cells import grid, seeds_of
from fedraw.report.figures import learning_curves
from fedraw.report.glossary import MEANING
from fedraw.report.markup import details, section, text


def write_report(runs: Sequence[Path], out: Path, *, title: str = "fedraw", lead: str = "") -> None:
    """Write the page of all runs at or below these folders, from their event logs alone."""
    _write(out, render(group_runs(runs), title=title, lead=lead))


def _write(out: Path, content: str) -> None:
    draft = out.with_name(f"{out.name}.part")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(content, encoding="utf-8")
        draft.replace(out)
    except OSError as problem:
        draft.unlink(missing_ok=True)
        raise BadInput(f"cannot write {out}: {problem.strerror}; choose another file") from None


def write_figure(runs: Sequence[Path], out: Path) -> None:
    """Write the learning curves as an SVG of their own, on a light ground."""
    groups = group_runs(runs)
    svg = learning_curves({g.name: [run.evaluations for run in g.runs] for g in groups})
    _write(out, svg.replace(' style="', ' style="background: #fff; color: #222; ', 1))


def render(groups: Sequence[Group], *, title: str, lead: str) -> str:
    template = files("fedraw.report").joinpath("page.html").read_text(encoding="utf-8")
    parts = [_comparison(groups), _curves(groups), _recall(groups), _influence(groups)]
    return Template(template).substitute(
        title=text(title),
        lead=f'<p class="lead">{text(lead)}</p>' if lead else "",
        facts=text(_facts(groups)),
        sections="\n".join(part for part in [*parts, _specs(groups)] if part),
        footer=f"<p>{text(_provenance(groups))}</p>",
    )


def _comparison(groups: Sequence[Group]) -> str:
    rows = [group.row for group in groups]
    shown = [column.metric for column in grid(rows, METRICS)]
    terms = "".join(f"<dt>{m}</dt><dd>{text(MEANING[m])}</dd>" for m in shown)
    legend = details("What the columns mean", "", f"<dl>{terms}</dl>") if shown else ""
    notes = "".join(f'<p class="note">{text(note)}</p>' for note in notes_of(rows))
    return section("compared", "Comparison", page_tables.comparison(rows), notes, legend)


def _curves(groups: Sequence[Group]) -> str:
    svg = learning_curves({g.name: [run.evaluations for run in g.runs] for g in groups})
    if not svg:
        return ""
    # Inside HTML the namespace goes without saying, and the page names no address at all.
    inline = svg.replace(' xmlns="http://www.w3.org/2000/svg"', "", 1)
    inline = inline.replace(' xmlns:xlink="http://www.w3.org/1999/xlink"', "", 1)
    words = "Lines: mean over the seeds. Bands: from the lowest seed to the highest."
    box = f'<div class="box" role="region" tabindex="0" aria-label="Learning curves">{inline}</div>'
    figure = f"<figure>\n{box}\n<figcaption>{words}</figcaption>\n</figure>"
    return section("curves", "Over the run", figure)


def _recall(groups: Sequence[Group]) -> str:
    table = page_tables.recall(groups)
    return section("labels", "Recall of each label", table) if table else ""


def _influence(groups: Sequence[Group]) -> str:
    table = page_tables.influence(groups)
    return section("shares", "What the rare labels weigh", table) if table else ""


def _specs(groups: Sequence[Group]) -> str:
    blocks = [
        details(g.name, _seeds(g), f"<pre><code>{text(to_toml(g.spec))}</code></pre>")
        for g in groups
    ]
    words = "As the logs record them; 'fedraw run' takes such a file."
    return section("specs", "Specs", f'<p class="note">{text(words)}</p>', *blocks)


def _seeds(group: Group) -> str:
    seeds = group.row.seeds
    return f"{'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, seeds))}"


def _facts(groups: Sequence[Group]) -> str:
    """What all runs have in common, as far as they do."""
    specs = [group.spec for group in groups]
    rows = [group.row for group in groups]
    rare = page_tables.rare_labels(groups)
    methods = "1 method" if len(groups) == 1 else f"{len(groups)} methods"
    parts = [
        *_shared([spec.get("data", {}).get("name") for spec in specs], "{}"),
        *_shared([spec.get("partition", {}).get("clients") for spec in specs], "{} clients"),
        *_shared([spec["run"].get("events") for spec in specs], "{} events"),
        methods,
        seeds_of(rows),
        f"rare: {', '.join(rare)}" if rare else "no rare labels",
    ]
    return " · ".join(parts)


def _shared(values: Sequence[Any], form: str) -> list[str]:
    same = values[0] is not None and all(value == values[0] for value in values)
    return [form.format(values[0])] if same else []


def _provenance(groups: Sequence[Group]) -> str:
    """Date and machine, from the timing that lies beside a log; it may be missing."""
    timings = [timing for g in groups for run in g.runs if (timing := _timing(run.folder))]
    dates = sorted(str(t["date"])[:10] for t in timings if "date" in t)
    days = " to ".join(dict.fromkeys([dates[0], dates[-1]])) if dates else ""
    machines = dict.fromkeys(_machine(timing) for timing in timings)
    made = f"Run on {days}" if days else "Written by fedraw from event logs"
    return "; ".join([made, *machines]) + "."


def _machine(timing: Mapping[str, Any]) -> str:
    cores = timing.get("cores", "?")
    words = "1 core" if cores == 1 else f"{cores} cores"
    return f"{timing.get('machine', '?')}, {words}, Python {timing.get('python', '?')}"


def _timing(folder: Path | None) -> dict[str, Any]:
    if folder is None:
        return {}
    try:
        content = json.loads((folder / "timing.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
