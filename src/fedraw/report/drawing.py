"""The style of figures, and their conversion to SVG and PDF without a display.

Lines differ in colour, dash and marker, so that they can be distinguished in print and by
colour-blind readers. Each colour has enough contrast on a light and on a dark page.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from html import escape
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from fedraw.errors import BadInput, MissingExtra
from fedraw.strategies.catalog import CATALOG

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The colours of Okabe and Ito, darkened until each has contrast 3 on white and on near-black.
METHOD_COLOURS = {m.name: m.colour for m in CATALOG.values() if m.colour is not None}
COLOURS = ("#009068", "#b8629a", "#a87c00", "#3c94c4", "#808080", "#a2653c", "#7a70cc", "#c83c64")
DASHES: tuple[Any, ...] = ("--", ":", "-.", (0, (6, 1.5)), (0, (1, 1)), (0, (5, 1, 1, 1, 1, 1)))
MARKERS = "sD^vPX<>p"
# A colour that no line has. An SVG replaces it with the text colour of the surrounding page.
INK = "#010203"
LONGEST_NAME = 36
# Prefix of the names of SVG groups; the number of the method follows.
SERIES = "series-"
# Each marker as an SVG path in a box from -6 to 6, for the legend of the page.
_OUTLINES = {
    "o": "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z",
    "s": "M-3.5-3.5h7v7h-7z",
    "D": "M0-5l5 5l-5 5l-5-5z",
    "^": "M0-4.5l4.5 8.5h-9z",
    "v": "M0 4.5l4.5-8.5h-9z",
    "P": "M-1.7-4.5h3.4v2.8h2.8v3.4h-2.8v2.8h-3.4v-2.8h-2.8v-3.4h2.8z",
    "X": "M-4.5-2.5l2-2l2.5 2.5l2.5-2.5l2 2l-2.5 2.5l2.5 2.5l-2 2l-2.5-2.5l-2.5 2.5l-2-2l2.5-2.5z",
    "<": "M-4.5 0l8.5-4.5v9z",
    ">": "M4.5 0l-8.5-4.5v9z",
    "p": "M0-4.8l4.6 3.3l-1.8 5.4h-5.6l-1.8-5.4z",
}
_NAMED_DASHES = {"-": (), "--": (3.7, 1.6), ":": (1, 1.65), "-.": (6.4, 1.6, 1, 1.6)}

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


class LineStyle(NamedTuple):
    """The style of one method's line; `strong` lines are thicker."""

    colour: str
    dash: Any
    marker: str
    strong: bool

    def options(self) -> dict[str, Any]:
        """Return the style as options of matplotlib's `plot`."""
        width, size, order = (2.6, 5, 4) if self.strong else (1.3, 4, 3)
        return {
            "color": self.colour,
            "linestyle": self.dash,
            "marker": self.marker,
            "linewidth": width,
            "markersize": size,
            "zorder": order,
        }

    def swatch(self) -> str:
        """Return a small SVG that shows the style, for a legend in HTML."""
        width = 2.6 if self.strong else 1.6
        dashes = _NAMED_DASHES[self.dash] if isinstance(self.dash, str) else self.dash[1]
        pattern = " ".join(f"{width * dash:.1f}" for dash in dashes)
        return (
            '<svg class="swatch" viewBox="-18 -6 36 12" aria-hidden="true">'
            f'<path d="M-18 0h36" stroke="{self.colour}" stroke-width="{width}" '
            f'stroke-dasharray="{pattern}"/>'
            f'<path d="{_OUTLINES[self.marker]}" fill="{self.colour}"/></svg>'
        )


class Drawing(NamedTuple):
    """A figure that is drawn on demand."""

    name: str  # the name of the file
    title: str  # for screen readers
    draw: Callable[[], Figure]
    panels: Sequence[Drawing] = ()  # one plot for each panel, which the page shows instead
    lines: Mapping[str, LineStyle] = MappingProxyType({})  # the entries of the panels' legend


def line_styles(names: Sequence[str]) -> Iterator[LineStyle]:
    """Yield a different style for each name; FedRAW and FedFa, the main contrast, are strong.

    >>> [(s.marker, s.strong) for s in line_styles(["fedbuff", "fedraw", "fedraw buffer=5"])]
    [('s', False), ('o', True), ('D', True)]
    """
    others = 0
    for name in names:
        strong = method_of(name) in METHOD_COLOURS
        if name in METHOD_COLOURS:
            yield LineStyle(METHOD_COLOURS[name], "-", "o", strong)
            continue
        n, others = others, others + 1
        marker = MARKERS[n % len(MARKERS)]
        yield LineStyle(COLOURS[n % len(COLOURS)], DASHES[n % len(DASHES)], marker, strong)


def method_of(name: str) -> str:
    """Return the method in the name of a row.

    >>> method_of("k5: fedraw"), method_of("fedraw buffer=5")
    ('fedraw', 'fedraw')
    """
    return name.rpartition(": ")[2].split(" ")[0]


def svg_of(drawing: Drawing) -> str:
    """Return the figure as SVG that takes its size and text colour from the surrounding page."""
    with _style(drawing):
        text = io.StringIO()
        _save(drawing.draw(), text, "svg", ("Creator", "Date", "Format", "Type"))
        return _accessible(text.getvalue(), drawing.title)


def write_drawing(drawing: Drawing, folder: Path) -> list[Path]:
    """Write the figure as SVG and PDF on a light background; the bytes are reproducible."""
    svg, pdf = folder / f"{drawing.name}.svg", folder / f"{drawing.name}.pdf"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        svg.write_text(on_white(svg_of(drawing)), encoding="utf-8")
        with _style(drawing):
            _save(drawing.draw(), pdf, "pdf", ("Creator", "Producer", "CreationDate"))
    except OSError as problem:
        raise BadInput(
            f"cannot write to {folder}: {problem.strerror}; choose another folder"
        ) from None
    return [svg, pdf]


def on_white(svg: str) -> str:
    """Give an SVG a white background and dark text, for use outside a page."""
    return svg.replace(' style="', ' style="background: #fff; color: #222; ', 1)


def short(name: str) -> str:
    """Shorten a name to the length that fits into a figure."""
    printable = "".join(c if c.isprintable() else " " for c in name)
    return printable if len(printable) <= LONGEST_NAME else printable[: LONGEST_NAME - 1] + "…"


def legend(figure: Figure, styles: Mapping[str, LineStyle], across: int) -> None:
    """Add a legend below all panels, with one entry for each name."""
    from matplotlib.lines import Line2D

    lines = [Line2D([], [], **style.options()) for style in styles.values()]
    plain = ["-"] * len(lines)  # matplotlib drops a label that starts with "_"
    box = figure.legend(
        lines,
        plain,
        loc="outside lower center",
        ncols=across,
        handlelength=3.6,
        frameon=False,
    )
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
    # Matplotlib names markers by a hash. Figures on one page must not share these names.
    salt = {"svg.hashsalt": f"fedraw {drawing.name}"}
    # "default" comes first, so that a user's own settings do not change these figures.
    with matplotlib.style.context(["default", SETTINGS | salt]), warnings.catch_warnings():
        # The reader's font draws the text of an SVG, so a glyph missing from ours does not matter.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


def _save(figure: Figure, out: Any, form: str, omitted_metadata: Sequence[str]) -> None:
    figure.patch.set_visible(False)
    metadata = dict.fromkeys(omitted_metadata)
    figure.savefig(out, format=form, metadata=metadata, bbox_inches="tight", pad_inches=0.05)


def _accessible(svg: str, title: str) -> str:
    """Add a title for screen readers, and use the text colour and the font of the page."""
    size = re.search(r'viewBox="[^"]+"', svg)
    body = svg[svg.index("</defs>") + len("</defs>") :]
    body = re.sub(f'<g id="{SERIES}([0-9]+)"', r'<g data-series="\1"', body)
    body = re.sub(r'<g id="[^"]*"', "<g", body)  # nothing refers to another group
    root = (
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'{size[0] if size else ""} role="img" aria-label="{escape(title)}" '
        f'style="stroke-linejoin: round; stroke-linecap: butt">\n <title>{escape(title)}</title>'
    )
    return root + body.replace(INK, "currentColor").replace("'DejaVu Sans', ", "")
