"""Tables as figures: ours filled, the paper's values open."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from fedraw.report.drawing import Drawing, legend, short, stroke
from fedraw.report.looks import Look
from fedraw_studies.outcomes import Outcome, RowOutcome
from fedraw_studies.panels import OPEN, open_mark, panels, percent, plain, styles_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Of the sweeps: what is drawn, and what the steps are called.
SWEEPS = {
    "s9": (("AvgRare", "GlobalAcc"), "size of the buffer"),
    "s10": (("AvgRare", "BufPres"), "clients that hold a rare label"),
    "table4": (("AvgRare", "GlobalAcc"), "how much slower rare clients are"),
    "server-rate": (("AvgRare", "GlobalAcc"), "server rate"),
}
STEP_WIDTH = 12  # characters


class Spot(NamedTuple):
    """One row's metric: the mean, its seeds, and the paper's mean."""

    mean: float
    low: float
    high: float
    paper: float | None


def dots(outcome: Outcome) -> Iterator[Drawing]:
    """Table II: AvgRare by method, one panel for each data set."""
    methods = list(dict.fromkeys(row.method for row in outcome.rows))
    by_dataset: dict[str, dict[str, Spot]] = {}
    for row in outcome.rows:
        spot = _spot(row, "AvgRare")
        if spot is not None:
            by_dataset.setdefault(row.label.split(",")[0], {})[row.method] = spot
    if by_dataset:
        title = f"AvgRare of each method and data set, scale {outcome.scale}; {OPEN}"
        yield Drawing("table2", title, lambda: _drawn_dots(by_dataset, methods))


def sweep(outcome: Outcome) -> Iterator[Drawing]:
    metrics, called = SWEEPS[outcome.artefact]
    title = f"{outcome.title}, scale {outcome.scale}; {OPEN}"
    yield Drawing(outcome.artefact, title, lambda: _drawn_sweep(outcome, metrics, called))


def _drawn_dots(by_dataset: Mapping[str, Mapping[str, Spot]], methods: Sequence[str]) -> Figure:
    from matplotlib.figure import Figure

    size = (2.6 * len(by_dataset) + 1.4, 1.4 + 0.34 * len(methods))
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(1, len(by_dataset), sharey=True, squeeze=False)[0]
    styles = styles_of(methods)
    for ax, (dataset, spots) in zip(axes, by_dataset.items(), strict=True):
        for method, spot in spots.items():
            _dot(ax, methods.index(method), spot, styles[method])
        ax.set(xlim=(-3, 100), ylim=(len(methods) - 0.5, -0.5), xlabel="AvgRare (%)", title=dataset)
        ax.set_yticks(range(len(methods)), list(methods))
        ax.grid(axis="x", clip_on=False)
        ax.spines["left"].set_visible(False)
        plain(ax)
    figure.supxlabel(f"filled: ours, with the range of the seeds; {OPEN}", fontsize=9)
    return figure


def _dot(ax: Axes, place: int, spot: Spot, look: Look) -> None:
    line: dict[str, Any] = {"color": look.colour, "clip_on": False}
    ax.plot([spot.low, spot.high], [place, place], linewidth=5, alpha=0.3, **line)
    ax.plot(spot.mean, place, marker=look.marker, markersize=7, linestyle="", **line)
    if spot.paper is not None:
        ax.plot(spot.paper, place, **open_mark(look))


def _drawn_sweep(outcome: Outcome, metrics: Sequence[str], called: str) -> Figure:
    steps = list(dict.fromkeys(map(_step, outcome.rows)))
    methods = list(dict.fromkeys(row.method for row in outcome.rows))
    styles = styles_of(methods)
    figure, axes = panels(len(metrics), len(methods))
    for ax, metric in zip(axes, metrics, strict=True):
        for method in methods:
            own = {steps.index(_step(row)): row for row in outcome.rows if row.method == method}
            ours, theirs = _pairs(own, metric)
            if ours:
                ax.plot(list(ours), list(ours.values()), **stroke(styles[method]), clip_on=False)
            if theirs:
                ax.plot(list(theirs), list(theirs.values()), **open_mark(styles[method]))
        called_steps = [textwrap.fill(short(step), STEP_WIDTH) for step in steps]
        ax.set_xticks(range(len(steps)), called_steps, parse_math=False)
        ax.set(xlabel=called, xlim=(-0.3, len(steps) - 0.7))
        percent(ax, f"{metric} (%)")
    legend(figure, styles, 5)
    if any(row.metrics[metrics[0]].paper for row in outcome.rows):
        figure.suptitle(f"filled: ours; {OPEN}", x=0.01, ha="left", fontsize=9)
    return figure


def _pairs(
    rows: Mapping[int, RowOutcome], metric: str
) -> tuple[dict[int, float], dict[int, float]]:
    """By step: our mean, and the paper's."""
    means = {step: row.metrics[metric].ours.mean for step, row in rows.items() if row.records}
    papers = {step: row.metrics[metric].paper for step, row in rows.items()}
    return (
        {step: mean for step, mean in means.items() if mean is not None},
        {step: fmean(paper.values) for step, paper in papers.items() if paper is not None},
    )


def _step(row: RowOutcome) -> str:
    """What is left of a row's label without its method."""
    return ", ".join(part for part in row.label.split(", ") if part != row.method)


def _spot(row: RowOutcome, metric: str) -> Spot | None:
    measured = row.metrics[metric]
    known = [value for value in measured.ours.values if value is not None]
    if not known:
        return None
    paper = None if measured.paper is None else fmean(measured.paper.values)
    return Spot(fmean(known), min(known), max(known), paper)
