"""Figures 1 and 3 again, and their like: accuracy over events, and the recall of rare labels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING

from fedraw.eventlog.status import EvaluationPoint
from fedraw.report.drawing import Drawing, legend, short, stroke
from fedraw.report.figures import PANELS, Curve, curve_of
from fedraw.report.looks import Look
from fedraw_studies.outcomes import Outcome, RowOutcome
from fedraw_studies.panels import panels, percent, styles_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def loss(outcome: Outcome) -> Iterator[Drawing]:
    """Figure 1: both curves, and the rare labels one by one."""
    rows = [row for row in outcome.rows if row.records]
    styles = styles_of(row.label for row in rows)
    recalls = {row.label: _rare_recall(row) for row in rows}

    def draw() -> Figure:
        figure, axes = panels(3, len(styles))
        _draw_courses(axes[:2], {row.label: row for row in rows}, styles)
        _draw_bars(axes[2], recalls, styles)
        legend(figure, styles, 5)
        return figure

    yield Drawing("fig1", f"{outcome.title}, scale {outcome.scale}", draw)


def courses(outcome: Outcome) -> Iterator[Drawing]:
    """As in Figure 3, one for each data set."""
    for dataset in dict.fromkeys(row.dataset for row in outcome.rows):
        rows = {row.method: row for row in outcome.rows if row.dataset == dataset and row.records}
        if not rows:
            continue
        yield Drawing(
            f"{outcome.artefact}-{dataset}",
            f"{outcome.title}, {dataset}, scale {outcome.scale}",
            partial(_drawn_courses, rows),
        )


def drifts(outcome: Outcome) -> Iterator[Drawing]:
    """One for each kind of drift: the first words of its rows."""
    for kind in dict.fromkeys(row.label.split(", ")[0] for row in outcome.rows):
        rows = {
            row.label.removeprefix(f"{kind}, "): row
            for row in outcome.rows
            if row.label.startswith(kind) and row.records
        }
        if rows:
            name = f"{outcome.artefact}-{kind.split()[-1]}"
            title = f"{outcome.title}: {kind}, scale {outcome.scale}"
            yield Drawing(name, title, partial(_drawn_courses, rows))


def _drawn_courses(rows: Mapping[str, RowOutcome]) -> Figure:
    styles = styles_of(rows)
    figure, axes = panels(2, len(styles))
    _draw_courses(axes, rows, styles)
    legend(figure, styles, 6)
    return figure


def _draw_courses(
    axes: Sequence[Axes], rows: Mapping[str, RowOutcome], styles: Mapping[str, Look]
) -> None:
    for ax, (metric, title) in zip(axes, PANELS.items(), strict=True):
        end = 1.0
        for name, row in rows.items():
            curve = _curve(row, metric)
            if curve.event:
                end = max(end, curve.event[-1])
                every = max(1, len(curve.event) // 7)
                ax.plot(
                    curve.event, curve.mean, **stroke(styles[name]), markevery=every, clip_on=False
                )
                band = ax.fill_between(curve.event, curve.low, curve.high, linewidth=0)
                band.set(color=styles[name].colour, alpha=0.12, clip_on=False, zorder=1)
        ax.set(xlabel="events", xlim=(0, end))
        ax.locator_params(axis="x", integer=True, nbins=5)
        percent(ax, title)


def _draw_bars(
    ax: Axes, recalls: Mapping[str, Mapping[str, float]], styles: Mapping[str, Look]
) -> None:
    labels = list(dict.fromkeys(label for own in recalls.values() for label in own))
    width = 0.8 / len(recalls)
    for n, (name, own) in enumerate(recalls.items()):
        places = [labels.index(label) + (n - (len(recalls) - 1) / 2) * width for label in own]
        ax.bar(places, list(own.values()), 0.9 * width, color=styles[name].colour, clip_on=False)
        for place, value in zip(places, own.values(), strict=True):
            ax.annotate(f"{value:.0f}", (place, value), (0, 2), textcoords="offset points",
                        ha="center", fontsize=8)  # fmt: skip
    ax.set_xticks(range(len(labels)), [short(label) for label in labels], parse_math=False)
    ax.set_xlabel("rare label")
    percent(ax, "Recall of each rare label (%)")


def _curve(row: RowOutcome, metric: str) -> Curve:
    names = ("GlobalAcc", "AvgRare")
    seeds = [
        [EvaluationPoint(event, dict(zip(names, values, strict=True)), {}) for event, *values in c]
        for c in row.curves.values()
    ]
    return curve_of(seeds, metric)


def _rare_recall(row: RowOutcome) -> dict[str, float]:
    """Of each rare label, the mean over the seeds."""
    labels = next(iter(row.records.values())).rare_labels
    values = {label: [own.get(label) for own in row.recall.values()] for label in labels}
    known = {label: [v for v in own if v is not None] for label, own in values.items()}
    return {label: fmean(own) for label, own in known.items() if own}
