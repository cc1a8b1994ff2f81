"""Every figure there is to a report, for its page and for papers."""

from __future__ import annotations

from pathlib import Path

from fedraw.report.drawing import Drawing, write_drawing
from fedraw.report.figures import accuracy, occupancy, weights
from fedraw.report.heat_figure import recall_map
from fedraw.report.interval_figures import gap, staleness
from fedraw.report.material import Material


def drawings(material: Material) -> dict[str, Drawing]:
    """Those that the logs have something for, by name."""
    evaluations = {g.name: [run.evaluations for run in g.runs] for g in material.groups}
    every = (
        gap(material),
        accuracy(evaluations),
        occupancy(material),
        weights(material),
        staleness(material),
    )
    return {drawing.name: drawing for drawing in every if drawing is not None}


def write_figures(material: Material, folder: Path) -> list[Path]:
    """Each figure of the page, and its heat map of recall, as SVG and as PDF."""
    every = [*drawings(material).values(), recall_map(material)]
    return [file for one in every if one is not None for file in write_drawing(one, folder)]
