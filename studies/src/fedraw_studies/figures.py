"""All figures of a reproduction, as files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from fedraw.errors import BadInput
from fedraw.report.drawing import Drawing, on_white, svg_of
from fedraw_studies.courses import courses, drifts, loss
from fedraw_studies.dots import SWEEPS, dots, sweep
from fedraw_studies.outcomes import Outcome


def paper_figures(outcomes: Sequence[Outcome]) -> list[Drawing]:
    """Of all that is begun; the rest is left out."""
    makers: dict[str, Callable[[Outcome], Iterator[Drawing]]] = {
        "fig1": loss,
        "table2": dots,
        "fig3": courses,
        "beyond-headline": courses,
        "evidence-drift": drifts,
        **dict.fromkeys(SWEEPS, sweep),
    }
    begun = [outcome for outcome in outcomes if any(row.records for row in outcome.rows)]
    return [d for own in begun if own.artefact in makers for d in makers[own.artefact](own)]


def write_figures(outcomes: Sequence[Outcome], folder: Path) -> list[Path]:
    """One SVG each, on a light ground."""
    paths = []
    for drawing in paper_figures(outcomes):
        path = folder / f"{drawing.name}.svg"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path.write_text(on_white(svg_of(drawing)), encoding="utf-8")
        except OSError as problem:
            raise BadInput(
                f"cannot write {path}: {problem.strerror}; choose another --out"
            ) from None
        paths.append(path)
    return paths
