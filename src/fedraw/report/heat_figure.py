"""Recall of each label under each method as a heat map, for papers; the page has it as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fedraw.report.drawing import Drawing, short
from fedraw.report.material import Material
from fedraw.report.page_tables import rare_labels, recall_means

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMN, ROW, AROUND = 0.62, 0.22, 1.6  # inches
# Numbers are written into the cells of a map with at most so many rows.
READABLE = 26
COLOURS = "cividis"  # even in lightness, and the same to the colour-blind


def recall_map(material: Material) -> Drawing | None:
    """Rare labels first, with a star; None where nothing was evaluated."""
    means = recall_means(material.groups)
    if not means:
        return None
    rare = set(rare_labels(material.groups))
    labels = [f"★ {short(label)}" if label in rare else short(label) for label in means]
    title = "Recall of each label under each method"
    rows = list(means.values())
    return Drawing("recall", title, lambda: _drawn(labels, material.names, rows))


def _drawn(
    labels: Sequence[str], names: Sequence[str], rows: Sequence[Sequence[float | None]]
) -> Figure:
    import numpy as np
    from matplotlib.figure import Figure

    values = np.array([[np.nan if v is None else v for v in row] for row in rows], dtype=float)
    size = (AROUND + COLUMN * len(names), AROUND + ROW * len(labels))
    figure = Figure(figsize=size, layout="constrained")
    ax = figure.subplots()
    mesh = ax.pcolormesh(values, vmin=0, vmax=100, cmap=COLOURS, edgecolor="white", linewidth=0.5)
    ax.invert_yaxis()
    places = (np.arange(len(names)) + 0.5, np.arange(len(labels)) + 0.5)
    plain: dict[str, Any] = {"parse_math": False}  # a name is no formula
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
