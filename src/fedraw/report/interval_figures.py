"""One row a method: the gap between all labels and the rare ones, and how stale updates are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log10
from typing import TYPE_CHECKING, Any, NamedTuple

from fedraw.report.cells import number, stat_of
from fedraw.report.course import Spread, spread_of
from fedraw.report.drawing import Drawing, short
from fedraw.report.looks import INK, OWN_COLOUR
from fedraw.report.material import Material

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COMMON: dict[str, Any] = {"color": OWN_COLOUR["fedfa"], "marker": "o"}
RARE: dict[str, Any] = {"color": OWN_COLOUR["fedraw"], "marker": "D"}
WIDTH, ROW, AROUND = 5.0, 0.32, 0.9  # inches
DECADES = (0, 1, 3, 10, 30, 100, 300, 1000, 3000, 10_000, 30_000, 100_000)


class Ends(NamedTuple):
    """Of one metric: its mean, and the lowest and the highest seed."""

    mean: float
    low: float
    high: float


def gap(material: Material) -> Drawing | None:
    """GlobalAcc and AvgRare of the last model, best AvgRare first."""
    rows: dict[str, tuple[Ends, Ends]] = {}
    for group in material.groups:
        everywhere, rare = (_ends(group.row.metrics, m) for m in ("GlobalAcc", "AvgRare"))
        if everywhere is not None and rare is not None:
            rows[group.name] = everywhere, rare
    if not rows:
        return None
    order = sorted(rows, key=lambda name: -rows[name][1].mean)
    title = "Accuracy on all labels and recall of the rare labels, method by method"
    ordered = {name: rows[name] for name in order}
    return Drawing("gap", title, lambda: _gap(ordered), wide=False)


def staleness(material: Material) -> Drawing | None:
    """How many events pass between a client's start and its arrival."""
    rows = spreads(material)
    if not any(common or rare for common, rare in rows.values()):
        return None
    title = "Staleness of the updates of rare and of other clients, method by method"
    return Drawing("staleness", title, lambda: _staleness(rows), wide=False)


def spreads(material: Material) -> dict[str, tuple[Spread | None, Spread | None]]:
    """For each method, the staleness of common and of rare clients' updates."""
    return {
        name: (
            spread_of([course.common_staleness for course in courses]),
            spread_of([course.rare_staleness for course in courses]),
        )
        for name, courses in material.courses.items()
    }


def _ends(metrics: Mapping[str, Any], metric: str) -> Ends | None:
    stat = stat_of(metrics, metric)
    if stat.mean is None:
        return None
    known = [value for value in stat.values if value is not None]
    return Ends(stat.mean, min(known), max(known))


def _gap(rows: Mapping[str, tuple[Ends, Ends]]) -> Figure:
    figure, ax = _rows(list(rows))
    for place, pair in enumerate(rows.values()):
        means = [ends.mean for ends in pair]
        ax.plot(means, [place, place], color=INK, alpha=0.35, linewidth=1.5, clip_on=False)
        for ends, look, other in zip(pair, (COMMON, RARE), reversed(pair), strict=True):
            ax.plot([ends.low, ends.high], [place, place], color=look["color"], linewidth=6,
                    alpha=0.25, solid_capstyle="butt", clip_on=False)  # fmt: skip
            ax.plot(ends.mean, place, **look, linestyle="", markersize=8, clip_on=False)
            right = ends.mean > other.mean or (ends.mean == other.mean and look is COMMON)
            ax.annotate(
                number("", ends.mean), (max(ends.high, ends.mean) if right else ends.low, place),
                (8 if right else -8, 0), textcoords="offset points", va="center", fontsize=9,
                ha="left" if right else "right",
            )  # fmt: skip
    ax.set(xlim=(-16, 114), xticks=range(0, 101, 20), xlabel="percent")
    _key(figure, {"all labels (GlobalAcc)": COMMON, "rare labels (AvgRare)": RARE})
    return figure


def _staleness(rows: Mapping[str, tuple[Spread | None, Spread | None]]) -> Figure:
    figure, ax = _rows(list(rows), tall=1.25)
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
    _key(figure, {"common clients" if rare else "all clients": COMMON} | rare)
    return figure


def _place(staleness: float) -> float:
    return log10(1 + staleness)


def _rows(names: Sequence[str], tall: float = 1.0) -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    height = AROUND + ROW * tall * len(names)
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    ax = figure.subplots()
    ax.set(ylim=(len(names) - 0.5, -0.5), yticks=[])
    for place, name in enumerate(names):
        ax.annotate(
            short(name), (0, place), (-6, 0), xycoords=("axes fraction", "data"),
            textcoords="offset points", ha="right", va="center", parse_math=False,
            fontweight="bold" if name.split(" ")[0] in OWN_COLOUR else "normal",
        )  # fmt: skip
    ax.grid(axis="x", clip_on=False)
    ax.spines["left"].set_visible(False)
    ax.patch.set_visible(False)
    ax.tick_params(length=0)
    return figure, ax


def _key(figure: Figure, entries: Mapping[str, Mapping[str, Any]]) -> None:
    from matplotlib.lines import Line2D

    marks = [Line2D([], [], linestyle="", markersize=7, **look) for look in entries.values()]
    look = {"ncols": len(entries), "frameon": False}
    figure.legend(marks, list(entries), loc="outside upper left", **look)
