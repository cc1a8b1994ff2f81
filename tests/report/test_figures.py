from __future__ import annotations

import sys
from typing import Any
from xml.etree import ElementTree

import matplotlib
import pytest

from fedraw.errors import MissingExtra
from fedraw.eventlog.live import EvaluationPoint
from fedraw.report.drawing import COLOURS, METHOD_COLOURS, line_styles, svg_of
from fedraw.report.figures import MAX_POINTS, PANELS, accuracy, curve_of

SVG = "{http://www.w3.org/2000/svg}"


def evaluations(*pairs: tuple[float | None, float | None]) -> list[EvaluationPoint]:
    return [
        EvaluationPoint(100 * n, {"GlobalAcc": everywhere, "AvgRare": rare}, {})
        for n, (everywhere, rare) in enumerate(pairs, start=1)
    ]


TWO = {
    "fedfa": [evaluations((70, 0), (80, 0)), evaluations((72, 0), (100, 10))],
    "fedraw": [evaluations((60, 40), (90, 55)), evaluations((64, 50), (92, 75))],
}


def learning_curves(groups: dict[str, Any]) -> str:
    drawing = accuracy(groups)
    assert drawing is not None
    return svg_of(drawing)


def texts(svg: str) -> list[str]:
    return [node.text or "" for node in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def test_a_figure_has_two_panels_and_one_legend_as_text() -> None:
    shown = texts(learning_curves(TWO))
    assert set(PANELS.values()) <= set(shown)
    assert shown.count("fedraw") == shown.count("fedfa") == 1
    assert shown.count("100") >= 2, "both panels end at 100"


def test_the_same_runs_give_the_same_bytes() -> None:
    before = dict(matplotlib.rcParams)
    first = learning_curves(TWO)
    with matplotlib.rc_context({"lines.linewidth": 9, "font.size": 30, "svg.hashsalt": "other"}):
        assert learning_curves(TWO) == first
    assert dict(matplotlib.rcParams) == before


def test_an_svg_has_a_title_and_the_text_colour_of_the_page() -> None:
    svg = learning_curves(TWO)
    root = ElementTree.fromstring(svg)
    assert root.get("role") == "img"
    assert root.get("aria-label") == root.findtext(f"{SVG}title")
    assert "currentColor" in svg
    assert "#010203" not in svg
    assert "DejaVu" not in svg
    assert "url(" not in svg
    assert "date" not in svg.lower().replace("updated", "")


def test_lines_differ_by_more_than_colour() -> None:
    names = ["fedraw", "fedfa", *(f"method{n}" for n in range(7))]
    styles = list(line_styles(names))
    assert len({style.colour for style in styles}) == len(names)
    assert len({(str(style.dash), style.marker) for style in styles[1:]}) == len(names) - 1
    assert [style.strong for style in styles] == [True, True] + [False] * 7


@pytest.mark.parametrize("colour", [*COLOURS, *METHOD_COLOURS.values()])
@pytest.mark.parametrize("page", ["#ffffff", "#1b1e22"])
def test_every_colour_has_contrast_on_light_and_dark_pages(colour: str, page: str) -> None:
    lighter, darker = sorted((luminance(colour), luminance(page)), reverse=True)
    assert (lighter + 0.05) / (darker + 0.05) >= 3


def luminance(colour: str) -> float:
    """The relative luminance of WCAG 2."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return sum(k * p for k, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_names_are_not_interpreted() -> None:
    names = ["_hidden", "$x^2$", "<script>", "漢字", "a\x00b\nc", "n" * 200]
    svg = learning_curves(dict.fromkeys(names, TWO["fedfa"]))
    shown = texts(svg)
    assert {"_hidden", "$x^2$", "<script>", "漢字", "a b c"} <= set(shown)
    assert "n" * 35 + "…" in shown


def test_a_line_has_a_limited_number_of_points() -> None:
    often = evaluations(*[(50.0, float(n % 100)) for n in range(1000)])
    curve = curve_of([often], "AvgRare")
    assert len(curve.event) <= MAX_POINTS
    assert curve.event[-1] == 100_000, "the last one stays"


def test_without_rare_labels_there_is_one_panel() -> None:
    shown = texts(learning_curves({"fedfa": [evaluations((70, None), (80, None))]}))
    assert PANELS["GlobalAcc"] in shown
    assert PANELS["AvgRare"] not in shown


@pytest.mark.parametrize("groups", [{}, {"fedfa": [[]]}, {"fedfa": [evaluations((None, None))]}])
def test_without_evaluations_there_is_no_figure(groups: dict[str, Any]) -> None:
    assert accuracy(groups) is None


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.style", None)
    with pytest.raises(MissingExtra, match=r"matplotlib.*fedraw\[report\]"):
        learning_curves(TWO)
