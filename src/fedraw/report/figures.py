"""The figures of a report: lines over the events of a run, and comparisons of methods.

A figure with several panels is one file for a paper, and one plot for each panel on the page.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import log10
from operator import attrgetter
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from fedraw.eventlog.compare import Stat
from fedraw.eventlog.live import EvaluationPoint
from fedraw.eventlog.records import EvaluationRecord
from fedraw.report.drawing import (
    INK,
    METHOD_COLOURS,
    SERIES,
    Drawing,
    LineStyle,
    legend,
    line_styles,
    method_of,
    short,
    write_drawing,
)
from fedraw.report.formatting import number
from fedraw.report.report_data import (
    HistoryPoint,
    ReportData,
    RunHistory,
    Spread,
    rare_labels,
    recall_means,
    share_of,
    spreads,
)
from fedraw.report.tables import stat_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANELS = {"GlobalAcc": "All labels (GlobalAcc, %)", "AvgRare": "Rare labels (AvgRare, %)"}

AnyEvaluation = EvaluationRecord | EvaluationPoint
Evaluations = Sequence[Sequence[AnyEvaluation]]  # one sequence for each seed
MAX_POINTS = 120  # the largest number of points of a line
COMMON: dict[str, Any] = {"color": METHOD_COLOURS["fedfa"], "marker": "o"}
RARE: dict[str, Any] = {"color": METHOD_COLOURS["fedraw"], "marker": "D"}
DECADES = (0, 1, 3, 10, 30, 100, 300, 1000, 3000, 10_000, 30_000, 100_000)
# Inches: the size of one panel on the page.
PANEL_SIZE = (4.5, 3.1)
# Inches: the width of a figure with a row per method, the height of a row, and the margins.
WIDTH, ROW_HEIGHT, MARGINS = 4.4, 0.3, 0.9
# Inches: the width and height of a cell of the recall map, and the margins.
MAP_COLUMN, MAP_ROW, MAP_MARGINS = 0.62, 0.22, 1.6
# The largest number of rows for which a recall map has numbers in its cells.
MAX_NUMBERED_ROWS = 26
MAP_COLOURS = "cividis"  # even in lightness, and the same for colour-blind readers


def drawings(data: ReportData) -> dict[str, Drawing]:
    """Return the figures of the page by name; a figure without data is left out."""
    every = (
        gap(data),
        accuracy(data.evaluations),
        accuracy_over_hours(data.evaluations),
        occupancy(data),
        weights(data),
        staleness(data),
    )
    return {drawing.name: drawing for drawing in every if drawing is not None}


def write_figures(data: ReportData, folder: Path) -> list[Path]:
    """Write each figure of the page, and a heat map of recall, as SVG and as PDF."""
    every = [*drawings(data).values(), recall_map(data)]
    return [file for one in every if one is not None for file in write_drawing(one, folder)]


class Curve(NamedTuple):
    """A line with a band: the mean over the seeds, the lowest seed and the highest."""

    event: list[float]
    mean: list[float]
    low: list[float]
    high: list[float]

    def add(self, event: float, values: Sequence[float]) -> None:
        """Append a point, given the value of each seed."""
        self.event.append(event)
        self.mean.append(fmean(values))
        self.low.append(min(values))
        self.high.append(max(values))

    def hold(self, event: float) -> None:
        """Draw the last value on to an event."""
        if event > self.event[-1]:
            self.event.append(event)
            for own in (self.mean, self.low, self.high):
                own.append(own[-1])


@dataclass(frozen=True)
class Panel:
    """One pair of axes and its lines, by method."""

    title: str
    curves: Mapping[str, Curve]
    top: float | None = 100.0  # the end of the vertical axis; None: set by the largest value
    mark: float | None = None  # the value of a dotted horizontal line
    end: float = 1.0  # the end of the horizontal axis
    axis: str = "events"  # the unit of the horizontal axis


def accuracy(groups: Mapping[str, Evaluations]) -> Drawing | None:
    """Draw GlobalAcc and AvgRare, with one line per group; None if nothing was evaluated.

    `groups` maps a name to the evaluations of each of its seeds.
    """
    return _draw_accuracy("curves", groups, "events", attrgetter("event"))


def accuracy_over_hours(
    groups: Mapping[str, Sequence[Sequence[EvaluationRecord]]],
) -> Drawing | None:
    """Draw the accuracy over virtual hours; None unless all runs have costs."""
    runs = [seed for seeds in groups.values() for seed in seeds]
    if not all(seed and seed[-1].costs is not None for seed in runs):
        return None
    return _draw_accuracy("hours", groups, "virtual hours", lambda e: e.time / 3600)


def _draw_accuracy(
    name: str, groups: Mapping[str, Evaluations], axis: str, at: Callable[[Any], float]
) -> Drawing | None:
    curves = accuracy_curves(groups, at)
    end = max((curve.event[-1] for named in curves.values() for curve in named.values()), default=1)
    final = {group for group, seeds in groups.items() if is_final(seeds)}
    for named in curves.values():
        for group in final & named.keys():
            named[group].hold(end)
    panels = [Panel(PANELS[metric], curves[metric], end=end, axis=axis) for metric in PANELS]
    title = f"Accuracy on all labels and on the rare labels, over the {axis} of the run"
    return _drawing(name, title, panels, list(groups))


def is_final(seeds: Evaluations) -> bool:
    """Return whether the last model of every seed could not change any more."""
    return all(bool(seed) and getattr(seed[-1], "final", False) for seed in seeds)


def accuracy_curves(
    groups: Mapping[str, Evaluations],
    at: Callable[[Any], float] = attrgetter("event"),
) -> dict[str, dict[str, Curve]]:
    """Return, for each metric, the lines of the groups in which it was measured.

    `at` returns the horizontal position of an evaluation.
    """
    return {
        metric: {
            name: curve
            for name, seeds in groups.items()
            if (curve := curve_of(seeds, metric, at)).event
        }
        for metric in PANELS
    }


def occupancy(data: ReportData) -> Drawing | None:
    """Draw the presence and the number of rare clients in the buffer at aggregations."""
    present = "Aggregations with a rare client in the buffer (%)"
    panels = [
        _history_panel(data, present, attrgetter("presence")),
        _history_panel(data, "Rare clients in the buffer", attrgetter("rare_clients"), top=None),
    ]
    title = "Rare clients in the buffer, over the events of the run"
    return _drawing("buffer", title, panels, data.names)


def weights(data: ReportData) -> Drawing | None:
    """Draw the weight of the rare clients and of the heaviest client in the aggregations."""
    fair = [
        share
        for histories in data.histories.values()
        for history in histories
        if (own := history.state.rare) and (share := share_of(own, history.samples)) is not None
    ]
    mark = fmean(fair) if fair else None
    rare = "Rare clients together (%)" + (" · dotted: their samples" if fair else "")
    panels = [
        _history_panel(data, rare, attrgetter("rare_weight"), mark=mark),
        _history_panel(data, "The client with the largest weight (%)", attrgetter("largest")),
    ]
    title = "Weight in the aggregations, over the events of the run"
    return _drawing("weights", title, panels, data.names)


def curve_of(
    seeds: Evaluations, metric: str, at: Callable[[Any], float] = attrgetter("event")
) -> Curve:
    """Return the line of a metric over the evaluations that all seeds have.

    >>> def at(event, value): return EvaluationPoint(event, {"AvgRare": value}, {})
    >>> curve_of([[at(10, 0.0), at(20, 50.0)], [at(10, 20.0), at(22, 70.0)]], "AvgRare")
    Curve(event=[10.0, 21.0], mean=[10.0, 60.0], low=[0.0, 50.0], high=[20.0, 70.0])
    """
    curve = Curve([], [], [], [])
    for together in _thinned(list(zip(*seeds, strict=False))):
        found = [evaluation.metrics.get(metric) for evaluation in together]
        values = [value for value in found if value is not None]
        if len(values) == len(found):
            # The last events of seeds may differ, because synchronous methods finish their round.
            curve.add(fmean(map(at, together)), values)
    return curve


def _thinned(steps: list[tuple[AnyEvaluation, ...]]) -> list[tuple[AnyEvaluation, ...]]:
    """Keep every n-th step, counted from the last one, which is always kept."""
    every = -(-len(steps) // MAX_POINTS) or 1
    return steps[::-1][::every][::-1]


def _history_curve(
    histories: Sequence[RunHistory], value: Callable[[HistoryPoint], float | None]
) -> Curve:
    """Return one point for each bin, over the seeds that aggregated in it."""
    curve = Curve([], [], [], [])
    for together in zip(*(history.points() for history in histories), strict=False):
        values = [known for point in together if (known := value(point)) is not None]
        if values:
            curve.add(together[0].event, values)
    return curve


def _history_panel(
    data: ReportData,
    title: str,
    value: Callable[[HistoryPoint], float | None],
    *,
    top: float | None = 100.0,
    mark: float | None = None,
) -> Panel:
    curves = {name: _history_curve(some, value) for name, some in data.histories.items()}
    every = [history for histories in data.histories.values() for history in histories]
    end = max((points[-1].end for history in every if (points := history.points())), default=1.0)
    return Panel(title, {n: c for n, c in curves.items() if c.event}, top, mark, end)


def _drawing(
    name: str, title: str, panels: Sequence[Panel], names: Sequence[str]
) -> Drawing | None:
    shown = [panel for panel in panels if panel.curves]
    if not shown:
        return None
    styles = dict(zip(names, line_styles(names), strict=True))
    parts = [
        Drawing(f"{name}-{n}", panel.title, partial(_draw_panel, panel, styles))
        for n, panel in enumerate(shown)
    ]
    return Drawing(name, title, lambda: _draw_panels(shown, styles), parts, styles)


def _draw_panels(panels: Sequence[Panel], styles: Mapping[str, LineStyle]) -> Figure:
    """Draw the panels side by side with a legend below, for a paper."""
    from matplotlib.figure import Figure

    across = 5 if max(map(len, styles)) <= 20 else 2
    figure = Figure(figsize=(9.6, 3.6 + 0.22 * -(-len(styles) // across)), layout="constrained")
    same_top = len({panel.top for panel in panels}) == 1
    axes = figure.subplots(1, len(panels), sharex=True, sharey=same_top, squeeze=False)[0]
    for ax, panel in zip(axes, panels, strict=True):
        ax.set_title(panel.title)
        _draw_lines(ax, panel, styles)
    legend(figure, styles, across)
    return figure


def _draw_panel(panel: Panel, styles: Mapping[str, LineStyle]) -> Figure:
    """Draw one panel for the page, which adds the title and the legend."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=PANEL_SIZE, layout="constrained")
    _draw_lines(figure.subplots(), panel, styles)
    return figure


def _draw_lines(ax: Axes, panel: Panel, styles: Mapping[str, LineStyle]) -> None:
    for name, curve in panel.curves.items():
        style = styles[name]
        every = max(1, len(curve.event) // 7)
        # Without clipping, a marker at 100 stays whole and the SVG needs no clip path.
        (line,) = ax.plot(
            curve.event, curve.mean, **style.options(), markevery=every, clip_on=False
        )
        band = ax.fill_between(curve.event, curve.low, curve.high, color=style.colour, linewidth=0)
        band.set(alpha=0.2 if style.strong else 0.07, clip_on=False, zorder=1)
        for part in (line, band):
            part.set_gid(f"{SERIES}{list(styles).index(name)}")
    _format_axes(ax, panel)


def _format_axes(ax: Axes, panel: Panel) -> None:
    in_events = panel.axis == "events"
    ax.set(xlabel=panel.axis, xlim=(0, max(panel.end, 1) if in_events else panel.end))
    if panel.top is None:
        ax.set_ylim(0, 1.05 * max(1.0, *(max(curve.high) for curve in panel.curves.values())))
    else:
        ax.set(ylim=(0, panel.top), yticks=range(0, 101, 20))
    if panel.mark is not None:
        dots: dict[str, Any] = {"linewidth": 1.4, "linestyle": (0, (1, 2)), "zorder": 2}
        ax.plot([0, panel.end], [panel.mark] * 2, color=INK, clip_on=False, **dots)
    ax.locator_params(axis="x", integer=in_events)
    ax.grid(axis="y", clip_on=False)
    ax.patch.set_visible(False)
    ax.tick_params(length=0, labelleft=True)


class SeedRange(NamedTuple):
    """The mean of a metric, and its lowest and highest seed."""

    mean: float
    low: float
    high: float


def gap(data: ReportData) -> Drawing | None:
    """Draw GlobalAcc and AvgRare, best AvgRare first, collapsed models last."""
    rows: dict[str, tuple[SeedRange, SeedRange]] = {}
    for group in data.groups:
        everywhere, rare = (_seed_range(group.row.metrics, m) for m in ("GlobalAcc", "AvgRare"))
        if everywhere is not None and rare is not None:
            rows[group.row.title] = everywhere, rare
    if not rows:
        return None
    sound = {group.name for group in data.groups if not group.row.collapsed}
    order = sorted(rows, key=lambda title: (title not in sound, -rows[title][1].mean))
    title = "Accuracy on all labels and recall of the rare labels, method by method"
    ordered = {name: rows[name] for name in order}
    return Drawing("gap", title, lambda: _draw_gap(ordered))


def staleness(data: ReportData) -> Drawing | None:
    """Draw the number of events between a client's start and its arrival."""
    rows = spreads(data)
    if not any(common or rare for common, rare in rows.values()):
        return None
    title = "Staleness of the updates of rare and of other clients, method by method"
    return Drawing("staleness", title, lambda: _draw_staleness(rows))


def recall_map(data: ReportData) -> Drawing | None:
    """Draw the recall of each label under each method; rare labels come first and have a star.

    The page has the same numbers in a table. The result is None if nothing was evaluated.
    """
    means = recall_means(data.groups, data.last)
    if not means:
        return None
    rare = set(rare_labels(data.groups))
    labels = [f"★ {short(label)}" if label in rare else short(label) for label in means]
    title = "Recall of each label under each method"
    rows = list(means.values())
    return Drawing("recall", title, lambda: _draw_map(labels, data.names, rows))


def _seed_range(metrics: Mapping[str, Stat], metric: str) -> SeedRange | None:
    stat = stat_of(metrics, metric)
    if stat.mean is None:
        return None
    known = [value for value in stat.values if value is not None]
    return SeedRange(stat.mean, min(known), max(known))


def _draw_gap(rows: Mapping[str, tuple[SeedRange, SeedRange]]) -> Figure:
    figure, ax = _method_rows(list(rows))
    for place, pair in enumerate(rows.values()):
        means = [seeds.mean for seeds in pair]
        ax.plot(means, [place, place], color=INK, alpha=0.35, linewidth=1.5, clip_on=False)
        for seeds, look, other in zip(pair, (COMMON, RARE), reversed(pair), strict=True):
            ax.plot([seeds.low, seeds.high], [place, place], color=look["color"], linewidth=6,
                    alpha=0.25, solid_capstyle="butt", clip_on=False)  # fmt: skip
            ax.plot(seeds.mean, place, **look, linestyle="", markersize=8, clip_on=False)
            right = seeds.mean > other.mean or (seeds.mean == other.mean and look is COMMON)
            ax.annotate(
                number("", seeds.mean),
                (max(seeds.high, seeds.mean) if right else seeds.low, place),
                (8 if right else -8, 0), textcoords="offset points", va="center", fontsize=9,
                ha="left" if right else "right",
            )  # fmt: skip
    ax.set(xlim=(-16, 114), xticks=range(0, 101, 20), xlabel="percent")
    _marker_legend(figure, {"all labels (GlobalAcc)": COMMON, "rare labels (AvgRare)": RARE})
    return figure


def _draw_staleness(rows: Mapping[str, tuple[Spread | None, Spread | None]]) -> Figure:
    figure, ax = _method_rows(list(rows), height_factor=1.25)
    largest = 1
    for place, pair in enumerate(rows.values()):
        for spread, look, shift in zip(pair, (COMMON, RARE), (-0.17, 0.17), strict=True):
            if spread is None:
                continue
            largest = max(largest, spread.values[-2])
            low, lower, middle, upper, high, _ = map(_log_position, spread.values)
            line = {"color": look["color"], "clip_on": False, "solid_capstyle": "butt"}
            at = [place + shift] * 2
            ax.plot([low, high], at, linewidth=1.2, **line)
            ax.plot([lower, upper], at, linewidth=5, alpha=0.45, **line)
            ax.plot(middle, at[0], **look, linestyle="", markersize=6, clip_on=False)
    ticks = [tick for tick in DECADES if tick <= 1.6 * largest]
    ax.set_xticks([_log_position(tick) for tick in ticks], [str(tick) for tick in ticks])
    ax.set(xlim=(-0.05, _log_position(1.05 * largest)), xlabel="staleness in events (logarithmic)")
    rare = {"rare clients": RARE} if any(pair[1] for pair in rows.values()) else {}
    _marker_legend(figure, {"common clients" if rare else "all clients": COMMON} | rare)
    return figure


def _log_position(staleness: float) -> float:
    return log10(1 + staleness)


def _method_rows(names: Sequence[str], height_factor: float = 1.0) -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    height = MARGINS + ROW_HEIGHT * height_factor * len(names)
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    ax = figure.subplots()
    ax.set(ylim=(len(names) - 0.5, -0.5), yticks=[])
    for place, name in enumerate(names):
        ax.annotate(
            short(name), (0, place), (-6, 0), xycoords=("axes fraction", "data"),
            textcoords="offset points", ha="right", va="center", parse_math=False,
            fontweight="bold" if method_of(name) in METHOD_COLOURS else "normal",
        )  # fmt: skip
    ax.grid(axis="x", clip_on=False)
    ax.spines["left"].set_visible(False)
    ax.patch.set_visible(False)
    ax.tick_params(length=0)
    return figure, ax


def _marker_legend(figure: Figure, entries: Mapping[str, Mapping[str, Any]]) -> None:
    from matplotlib.lines import Line2D

    marks = [Line2D([], [], linestyle="", markersize=7, **look) for look in entries.values()]
    look = {"ncols": len(entries), "frameon": False}
    figure.legend(marks, list(entries), loc="outside upper left", **look)


def _draw_map(
    labels: Sequence[str], names: Sequence[str], rows: Sequence[Sequence[float | None]]
) -> Figure:
    import numpy as np
    from matplotlib.figure import Figure

    values = np.array([[np.nan if v is None else v for v in row] for row in rows], dtype=float)
    size = (MAP_MARGINS + MAP_COLUMN * len(names), MAP_MARGINS + MAP_ROW * len(labels))
    figure = Figure(figsize=size, layout="constrained")
    ax = figure.subplots()
    edges: dict[str, Any] = {"edgecolor": "white", "linewidth": 0.5}
    mesh = ax.pcolormesh(values, vmin=0, vmax=100, cmap=MAP_COLOURS, **edges)
    ax.invert_yaxis()
    places = (np.arange(len(names)) + 0.5, np.arange(len(labels)) + 0.5)
    plain: dict[str, Any] = {"parse_math": False}  # names are not formulas
    tilted: dict[str, Any] = {"rotation": 40, "rotation_mode": "anchor", "ha": "right"}
    ax.set_xticks(places[0], [short(name) for name in names], **tilted, **plain)
    ax.set_yticks(places[1], list(labels), **plain)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    if len(labels) <= MAX_NUMBERED_ROWS:
        for (row, column), value in np.ndenumerate(values):
            if not np.isnan(value):
                dark = value < 55
                ax.text(column + 0.5, row + 0.5, f"{value:.0f}", ha="center", va="center",
                        fontsize=8, color="white" if dark else "black")  # fmt: skip
    bar = figure.colorbar(mesh, ax=ax, label="recall (%)", shrink=min(1.0, 12 / len(labels)))
    bar.outline.set_visible(False)
    return figure
