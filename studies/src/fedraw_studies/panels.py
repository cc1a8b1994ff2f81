"""Panels that the figures of a reproduction share: a method looks the same in all of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from fedraw.report.looks import INK, Look, looks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

METHODS = ("FedAvg", "q-FedAvg", "CA2FL", "FedBuff", "FedFa", "FedRAW")
OPEN = "open marks: the paper"


def styles_of(names: Iterable[str]) -> dict[str, Look]:
    listed = list(names)
    order = [*METHODS, *(name for name in listed if name not in METHODS)]
    if not set(METHODS) & set(listed):
        order = listed
    known = dict(zip(order, looks([name.lower() for name in order]), strict=True))
    return {name: known[name] for name in listed}


def open_mark(look: Look) -> dict[str, Any]:
    return {
        "marker": look.marker, "markersize": 8, "linestyle": "", "markerfacecolor": "none",
        "markeredgecolor": look.colour, "markeredgewidth": 1.4, "clip_on": False, "zorder": 5,
    }  # fmt: skip


def panels(count: int, names: int) -> tuple[Figure, list[Axes]]:
    from matplotlib.figure import Figure

    size = (9.6 if count == 2 else 4.2 * count, 3.6 + 0.22 * -(-names // 5))
    figure = Figure(figsize=size, layout="constrained")
    return figure, list(figure.subplots(1, count, squeeze=False)[0])


def percent(ax: Axes, title: str) -> None:
    ax.set(ylim=(0, 100), yticks=range(0, 101, 20), title=title)
    ax.grid(axis="y", clip_on=False)
    plain(ax)


def plain(ax: Axes) -> None:
    ax.patch.set_visible(False)
    ax.tick_params(length=0, colors=INK)
