"""The figures of the arena: rare labels against all labels, costs, and ranks of the methods."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

from fedraw.report.drawing import COLOURS, INK, Drawing
from fedraw_studies.arena_results import ArenaResults, Rank, critical_difference

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

OURS, OTHERS = "#d55e00", COLOURS[3]
_NEAR = 4.0  # points; names of methods that are nearer to each other are stacked


class Spot(NamedTuple):
    """A method as a point of a plot; higher is better on both axes, unless `x` is a cost."""

    name: str
    x: float
    y: float
    ours: bool


def arena_drawings(own: ArenaResults) -> dict[str, Drawing]:
    """Return the figures of a data set, without figures that have no data."""
    found = {}
    by_setting = {name: spots for name, spots in _accuracies(own) if spots}
    if by_setting:
        title = f"{own.title}: rare labels against all labels, by setting"
        name = f"arena-{own.dataset}-pareto"
        found["pareto"] = Drawing(name, title, partial(_draw_pareto, by_setting))
    costs = _costs(own)
    if costs:
        title = f"{own.title}: rare labels against the server's memory"
        name = f"arena-{own.dataset}-memory"
        found["memory"] = Drawing(name, title, partial(_draw_memory, costs))
    ranks, settings = own.ranks("rare")
    if len(ranks) > 1:
        critical = critical_difference(len(ranks), settings)
        ours = {method.name for method in own.arena.methods if method.ours}
        title = f"{own.title}: mean ranks over {settings} settings"
        draw = partial(_draw_ranks, ranks, critical, ours)
        found["ranks"] = Drawing(f"arena-{own.dataset}-ranks", title, draw)
    return found


def pareto_front(spots: Sequence[Spot], *, cost: bool = False) -> list[Spot]:
    """List the spots that no other beats on both axes, from left to right.

    >>> a, b, c = Spot("a", 90, 10, False), Spot("b", 80, 50, False), Spot("c", 70, 40, False)
    >>> [spot.name for spot in pareto_front([a, b, c])]
    ['b', 'a']
    >>> [spot.name for spot in pareto_front([a, b, c], cost=True)]
    ['c', 'b']
    """
    sign = -1 if cost else 1

    def beats(other: Spot, own: Spot) -> bool:
        x, y = sign * (other.x - own.x), other.y - own.y
        return x >= 0 and y >= 0 and (x > 0 or y > 0)

    front = [own for own in spots if not any(beats(other, own) for other in spots)]
    return sorted(front, key=lambda spot: spot.x)


def _accuracies(own: ArenaResults) -> Iterator[tuple[str, list[Spot]]]:
    for setting in own.arena.settings:
        scores = [own.score(setting.name, method.name) for method in own.methods]
        yield (
            setting.name,
            [
                Spot(s.row.method.name, s.accuracy.mean, s.rare.mean, s.row.method.ours)
                for s in scores
                if s.accuracy.mean is not None and s.rare.mean is not None
            ],
        )


def _costs(own: ArenaResults) -> list[Spot]:
    """Return the mean over the settings with rare labels, for methods with runs in all of them."""
    settings = [setting.name for setting in own.arena.settings if setting.rare == "usual"]
    spots = []
    for method in own.methods:
        means = [own.score(setting, method.name).rare.mean for setting in settings]
        known = [mean for mean in means if mean is not None]
        if method.cost and known and len(known) == len(means):
            spots.append(Spot(method.name, method.cost[0], fmean(known), method.ours))
    return spots


def _draw_pareto(by_setting: Mapping[str, Sequence[Spot]]) -> Figure:
    from matplotlib.figure import Figure

    across = min(3, len(by_setting))
    down = -(-len(by_setting) // across)
    figure = Figure(figsize=(4.6 * across, 4.2 * down), layout="constrained")
    axes = figure.subplots(down, across, squeeze=False).flatten()
    for ax, (setting, spots) in zip(axes, by_setting.items(), strict=False):
        _draw_spots(ax, spots, pareto_front(spots))
        ax.set(xlabel="GlobalAcc (%)", ylabel="AvgRare or worst label (%)", title=setting)
    for ax in axes[len(by_setting) :]:
        ax.set_visible(False)
    return figure


def _draw_memory(spots: Sequence[Spot]) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.6, 4.8), layout="constrained")
    ax = figure.subplots()
    ax.set_xscale("log")
    _draw_spots(ax, spots, pareto_front(spots, cost=True))
    ticks = [1, 3, 10, 30]
    ax.set_xticks(ticks, [str(tick) for tick in ticks])
    ax.minorticks_off()
    ax.set(
        xlabel="models that the server keeps for 30 clients",
        ylabel="AvgRare (%), mean of the settings with rare labels",
    )
    return figure


def _draw_spots(ax: Axes, spots: Sequence[Spot], front: Sequence[Spot]) -> None:
    if len(front) > 1:
        ax.plot([s.x for s in front], [s.y for s in front], color=INK, alpha=0.35, linewidth=1)
    for spot in spots:
        size = 7 if spot in front else 5
        colour = OURS if spot.ours else OTHERS
        ax.plot(spot.x, spot.y, marker="o", markersize=size, color=colour, linestyle="", zorder=3)
    above: list[Spot] = []
    for spot in sorted(spots, key=lambda own: (own.y, own.x)):
        near = sum(abs(spot.y - o.y) < _NEAR and abs(spot.x - o.x) < 3 * _NEAR for o in above)
        strong = spot.ours or spot in front
        ax.annotate(spot.name, (spot.x, spot.y), (5, 3 + 8 * near), textcoords="offset points",
                    fontsize=7, fontweight="bold" if strong else "normal")  # fmt: skip
        above.append(spot)
    ax.margins(x=0.18, y=0.1)
    ax.grid(clip_on=False)
    ax.patch.set_visible(False)
    ax.tick_params(length=0, colors=INK)


def _draw_ranks(ranks: Sequence[Rank], critical: float, ours: set[str]) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.6, 1.2 + 0.26 * len(ranks)), layout="constrained")
    ax = figure.subplots()
    best = ranks[0].rank
    ax.axvspan(best, best + critical, color=INK, alpha=0.08, linewidth=0)
    for place, own in enumerate(ranks):
        colour = OURS if own.method in ours else OTHERS
        ax.plot(own.rank, place, marker="o", markersize=7, color=colour, linestyle="")
    ax.set_yticks(range(len(ranks)), [own.method for own in ranks], parse_math=False)
    ax.set(
        ylim=(len(ranks) - 0.5, -0.5),
        xlim=(0.5, len(ranks) + 0.5),
        xlabel="mean rank by AvgRare or worst label; grey: no significant difference from the best",
    )
    ax.grid(axis="x", clip_on=False)
    ax.patch.set_visible(False)
    ax.tick_params(length=0, colors=INK)
    return figure
