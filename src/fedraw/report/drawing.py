"""Figures as SVG for the page, as SVG and PDF for papers: drawn once, without a display."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fedraw.errors import BadInput, MissingExtra
from fedraw.report.looks import INK, SETTINGS, Look

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LONGEST_NAME = 36
FORMATS = ("svg", "pdf")


class Drawing(NamedTuple):
    """A figure that is drawn when it is asked for."""

    name: str  # of its file
    title: str  # for who cannot see it
    draw: Callable[[], Figure]
    wide: bool = True  # two panels, side by side


def svg_of(drawing: Drawing) -> str:
    """Sized by what surrounds it, in its text colour."""
    with _style(drawing):
        text = io.StringIO()
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        _save(drawing.draw(), text, "svg", nothing)
        return _accessible(text.getvalue(), drawing.title)


def write_drawing(drawing: Drawing, folder: Path) -> list[Path]:
    """The figure on a light ground, in every format; the same bytes from the same runs."""
    svg, pdf = (folder / f"{drawing.name}.{form}" for form in FORMATS)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        svg.write_text(on_white(svg_of(drawing)), encoding="utf-8")
        with _style(drawing):
            _save(
                drawing.draw(), pdf, "pdf", dict.fromkeys(("Creator", "Producer", "CreationDate"))
            )
    except OSError as problem:
        raise BadInput(f"cannot write to {folder}: {problem.strerror}; choose another") from None
    return [svg, pdf]


def on_white(svg: str) -> str:
    return svg.replace(' style="', ' style="background: #fff; color: #222; ', 1)


def short(name: str) -> str:
    """As much of a name as a figure has room for."""
    printable = "".join(c if c.isprintable() else " " for c in name)
    return printable if len(printable) <= LONGEST_NAME else printable[: LONGEST_NAME - 1] + "…"


def stroke(look: Look) -> dict[str, Any]:
    weight = (2.6, 5, 4) if look.strong else (1.3, 4, 3)
    style = {"color": look.colour, "linestyle": look.dash, "marker": look.marker}
    return style | dict(zip(("linewidth", "markersize", "zorder"), weight, strict=True))


def legend(figure: Figure, styles: Mapping[str, Look], across: int) -> None:
    """One line for each name, below all panels."""
    from matplotlib.lines import Line2D

    lines = [Line2D([], [], **stroke(look)) for look in styles.values()]
    plain = ["-"] * len(lines)  # a label that starts with "_" would be left out
    look = {"ncols": across, "handlelength": 3.6, "frameon": False}
    box = figure.legend(lines, plain, loc="outside lower center", **look)
    for text, name in zip(box.get_texts(), styles, strict=True):
        text.set_parse_math(False)
        text.set_text(short(name))
        text.set_fontweight("bold" if styles[name].strong else "normal")


@contextmanager
def _style(drawing: Drawing) -> Iterator[None]:
    try:
        import matplotlib.style
    except ImportError:
        raise MissingExtra("matplotlib", "report") from None
    # Figures of one page must not share the names of their markers.
    salt = {"svg.hashsalt": f"fedraw {drawing.name}"}
    # "default" first: what a user set for other figures must not change this one.
    with matplotlib.style.context(["default", SETTINGS | salt]), warnings.catch_warnings():
        # In SVG the reader's font draws the text; that ours lacks a glyph is of no matter.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


def _save(figure: Figure, out: Any, form: str, metadata: dict[str, None]) -> None:
    figure.patch.set_visible(False)
    figure.savefig(out, format=form, metadata=metadata, bbox_inches="tight", pad_inches=0.05)


def _accessible(svg: str, title: str) -> str:
    size = re.search(r'viewBox="[^"]+"', svg)
    body = svg[svg.index("</defs>") + len("</defs>") :]
    body = re.sub(r'<g id="[^"]*"', "<g", body)  # nothing refers to a group
    root = (
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'{size[0] if size else ""} role="img" aria-label="{escape(title)}" '
        f'style="stroke-linejoin: round; stroke-linecap: butt">\n <title>{escape(title)}</title>'
    )
    return root + body.replace(INK, "currentColor").replace("'DejaVu Sans', ", "")
