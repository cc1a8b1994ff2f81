"""The figures of a report: all of them as files, and those with one row per method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log10
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fedraw.eventlog.compare import Stat
from fedraw.report.curves import accuracy, occupancy, weights
from fedraw.report.drawing import INK, METHOD_COLOURS, Drawing, short, write_drawing
from fedraw.report.formatting import number
from fedraw.report.report_data import ReportData, Spread, rare_labels, recall_means, spreads
from fedraw.report.tables import stat_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COMMON: dict[str, Any] = {"color": METHOD_COLOURS["fedfa"], "marker": "o"}
RARE: dict[str, Any] = {"color": METHOD_COLOURS["fedraw"], "marker": "D"}
DECADES = (0, 1, 3, 10, 30, 100, 300, 1000, 3000, 10_000, 30_000, 100_000)
# Inches: the width of a figure with a row per method, the height of a row, and the margins.
WIDTH, ROW, AROUND = 5.0, 0.32, 0.9
# Inches: the width and height of a cell of the recall map, and the margins.
MAP_COLUMN, MAP_ROW, MAP_AROUND = 0.62, 0.22, 1.6
# A recall map with at most so many rows has numbers in its cells.
READABLE = 26
MAP_COLOURS = "cividis"  # even in lightness, and the same for colour-blind readers


def drawings(data: ReportData) -> dict[str, Drawing]:
    """Return the figures of the page by name, without those that the logs have no data for."""
    every = (
        gap(data),
        accuracy(data.evaluations),
        occupancy(data),
        weights(data),
        staleness(data),
    )
    return {drawing.name: drawing for drawing in every if drawing is not None}


def write_figures(data: ReportData, folder: Path) -> list[Path]:
    """Write each figure of the page, and a heat map of recall, as SVG and as PDF."""
    every = [*drawings(data).values(), recall_map(data)]
    return [file for one in every if one is not None for file in write_drawing(one, folder)]


class SeedRange(NamedTuple):
    """The mean of a metric, and its lowest and highest seed."""

    mean: float
    low: float
    high: float


def gap(data: ReportData) -> Drawing | None:
    """Draw GlobalAcc and AvgRare of the last model, with the best AvgRare first."""
    rows: dict[str, tuple[SeedRange, SeedRange]] = {}
    for group in data.groups:
        everywhere, rare = (_seed_range(group.row.metrics, m) for m in ("GlobalAcc", "AvgRare"))
        if everywhere is not None and rare is not None:
            rows[group.name] = everywhere, rare
    if not rows:
        return None
    order = sorted(rows, key=lambda name: -rows[name][1].mean)
    title = "Accuracy on all labels and recall of the rare labels, method by method"
    ordered = {name: rows[name] for name in order}
    return Drawing("gap", title, lambda: _draw_gap(ordered), wide=False)


def staleness(data: ReportData) -> Drawing | None:
    """Draw how many events pass between a client's start and its arrival."""
    rows = spreads(data)
    if not any(common or rare for common, rare in rows.values()):
        return None
    title = "Staleness of the updates of rare and of other clients, method by method"
    return Drawing("staleness", title, lambda: _draw_staleness(rows), wide=False)


def recall_map(data: ReportData) -> Drawing | None:
    """Draw the recall of each label under each method, the rare labels first and with a star.

    The page has the same numbers as a table. The result is None if nothing was evaluated.
    """
    means = recall_means(data.groups)
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
    figure, ax = _one_row_per_method(list(rows))
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
    figure, ax = _one_row_per_method(list(rows), tall=1.25)
    largest = 1
    for place, pair in enumerate(rows.values()):
        for spread, look, shift in zip(pair, (COMMON, RARE), (-0.17, 0.17), strict=True):
            if spread is None:
                continue
            largest = max(largest, spread.values[-2])
            low, lower, middle, upper, high, _ = map(_place, spread.values)
            line = {"color": look["color"], "clip_on": False, "solid_capstyle": "butt"}
            at = [place + shift] * 2
            ax.plot([low, high], at, linewidth=1.2, **line)
            ax.plot([lower, upper], at, linewidth=5, alpha=0.45, **line)
            ax.plot(middle, at[0], **look, linestyle="", markersize=6, clip_on=False)
    ticks = [tick for tick in DECADES if tick <= 1.6 * largest]
    ax.set_xticks([_place(tick) for tick in ticks], [str(tick) for tick in ticks])
    ax.set(xlim=(-0.05, _place(1.05 * largest)), xlabel="staleness in events (logarithmic)")
    rare = {"rare clients": RARE} if any(pair[1] for pair in rows.values()) else {}
    _marker_legend(figure, {"common clients" if rare else "all clients": COMMON} | rare)
    return figure


def _place(staleness: float) -> float:
    return log10(1 + staleness)


def _one_row_per_method(names: Sequence[str], tall: float = 1.0) -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    height = AROUND + ROW * tall * len(names)
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    ax = figure.subplots()
    ax.set(ylim=(len(names) - 0.5, -0.5), yticks=[])
    for place, name in enumerate(names):
        ax.annotate(
            short(name), (0, place), (-6, 0), xycoords=("axes fraction", "data"),
            textcoords="offset points", ha="right", va="center", parse_math=False,
            fontweight="bold" if name.split(" ")[0] in METHOD_COLOURS else "normal",
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
    size = (MAP_AROUND + MAP_COLUMN * len(names), MAP_AROUND + MAP_ROW * len(labels))
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
    if len(labels) <= READABLE:
        for (row, column), value in np.ndenumerate(values):
            if not np.isnan(value):
                dark = value < 55
                ax.text(column + 0.5, row + 0.5, f"{value:.0f}", ha="center", va="center",
                        fontsize=8, color="white" if dark else "black")  # fmt: skip
    bar = figure.colorbar(mesh, ax=ax, label="recall (%)", shrink=min(1.0, 12 / len(labels)))
    bar.outline.set_visible(False)
    return figure
