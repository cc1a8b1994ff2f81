"""The page of a report: one HTML file that shows the results of runs and opens offline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import fedraw
from fedraw.eventlog.compare import Group, notes_of
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
from fedraw.report import page_tables
from fedraw.report.drawing import Drawing, on_white, short, svg_of
from fedraw.report.figures import PANELS, accuracy, accuracy_curves, drawings, is_final
from fedraw.report.page_text import (
    MEANING,
    cautions_of,
    changes_of,
    facts_of,
    gap_caption,
    inferred_of,
    lead_of,
)
from fedraw.report.report_data import ReportData, read_report_data
from fedraw.report.tables import goal_caption, grid, seeds_of

BANDS = "Lines: mean over the seeds. Bands: from the lowest seed to the highest."
BUFFER_CAPTION = f"Rare clients in the buffer when it is aggregated. {BANDS}"
WEIGHTS_CAPTION = f"The weight of a client with several slots is their sum. {BANDS}"
STALENESS_CAPTION = (
    "Mark: median. Thick line: the middle half. Thin line: from 5 to 95 %. Methods that return the"
    " model at once have the same arrivals, so their rows are the same."
)


def write_report(
    runs: Sequence[Path], out: Path, *, title: str = "fedraw", lead: str = "", command: str = ""
) -> None:
    """Write the page of all runs at or below these folders; it needs only their event logs."""
    write_page(out, render(read_report_data(runs), title=title, lead=lead, command=command))


def write_curves(data: ReportData, out: Path) -> None:
    """Write the accuracy over the run as an SVG file, if anything was evaluated."""
    drawing = accuracy(data.evaluations)
    if drawing is not None:
        write_page(out, on_white(svg_of(drawing)))


def render(data: ReportData, *, title: str, lead: str = "", command: str = "") -> str:
    """Return the page.

    Args:
        data: The runs.
        title: The heading.
        lead: The first sentence; by default, it names the method that keeps the rare labels.
        command: The command that makes this page, which the page shows.

    """
    groups = data.groups
    figures = drawings(data)
    every = f"{len(list(data.runs))} runs, with seed, state, fingerprint of the data and duration"
    runs = details("Every run", every, page_tables.provenance(data))
    numbers = details("All numbers", "", page_tables.staleness(data))

    def shown_figure(name: str, title: str, words: str, *more: str, anchor: str = "") -> str:
        """Return a section with a figure; empty if the logs have no data for it."""
        if name not in figures:
            return ""
        return section(anchor or name, title, _figure(figures[name], words), *more)

    parts = {
        "At a glance": shown_figure(
            "gap", "All labels and the rare labels", gap_caption(groups), anchor="glance"
        ),
        "Comparison": _comparison(data),
        "Over the run": _curves(data, figures),
        "Recall": _recall(data),
        "Mistakes": _mistakes(groups),
        "Influence": _influence(data),
        "Buffer": shown_figure(
            "buffer", "Rare clients in the buffer", BUFFER_CAPTION, _history_csv(data)
        ),
        "Weights": shown_figure("weights", "Weights over the run", WEIGHTS_CAPTION),
        "Staleness": shown_figure("staleness", "How stale updates are", STALENESS_CAPTION, numbers),
        "Specs": _specs(groups),
        "Runs": section("provenance", "Where the numbers come from", runs),
    }
    shown = {name: part for name, part in parts.items() if part}
    words = lead or lead_of(groups)
    changes = "".join(map(note, [*changes_of(data), *inferred_of(data)]))
    return fill(
        "fedraw.report",
        "page.html",
        title=text(title),
        lead=f'<p class="lead">{text(words)}</p>' if words else "",
        facts=text(facts_of(groups)),
        made=_made(data, command),
        sections="\n".join([_cautions(data), changes, contents(shown), *shown.values()]),
        footer=f"<p>{text(page_tables.machines(data))}</p>",
    )


def _made(data: ReportData, command: str) -> str:
    """Return the days of the runs, the fedraw version of the page, and its command."""
    days = page_tables.days_of(data)
    parts = [f"run on {days}"] if days else []
    words = text(" · ".join([*parts, f"page by fedraw {fedraw.__version__}"]))
    return words + (f" · <code>{text(command)}</code>" if command else "")


def _cautions(data: ReportData) -> str:
    items = "".join(f"<li>{text(caution)}</li>" for caution in cautions_of(data))
    return f'<ul class="cautions">{items}</ul>' if items else ""


def _comparison(data: ReportData) -> str:
    rows = [group.row for group in data.groups]
    shown = [column.metric for column in grid(rows) if column.metric in MEANING]
    meanings = [(metric, MEANING[metric]) for metric in shown]
    if any(row.reached for row in rows):
        meanings.append(("arrivals to …", f"{goal_caption(rows)}."))
    terms = "".join(f"<dt>{text(name)}</dt><dd>{text(words)}</dd>" for name, words in meanings)
    legend = details("What the columns mean", "", f"<dl>{terms}</dl>") if meanings else ""
    notes = "".join(map(note, notes_of(rows)))
    return section(
        "compared", "Comparison", page_tables.comparison(data.groups, data.last), notes, legend
    )


def _curves(data: ReportData, figures: Mapping[str, Drawing]) -> str:
    if "curves" not in figures:
        return ""
    curves = accuracy_curves(data.evaluations)
    rows = [
        [metric, name, *point]
        for metric in PANELS
        for name, curve in curves[metric].items()
        for point in zip(*curve, strict=True)
    ]
    csv = csv_text(["metric", "name", "event", "mean", "lowest", "highest"], rows)
    final = [name for name, seeds in data.evaluations.items() if is_final(seeds)]
    words = BANDS
    if final:
        words += (
            f" The model of {', '.join(final)} was final once every client had been heard: the "
            "line goes on at its last value."
        )
    figure = _figure(figures["curves"], words)
    if "hours" in figures:
        figure += _figure(figures["hours"], words)
    return section("curves", "Over the run", figure, copyable("curve-points", csv))


def _recall(data: ReportData) -> str:
    table, arrivals = page_tables.recall(data.groups, data.last), page_tables.arrivals(data.groups)
    return section("labels", "Recall of each label", table, arrivals) if table else ""


def _mistakes(groups: Sequence[Group]) -> str:
    matrices = page_tables.confusions(groups)
    if not matrices:
        return ""
    rare = page_tables.frequent_mistakes(matrices, groups)
    title = "Predictions for the rare labels" if rare else "Predictions by label"
    return section("mistakes", title, rare, page_tables.confusion_tables(matrices, groups))


def _influence(data: ReportData) -> str:
    clients = page_tables.client_influence(data)
    if not clients:
        return ""
    rare = page_tables.label_influence(data.groups)
    every = page_tables.every_label_influence(data.groups)
    folded = details("Every label", "influence over fair share", every) if every else ""
    title = "Influence of rare clients and labels"
    return section("shares", title, clients, rare, folded)


def _history_csv(data: ReportData) -> str:
    """Return the binned series of the buffer and of the weights of each seed, to copy."""
    rows = [
        [group.name, run.start.seed, *point]
        for group in data.groups
        for run, history in zip(group.runs, data.histories[group.name], strict=True)
        for point in history.points()
    ]
    head = ["name", "seed", "middle", "last_event", "presence_percent", "rare_clients"]
    return copyable("history", csv_text([*head, "largest_percent", "rare_percent"], rows))


def _figure(drawing: Drawing, words: str) -> str:
    """Return a figure with its caption: one plot, or a plot for each panel and their legend."""
    caption = f"<figcaption>{text(words)}</figcaption>"
    if not drawing.panels:
        return (
            f'<figure class="single">\n<div class="box">{_svg(drawing)}</div>\n{caption}\n</figure>'
        )
    # The rare labels come first, so that a narrow screen shows them above the other panel.
    panels = sorted(drawing.panels, key=lambda panel: "are labels" not in panel.title)
    plots = "\n".join(
        f'<div class="panel"><p>{text(panel.title)}</p>{_svg(panel)}</div>' for panel in panels
    )
    entries = "".join(
        f'<li><span data-series="{n}"{" class=strong" * style.strong}>{style.swatch()}'
        f"{text(short(name))}</span></li>"
        for n, (name, style) in enumerate(drawing.lines.items())
    )
    legend = f'<ul class="legend" aria-label="Lines, by method">{entries}</ul>'
    return f'<figure>\n<div class="box panels">\n{plots}\n{legend}\n</div>\n{caption}\n</figure>'


def _svg(drawing: Drawing) -> str:
    # HTML needs no namespaces, and the page should contain no address at all.
    inline = svg_of(drawing).replace(' xmlns="http://www.w3.org/2000/svg"', "", 1)
    return inline.replace(' xmlns:xlink="http://www.w3.org/1999/xlink"', "", 1)


def _specs(groups: Sequence[Group]) -> str:
    blocks = [
        details(g.name, _seeds(g), f'<pre tabindex="0"><code>{text(_toml(g))}</code></pre>')
        for g in groups
    ]
    words = "The specs that the logs record."
    if not any(None in g.row.seeds for g in groups):
        words += " 'fedraw run' accepts them as files."
    return section("specs", "Specs", note(words), *blocks)


def _toml(group: Group) -> str:
    """Return the spec as TOML; for a real federation, only the settings that TOML can express."""
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
