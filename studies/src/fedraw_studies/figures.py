"""Figures: curves over the events, dots by method, and sweeps, with our and the paper's values.

The key `figure` of an artefact's file describes its figure: `kind` is "loss" (Figure 1), "curves"
(one figure for each data set or for each first word of the labels), "dots" (one panel for each data
set) or "sweep" (metrics over steps).
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from fedraw.errors import BadInput
from fedraw.eventlog.live import EvaluationPoint
from fedraw.report.drawing import (
    INK,
    Drawing,
    LineStyle,
    legend,
    line_styles,
    on_white,
    short,
    svg_of,
)
from fedraw.report.figures import PANELS, Curve, curve_of
from fedraw_studies.outcomes import Outcome, RowOutcome

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

METHODS = ("FedAvg", "q-FedAvg", "CA2FL", "FedBuff", "FedFa", "FedRAW")
OPEN = "open marks: the paper"
STEP_WIDTH = 12  # characters


class Spot(NamedTuple):
    """One row's metric: the mean, the range over the seeds, and the paper's mean."""

    mean: float
    low: float
    high: float
    paper: float | None


def study_figures(outcomes: Sequence[Outcome]) -> list[Drawing]:
    """Return the figures of all artefacts that have one and at least one finished run."""
    begun = [own for own in outcomes if any(row.records for row in own.rows)]
    return [d for own in begun if (f := own.artefact.figure) for d in _KINDS[f["kind"]](own)]


def write_figures(outcomes: Sequence[Outcome], folder: Path) -> list[Path]:
    """Write each figure as an SVG on a light background."""
    paths = []
    for drawing in study_figures(outcomes):
        path = folder / f"{drawing.name}.svg"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path.write_text(on_white(svg_of(drawing)), encoding="utf-8")
        except OSError as problem:
            raise BadInput(
                f"cannot write {path}: {problem.strerror}; choose another --out"
            ) from None
        paths.append(path)
    return paths


def _loss(outcome: Outcome) -> Iterator[Drawing]:
    """Draw both curves, and the recall of each rare label."""
    rows = [row for row in outcome.rows if row.records]
    styles = _styles_of(row.label for row in rows)
    recalls = {row.label: _rare_recall(row) for row in rows}

    def draw() -> Figure:
        figure, axes = _panels(3, len(styles))
        _draw_courses(axes[:2], {row.label: row for row in rows}, styles)
        _draw_bars(axes[2], recalls, styles)
        legend(figure, styles, 5)
        return figure

    yield Drawing(outcome.name, f"{outcome.artefact.title}, scale {outcome.scale}", draw)


def _curves(outcome: Outcome) -> Iterator[Drawing]:
    """Draw both curves, in one figure for each data set or for each first word of the labels."""
    by_dataset = (outcome.artefact.figure or {})["by"] == "dataset"
    groups: dict[str, dict[str, RowOutcome]] = {}
    for row in (row for row in outcome.rows if row.records):
        first, _, rest = row.label.partition(", ")
        group, name = (row.dataset, row.method) if by_dataset else (first, rest)
        groups.setdefault(group, {})[name] = row
    for group, rows in groups.items():
        title = f"{outcome.artefact.title}{',' if by_dataset else ':'} {group}"
        name = f"{outcome.name}-{group.split()[-1]}"
        yield Drawing(name, f"{title}, scale {outcome.scale}", partial(_drawn_courses, rows))


def _dots(outcome: Outcome) -> Iterator[Drawing]:
    """Draw AvgRare by method, one panel for each data set."""
    methods = list(dict.fromkeys(row.method for row in outcome.rows))
    by_dataset: dict[str, dict[str, Spot]] = {}
    for row in outcome.rows:
        spot = _spot(row, "AvgRare")
        if spot is not None:
            by_dataset.setdefault(row.label.split(",")[0], {})[row.method] = spot
    if by_dataset:
        title = f"AvgRare of each method and data set, scale {outcome.scale}; {OPEN}"
        yield Drawing(outcome.name, title, lambda: _drawn_dots(by_dataset, methods))


def _sweep(outcome: Outcome) -> Iterator[Drawing]:
    """Draw metrics over the steps of a sweep, one line for each method."""
    table = outcome.artefact.figure or {}
    title = f"{outcome.artefact.title}, scale {outcome.scale}; {OPEN}"
    draw = partial(_drawn_sweep, outcome, table["metrics"], table["steps"])
    yield Drawing(outcome.name, title, draw)


def _drawn_courses(rows: Mapping[str, RowOutcome]) -> Figure:
    styles = _styles_of(rows)
    figure, axes = _panels(2, len(styles))
    _draw_courses(axes, rows, styles)
    legend(figure, styles, 6)
    return figure


def _draw_courses(
    axes: Sequence[Axes], rows: Mapping[str, RowOutcome], styles: Mapping[str, LineStyle]
) -> None:
    for ax, (metric, title) in zip(axes, PANELS.items(), strict=True):
        end = 1.0
        for name, row in rows.items():
            curve = _curve(row, metric)
            if curve.event:
                end = max(end, curve.event[-1])
                every = max(1, len(curve.event) // 7)
                line = styles[name].options() | {"markevery": every}
                ax.plot(curve.event, curve.mean, **line, clip_on=False)
                band = ax.fill_between(curve.event, curve.low, curve.high, linewidth=0)
                band.set(color=styles[name].colour, alpha=0.12, clip_on=False, zorder=1)
        ax.set(xlabel="events", xlim=(0, end))
        ax.locator_params(axis="x", integer=True, nbins=5)
        _percent(ax, title)


def _draw_bars(
    ax: Axes, recalls: Mapping[str, Mapping[str, float]], styles: Mapping[str, LineStyle]
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
    _percent(ax, "Recall of each rare label (%)")


def _curve(row: RowOutcome, metric: str) -> Curve:
    names = ("GlobalAcc", "AvgRare")
    seeds = [
        [EvaluationPoint(event, dict(zip(names, values, strict=True)), {}) for event, *values in c]
        for c in (record.curve for record in row.records.values())
    ]
    return curve_of(seeds, metric)


def _rare_recall(row: RowOutcome) -> dict[str, float]:
    """Return the mean recall of each rare label over the seeds."""
    labels = next(iter(row.records.values())).rare_labels
    values = {label: [own.recall.get(label) for own in row.records.values()] for label in labels}
    known = {label: [v for v in own if v is not None] for label, own in values.items()}
    return {label: fmean(own) for label, own in known.items() if own}


def _drawn_dots(by_dataset: Mapping[str, Mapping[str, Spot]], methods: Sequence[str]) -> Figure:
    from matplotlib.figure import Figure

    size = (2.6 * len(by_dataset) + 1.4, 1.4 + 0.34 * len(methods))
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(1, len(by_dataset), sharey=True, squeeze=False)[0]
    styles = _styles_of(methods)
    for ax, (dataset, spots) in zip(axes, by_dataset.items(), strict=True):
        for method, spot in spots.items():
            _dot(ax, methods.index(method), spot, styles[method])
        ax.set(xlim=(-3, 100), ylim=(len(methods) - 0.5, -0.5), xlabel="AvgRare (%)", title=dataset)
        ax.set_yticks(range(len(methods)), list(methods))
        ax.grid(axis="x", clip_on=False)
        ax.spines["left"].set_visible(False)
        _plain(ax)
    figure.supxlabel(f"filled: ours, with the range of the seeds; {OPEN}", fontsize=9)
    return figure


def _dot(ax: Axes, place: int, spot: Spot, look: LineStyle) -> None:
    line: dict[str, Any] = {"color": look.colour, "clip_on": False}
    ax.plot([spot.low, spot.high], [place, place], linewidth=5, alpha=0.3, **line)
    ax.plot(spot.mean, place, marker=look.marker, markersize=7, linestyle="", **line)
    if spot.paper is not None:
        ax.plot(spot.paper, place, **_open_mark(look))


def _drawn_sweep(outcome: Outcome, metrics: Sequence[str], steps_title: str) -> Figure:
    steps = list(dict.fromkeys(map(_step, outcome.rows)))
    methods = list(dict.fromkeys(row.method for row in outcome.rows))
    styles = _styles_of(methods)
    figure, axes = _panels(len(metrics), len(methods))
    for ax, metric in zip(axes, metrics, strict=True):
        for method in methods:
            own = {steps.index(_step(row)): row for row in outcome.rows if row.method == method}
            ours, theirs = _pairs(own, metric)
            if ours:
                ax.plot(list(ours), list(ours.values()), **styles[method].options(), clip_on=False)
            if theirs:
                ax.plot(list(theirs), list(theirs.values()), **_open_mark(styles[method]))
        step_names = [textwrap.fill(short(step), STEP_WIDTH) for step in steps]
        ax.set_xticks(range(len(steps)), step_names, parse_math=False)
        ax.set(xlabel=steps_title, xlim=(-0.3, len(steps) - 0.7))
        _percent(ax, f"{metric} (%)")
    legend(figure, styles, 5)
    if any(row.metrics[metrics[0]].paper for row in outcome.rows):
        figure.suptitle(f"filled: ours; {OPEN}", x=0.01, ha="left", fontsize=9)
    return figure


def _pairs(
    rows: Mapping[int, RowOutcome], metric: str
) -> tuple[dict[int, float], dict[int, float]]:
    """Return our means and the paper's, by step."""
    means = {step: row.metrics[metric].mean for step, row in rows.items() if row.records}
    papers = {step: row.metrics[metric].paper for step, row in rows.items()}
    return (
        {step: mean for step, mean in means.items() if mean is not None},
        {step: fmean(paper.values) for step, paper in papers.items() if paper is not None},
    )


def _step(row: RowOutcome) -> str:
    """Return a row's label without its method."""
    return ", ".join(part for part in row.label.split(", ") if part != row.method)


def _spot(row: RowOutcome, metric: str) -> Spot | None:
    own = row.metrics[metric]
    known = [value for value in own.values.values() if value is not None]
    if not known:
        return None
    paper = None if own.paper is None else fmean(own.paper.values)
    return Spot(fmean(known), min(known), max(known), paper)


def _styles_of(names: Iterable[str]) -> dict[str, LineStyle]:
    listed = list(names)
    order = [*METHODS, *(name for name in listed if name not in METHODS)]
    if not set(METHODS) & set(listed):
        order = listed
    known = dict(zip(order, line_styles([name.lower() for name in order]), strict=True))
    return {name: known[name] for name in listed}


def _open_mark(look: LineStyle) -> dict[str, Any]:
    return {
        "marker": look.marker, "markersize": 8, "linestyle": "", "markerfacecolor": "none",
        "markeredgecolor": look.colour, "markeredgewidth": 1.4, "clip_on": False, "zorder": 5,
    }  # fmt: skip


def _panels(count: int, names: int) -> tuple[Figure, list[Axes]]:
    from matplotlib.figure import Figure

    size = (9.6 if count == 2 else 4.2 * count, 3.6 + 0.22 * -(-names // 5))
    figure = Figure(figsize=size, layout="constrained")
    return figure, list(figure.subplots(1, count, squeeze=False)[0])


def _percent(ax: Axes, title: str) -> None:
    ax.set(ylim=(0, 100), yticks=range(0, 101, 20), title=title)
    ax.grid(axis="y", clip_on=False)
    _plain(ax)


def _plain(ax: Axes) -> None:
    ax.patch.set_visible(False)
    ax.tick_params(length=0, colors=INK)


_KINDS: dict[str, Callable[[Outcome], Iterator[Drawing]]] = {
    "loss": _loss,
    "curves": _curves,
    "dots": _dots,
    "sweep": _sweep,
}
