"""How lines and axes look: told apart by colour, dash and marker, on a light and on a dark page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from fedraw.strategies.catalog import CATALOG

# After Okabe and Ito, darkened until each has contrast 3 on white and on near-black.
OWN_COLOUR = {m.name: m.colour for m in CATALOG.values() if m.colour is not None}
COLOURS = ("#009068", "#b8629a", "#a87c00", "#3c94c4", "#808080", "#a2653c", "#7a70cc", "#c83c64")
DASHES: tuple[Any, ...] = ("--", ":", "-.", (0, (6, 1.5)), (0, (1, 1)), (0, (5, 1, 1, 1, 1, 1)))
MARKERS = "sD^vPX<>p"
# A colour that no line has: it gives way to the text colour of the page around the figure.
INK = "#010203"

SETTINGS: dict[str, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "fedraw",
    "font.family": ["sans-serif"],
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.titlepad": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": INK,
    "grid.alpha": 0.12,
    "grid.linewidth": 0.8,
}


class Look(NamedTuple):
    colour: str
    dash: Any
    marker: str
    strong: bool


def looks(names: Sequence[str]) -> Iterator[Look]:
    """Each line its own; FedRAW and FedFa, the two that are set against each other, are strong.

    >>> [(look.marker, look.strong) for look in looks(["fedbuff", "fedraw", "fedraw buffer=5"])]
    [('s', False), ('o', True), ('D', True)]
    """
    others = 0
    for name in names:
        strong = name.split(" ")[0] in OWN_COLOUR
        if name in OWN_COLOUR:
            yield Look(OWN_COLOUR[name], "-", "o", strong)
            continue
        n, others = others, others + 1
        marker = MARKERS[n % len(MARKERS)]
        yield Look(COLOURS[n % len(COLOURS)], DASHES[n % len(DASHES)], marker, strong)
