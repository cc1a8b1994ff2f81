"""One page that shows what runs came to: a single HTML file that opens offline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from fedraw.eventlog.compare import Group, notes_of
from fedraw.eventlog.summary import METRICS
from fedraw.experiment.spec import to_toml
from fedraw.pages.html import (
    contents,
    copyable,
    csv_text,
    details,
    fill,
    note,
    section,
    text,
    write_page,
)
from fedraw.report import page_confusion, page_tables, page_weights
from fedraw.report.all_figures import drawings
from fedraw.report.cells import grid, seeds_of
from fedraw.report.drawing import Drawing, on_white, svg_of
from fedraw.report.figures import PANELS, accuracy_curves, learning_curves
from fedraw.report.glossary import MEANING
from fedraw.report.material import Material, read_material
from fedraw.report.page_words import cautions_of, changes_of, facts_of, inferred_of, lead_of
from fedraw.report.provenance import machines, provenance

BANDS = "Lines: mean over the seeds. Bands: from the lowest seed to the highest."


def write_report(runs: Sequence[Path], out: Path, *, title: str = "fedraw", lead: str = "") -> None:
    """Write the page of all runs at or below these folders, from their event logs alone."""
    write_page(out, render(read_material(runs), title=title, lead=lead))


def write_figure(runs: Sequence[Path], out: Path) -> None:
    """Write the learning curves as an SVG of their own, on a light ground."""
    groups = read_material(runs).groups
    svg = learning_curves({g.name: [run.evaluations for run in g.runs] for g in groups})
    write_page(out, on_white(svg))


def render(material: Material, *, title: str, lead: str = "") -> str:
    """The page; without a lead of its own it says who keeps the rare labels."""
    groups = material.groups
    figures = drawings(material)
    parts = {
        "At a glance": _glance(figures),
        "Comparison": _comparison(groups),
        "Over the run": _curves(groups, figures),
        "Recall": _recall(groups),
        "Mistakes": _mistakes(groups),
        "Influence": _influence(material),
        "Buffer": _buffer(material, figures),
        "Weights": _weights(material, figures),
        "Staleness": _staleness(material, figures),
        "Specs": _specs(groups),
        "Runs": section("provenance", "Where the numbers come from", provenance(material)),
    }
    shown = {name: part for name, part in parts.items() if part}
    words = lead or lead_of(groups)
    return fill(
        "fedraw.report",
        "page.html",
        title=text(title),
        lead=f'<p class="lead">{text(words)}</p>' if words else "",
        facts=text(facts_of(groups)),
        sections="\n".join(
            [_cautions(material), _changes(material), contents(shown), *shown.values()]
        ),
        footer=f"<p>{text(machines(material))}</p>",
    )


def _cautions(material: Material) -> str:
    items = "".join(f"<li>{text(caution)}</li>" for caution in cautions_of(material))
    return f'<ul class="cautions">{items}</ul>' if items else ""


def _changes(material: Material) -> str:
    return "".join(map(note, [*changes_of(material), *inferred_of(material)]))


def _glance(figures: Mapping[str, Drawing]) -> str:
    if "gap" not in figures:
        return ""
    words = (
        "A long line is a silent failure: accuracy on all labels looks fine while the rare ones are"
        " lost. Marks: mean over the seeds; shades: from the lowest seed to the highest."
    )
    title = "All labels, and the rare ones"
    return section("glance", title, _figure(figures["gap"], words))


def _comparison(groups: Sequence[Group]) -> str:
    rows = [group.row for group in groups]
    shown = [column.metric for column in grid(rows, METRICS)]
    terms = "".join(f"<dt>{m}</dt><dd>{text(MEANING[m])}</dd>" for m in shown)
    legend = details("What the columns mean", "", f"<dl>{terms}</dl>") if shown else ""
    notes = "".join(map(note, notes_of(rows)))
    return section("compared", "Comparison", page_tables.comparison(groups), notes, legend)


def _curves(groups: Sequence[Group], figures: Mapping[str, Drawing]) -> str:
    if "curves" not in figures:
        return ""
    curves = accuracy_curves({g.name: [run.evaluations for run in g.runs] for g in groups})
    rows = [
        [metric, name, *point]
        for metric in PANELS
        for name, curve in curves[metric].items()
        for point in zip(*curve, strict=True)
    ]
    csv = csv_text(["metric", "name", "event", "mean", "lowest", "highest"], rows)
    figure = _figure(figures["curves"], BANDS)
    return section("curves", "Over the run", figure, copyable("curve-points", csv))


def _recall(groups: Sequence[Group]) -> str:
    table = page_tables.recall(groups)
    return section("labels", "Recall of each label", table) if table else ""


def _mistakes(groups: Sequence[Group]) -> str:
    matrices = page_confusion.confusions(groups)
    if not matrices:
        return ""
    rare = page_confusion.taken_for(matrices, groups)
    title = "What the rare labels are taken for" if rare else "What labels are taken for"
    return section("mistakes", title, rare, page_confusion.whole(matrices, groups))


def _influence(material: Material) -> str:
    clients = page_weights.client_influence(material)
    if not clients:
        return ""
    rare = page_weights.label_influence(material.groups)
    every = page_weights.every_label_influence(material.groups)
    folded = details("Every label", "influence over fair share", every) if every else ""
    title = "What rare clients and labels weigh"
    return section("shares", title, clients, rare, folded)


def _buffer(material: Material, figures: Mapping[str, Drawing]) -> str:
    if "buffer" not in figures:
        return ""
    words = f"Who is in the buffer when it is aggregated. {BANDS}"
    figure = _figure(figures["buffer"], words)
    return section("buffer", "Rare clients in the buffer", figure, _course(material))


def _weights(material: Material, figures: Mapping[str, Drawing]) -> str:
    if "weights" not in figures:
        return ""
    words = f"A client with several slots weighs what they weigh together. {BANDS}"
    return section("weights", "Weights over the run", _figure(figures["weights"], words))


def _staleness(material: Material, figures: Mapping[str, Drawing]) -> str:
    if "staleness" not in figures:
        return ""
    words = (
        "Mark: median. Thick: the middle half. Thin: from 5 to 95 %. Methods that hand the model"
        " back at once meet the same arrivals, so that their rows are alike."
    )
    figure = _figure(figures["staleness"], words)
    table = details("All numbers", "", page_tables.staleness(material))
    return section("staleness", "How stale updates are", figure, table)


def _course(material: Material) -> str:
    """The binned series of the buffer and of the weights, each seed for itself."""
    rows = [
        [group.name, run.start.seed, *point]
        for group in material.groups
        for run, course in zip(group.runs, material.courses[group.name], strict=True)
        for point in course.points()
    ]
    head = ["name", "seed", "middle", "last_event", "presence_percent", "rare_clients"]
    return copyable("course", csv_text([*head, "largest_percent", "rare_percent"], rows))


def _figure(drawing: Drawing, words: str) -> str:
    # Inside HTML the namespace goes without saying, and the page names no address at all.
    inline = svg_of(drawing).replace(' xmlns="http://www.w3.org/2000/svg"', "", 1)
    inline = inline.replace(' xmlns:xlink="http://www.w3.org/1999/xlink"', "", 1)
    kind = "wide" if drawing.wide else "single"
    box = (
        f'<div class="box {kind}" role="region" tabindex="0" aria-label="{text(drawing.title)}">'
        f"{inline}</div>"
    )
    return f"<figure>\n{box}\n<figcaption>{text(words)}</figcaption>\n</figure>"


def _specs(groups: Sequence[Group]) -> str:
    blocks = [
        details(g.name, _seeds(g), f'<pre tabindex="0"><code>{text(_toml(g))}</code></pre>')
        for g in groups
    ]
    words = "As the logs record them; 'fedraw run' takes such a file."
    if any(None in g.row.seeds for g in groups):
        words = "As the logs record them."
    return section("specs", "Specs", note(words), *blocks)


def _toml(group: Group) -> str:
    """Of a real federation, only what TOML can say: no None, no layout of a model."""
    if None not in group.row.seeds:
        return to_toml(group.spec)
    tables = {name: table for name, table in group.spec.items() if isinstance(table, Mapping)}
    return to_toml(
        {
            name: {k: v for k, v in table.items() if v is not None and not isinstance(v, Mapping)}
            for name, table in tables.items()
        }
    )


def _seeds(group: Group) -> str:
    seeds = group.row.seeds
    if None in seeds:
        return seeds_of([group.row])
    return f"{'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, seeds))}"
