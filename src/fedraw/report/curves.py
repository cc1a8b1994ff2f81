"""Figures with lines over the events of a run: accuracy, rare clients in the buffer, weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from fedraw.eventlog.records import EvaluationRecord
from fedraw.eventlog.status import EvaluationPoint
from fedraw.report.drawing import INK, Drawing, LineStyle, legend, line_styles
from fedraw.report.report_data import HistoryPoint, ReportData, RunHistory, share_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANELS = {"GlobalAcc": "All labels (GlobalAcc, %)", "AvgRare": "Rare labels (AvgRare, %)"}
TITLE = "Accuracy on all labels and on the rare labels, over the events of the run"

AnyEvaluation = EvaluationRecord | EvaluationPoint
Evaluations = Sequence[Sequence[AnyEvaluation]]  # one sequence for each seed
MOST_POINTS = 120  # of a line


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


@dataclass(frozen=True)
class Panel:
    """One pair of axes and its lines, by method."""

    title: str
    curves: Mapping[str, Curve]
    top: float | None = 100.0  # of the vertical axis; None: the largest value decides
    mark: float | None = None  # a dotted horizontal line to compare with
    end: float = 1.0  # of the run, in events


def accuracy(groups: Mapping[str, Evaluations]) -> Drawing | None:
    """Draw GlobalAcc and AvgRare, with one line per group; None if nothing was evaluated.

    `groups` maps a name to the evaluations of each of its seeds.
    """
    curves = accuracy_curves(groups)
    end = max((curve.event[-1] for named in curves.values() for curve in named.values()), default=1)
    panels = [Panel(PANELS[metric], curves[metric], end=end) for metric in PANELS]
    return _drawing("curves", TITLE, panels, list(groups))


def accuracy_curves(groups: Mapping[str, Evaluations]) -> dict[str, dict[str, Curve]]:
    """Return, for each metric, the lines of the groups in which it was measured."""
    return {
        metric: {
            name: curve
            for name, seeds in groups.items()
            if (curve := curve_of(seeds, metric)).event
        }
        for metric in PANELS
    }


def occupancy(data: ReportData) -> Drawing | None:
    """Draw how many rare clients are in the buffer when it is aggregated."""
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
        if history.rare and (share := share_of(history.rare, history.samples)) is not None
    ]
    mark = fmean(fair) if fair else None
    rare = "Rare clients together (%)" + (" · dotted: their samples" if fair else "")
    panels = [
        _history_panel(data, rare, attrgetter("rare_weight"), mark=mark),
        _history_panel(data, "The client that weighs most (%)", attrgetter("largest")),
    ]
    title = "Weight in the aggregations, over the events of the run"
    return _drawing("weights", title, panels, data.names)


def curve_of(seeds: Evaluations, metric: str) -> Curve:
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
            # A synchronous method finishes its last round, so the last events may differ.
            curve.add(fmean(evaluation.event for evaluation in together), values)
    return curve


def _thinned(steps: list[tuple[AnyEvaluation, ...]]) -> list[tuple[AnyEvaluation, ...]]:
    """Keep every n-th step, counted from the last one, which always stays."""
    every = -(-len(steps) // MOST_POINTS) or 1
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
    return Drawing(name, title, lambda: _draw_panels(shown, styles))


def _draw_panels(panels: Sequence[Panel], styles: Mapping[str, LineStyle]) -> Figure:
    from matplotlib.figure import Figure

    across = 5 if max(map(len, styles)) <= 20 else 2
    figure = Figure(figsize=(9.6, 3.6 + 0.22 * -(-len(styles) // across)), layout="constrained")
    alike = len({panel.top for panel in panels}) == 1
    axes = figure.subplots(1, len(panels), sharex=True, sharey=alike, squeeze=False)[0]
    for ax, panel in zip(axes, panels, strict=True):
        ax.set_title(panel.title)
        for name, curve in panel.curves.items():
            _draw_curve(ax, curve, styles[name])
        _tidy(ax, panel)
    legend(figure, styles, across)
    return figure


def _draw_curve(ax: Axes, curve: Curve, style: LineStyle) -> None:
    # Without clipping, a marker at 100 stays whole and the SVG needs no reference to a clip path.
    every = max(1, len(curve.event) // 7)
    ax.plot(curve.event, curve.mean, **style.options(), markevery=every, clip_on=False)
    band = ax.fill_between(curve.event, curve.low, curve.high, color=style.colour, linewidth=0)
    band.set(alpha=0.2 if style.strong else 0.07, clip_on=False, zorder=1)


def _tidy(ax: Axes, panel: Panel) -> None:
    ax.set(xlabel="events", xlim=(0, max(panel.end, 1)))
    if panel.top is None:
        ax.set_ylim(0, 1.05 * max(1.0, *(max(curve.high) for curve in panel.curves.values())))
    else:
        ax.set(ylim=(0, panel.top), yticks=range(0, 101, 20))
    if panel.mark is not None:
        dots: dict[str, Any] = {"linewidth": 1.4, "linestyle": (0, (1, 2)), "zorder": 2}
        ax.plot([0, panel.end], [panel.mark] * 2, color=INK, clip_on=False, **dots)
    ax.locator_params(axis="x", integer=True)
    ax.grid(axis="y", clip_on=False)
    ax.patch.set_visible(False)
    ax.tick_params(length=0, labelleft=True)
