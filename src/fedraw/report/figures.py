"""Lines over the events of a run: what the model can do, who is in the buffer, what they weigh."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from fedraw.eventlog.records import EvaluationRecord
from fedraw.eventlog.status import EvaluationPoint
from fedraw.report.course import Course, Point, share_of
from fedraw.report.drawing import Drawing, legend, stroke, svg_of
from fedraw.report.looks import INK, Look, looks
from fedraw.report.material import Material

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANELS = {"GlobalAcc": "All labels (GlobalAcc, %)", "AvgRare": "Rare labels (AvgRare, %)"}
TITLE = "Accuracy on all labels and on the rare labels, over the events of the run"

AnyEvaluation = EvaluationRecord | EvaluationPoint
Evaluations = Sequence[Sequence[AnyEvaluation]]  # those of each seed
MOST_POINTS = 120  # of a line


class Curve(NamedTuple):
    """The mean over the seeds, and the lowest and highest of them."""

    event: list[float]
    mean: list[float]
    low: list[float]
    high: list[float]

    def add(self, event: float, values: Sequence[float]) -> None:
        self.event.append(event)
        self.mean.append(fmean(values))
        self.low.append(min(values))
        self.high.append(max(values))


@dataclass(frozen=True)
class Panel:
    title: str
    curves: Mapping[str, Curve]
    top: float | None = 100.0  # of the axis; None leaves it to the values
    mark: float | None = None  # a level worth comparing with
    end: float = 1.0  # of the run, in events


def learning_curves(groups: Mapping[str, Evaluations]) -> str:
    """An SVG of two panels, one line per group; empty where nothing was evaluated.

    `groups` gives, for each name, the "evaluation" records of each of its seeds.
    """
    drawing = accuracy(groups)
    return "" if drawing is None else svg_of(drawing)


def accuracy(groups: Mapping[str, Evaluations]) -> Drawing | None:
    curves = accuracy_curves(groups)
    end = max((curve.event[-1] for named in curves.values() for curve in named.values()), default=1)
    panels = [Panel(PANELS[metric], curves[metric], end=end) for metric in PANELS]
    return _drawing("curves", TITLE, panels, list(groups))


def accuracy_curves(groups: Mapping[str, Evaluations]) -> dict[str, dict[str, Curve]]:
    """For each metric, the lines of those groups in which it was measured."""
    return {
        metric: {
            name: curve
            for name, seeds in groups.items()
            if (curve := curve_of(seeds, metric)).event
        }
        for metric in PANELS
    }


def occupancy(material: Material) -> Drawing | None:
    """Who is in the buffer when it is aggregated."""
    panels = [
        _course_panel(material, "Aggregations with a rare client in the buffer (%)", _presence),
        _course_panel(material, "Rare clients in the buffer", _rare_clients, top=None),
    ]
    title = "Rare clients in the buffer, over the events of the run"
    return _drawing("buffer", title, panels, material.names)


def weights(material: Material) -> Drawing | None:
    fair = [
        share
        for courses in material.courses.values()
        for course in courses
        if course.rare and (share := share_of(course.rare, course.samples)) is not None
    ]
    mark = fmean(fair) if fair else None
    dotted = " · dotted: their samples" if fair else ""
    panels = [
        _course_panel(material, f"Rare clients together (%){dotted}", _rare_weight, mark=mark),
        _course_panel(material, "The client that weighs most (%)", _largest),
    ]
    title = "Weight in the aggregations, over the events of the run"
    return _drawing("weights", title, panels, material.names)


def curve_of(seeds: Evaluations, metric: str) -> Curve:
    """The evaluations that all seeds have, one after the other.

    >>> def at(event, value): return EvaluationPoint(event, {"AvgRare": value}, {})
    >>> curve_of([[at(10, 0.0), at(20, 50.0)], [at(10, 20.0), at(22, 70.0)]], "AvgRare")
    Curve(event=[10.0, 21.0], mean=[10.0, 60.0], low=[0.0, 50.0], high=[20.0, 70.0])
    """
    curve = Curve([], [], [], [])
    for together in _thinned(list(zip(*seeds, strict=False))):
        found = [evaluation.metrics.get(metric) for evaluation in together]
        values = [value for value in found if value is not None]
        if len(values) == len(found):
            # Synchronous methods end a round that is under way: the last events may differ.
            curve.add(fmean(evaluation.event for evaluation in together), values)
    return curve


def _thinned(steps: list[tuple[AnyEvaluation, ...]]) -> list[tuple[AnyEvaluation, ...]]:
    """Every n-th, counted from the last one, which always stays."""
    every = -(-len(steps) // MOST_POINTS) or 1
    return steps[::-1][::every][::-1]


def course_curve(courses: Sequence[Course], value: Callable[[Point], float | None]) -> Curve:
    """Bin by bin, over the seeds that aggregated in it."""
    curve = Curve([], [], [], [])
    for together in zip(*(course.points() for course in courses), strict=False):
        values = [known for point in together if (known := value(point)) is not None]
        if values:
            curve.add(together[0].event, values)
    return curve


def _presence(point: Point) -> float | None:
    return point.presence


def _rare_clients(point: Point) -> float | None:
    return point.rare_clients


def _largest(point: Point) -> float | None:
    return point.largest


def _rare_weight(point: Point) -> float | None:
    return point.rare_weight


def _course_panel(
    material: Material,
    title: str,
    value: Callable[[Point], float | None],
    *,
    top: float | None = 100.0,
    mark: float | None = None,
) -> Panel:
    curves = {name: course_curve(courses, value) for name, courses in material.courses.items()}
    every = [course for courses in material.courses.values() for course in courses]
    end = max((points[-1].end for course in every if (points := course.points())), default=1.0)
    return Panel(title, {n: c for n, c in curves.items() if c.event}, top, mark, end)


def _drawing(
    name: str, title: str, panels: Sequence[Panel], names: Sequence[str]
) -> Drawing | None:
    shown = [panel for panel in panels if panel.curves]
    if not shown:
        return None
    styles = dict(zip(names, looks(names), strict=True))
    return Drawing(name, title, lambda: _drawn(shown, styles))


def _drawn(panels: Sequence[Panel], styles: Mapping[str, Look]) -> Figure:
    from matplotlib.figure import Figure

    across = 5 if max(map(len, styles)) <= 20 else 2
    figure = Figure(figsize=(9.6, 3.6 + 0.22 * -(-len(styles) // across)), layout="constrained")
    alike = len({panel.top for panel in panels}) == 1
    axes = figure.subplots(1, len(panels), sharex=True, sharey=alike, squeeze=False)[0]
    for ax, panel in zip(axes, panels, strict=True):
        ax.set_title(panel.title)
        for name, curve in panel.curves.items():
            _draw(ax, curve, styles[name])
        _tidy(ax, panel)
    legend(figure, styles, across)
    return figure


def _draw(ax: Axes, curve: Curve, look: Look) -> None:
    # Unclipped: a marker at 100 stays whole, and the SVG needs no reference to a clipping path.
    every = max(1, len(curve.event) // 7)
    ax.plot(curve.event, curve.mean, **stroke(look), markevery=every, clip_on=False)
    band = ax.fill_between(curve.event, curve.low, curve.high, color=look.colour, linewidth=0)
    band.set(alpha=0.2 if look.strong else 0.07, clip_on=False, zorder=1)


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
