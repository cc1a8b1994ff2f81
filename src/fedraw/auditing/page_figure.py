"""The figure of the audit page: one card per label, one lane per method, in SVG and HTML."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import cycle

from fedraw.auditing.methods import METHODS, THRESHOLDS, VERDICTS, Verdict, title
from fedraw.auditing.view import LabelRow, LabelUnderMethod
from fedraw.auditing.words import standing_percent
from fedraw.pages.html import text

# Empty, half and full circles, which can be told apart without colour.
SIGN: dict[Verdict, str] = {"lost": "○", "at risk": "◐", "kept": "●"}
CSS_CLASS: dict[Verdict, str] = {"lost": "lost", "at risk": "risk", "kept": "kept"}
LOW, HIGH = 0.001, 3.0  # the ends of the axis
TICKS = (0.001, 0.01, 0.1, 1.0)
NARROW = ' class="between"'  # hidden if a lane is narrow
LANE = 100 / len(METHODS)  # percent of the height
EDGE = 9.0  # percent of free space at both ends, so that no mark is cut off

CAPTION = (
    "Standing in percent on a logarithmic axis up to 300 %: each line is ten times the one to its"
    " left. The thresholds between lost, at risk and kept depend on the method, so each lane has"
    " its own. A small arrow marks a standing beyond the axis."
)

# How methods are told apart: a path around (0, 0) in pixels, and a colour on a light and on a dark
# page. Methods take these in the order of the catalogue, from the start again if there are more.
STYLES = (
    ("M0-6 6 5H-6Z", "#0a78b8", "#56b4e9"),
    ("M-5-5H5V5H-5Z", "#00805c", "#2ebf94"),
    ("M0-7 7 0 0 7-7 0Z", "#b0568f", "#e394c2"),
    ("M-5.5 0a5.5 5.5 0 1 0 11 0a5.5 5.5 0 1 0-11 0Z", "#c25500", "#f58a3d"),
    ("M-6-2H-2V-6H2V-2H6V2H2V6H-2V2H-6Z", "#6a51c7", "#a796f0"),
)
METHOD_STYLES = dict(zip(METHODS, cycle(STYLES), strict=False))
BEYOND = {"below": "M-8-4V4L-13 0Z", "above": "M8-4V4L13 0Z"}


def place(standing: float) -> float:
    """The position of a standing on the logarithmic axis, in percent, clipped to its ends.

    >>> [round(place(standing), 1) for standing in (0.0, 0.001, 0.1, 1.0, 3.0, 9.0)]
    [9.0, 9.0, 56.2, 79.7, 91.0, 91.0]
    """
    inside = min(standing, HIGH) if standing > LOW else LOW
    return EDGE + (100 - 2 * EDGE) * math.log(inside / LOW) / math.log(HIGH / LOW)


def method_styles() -> str:
    """The colours of the methods, as CSS."""
    light = " ".join(f"--{name}: {own};" for name, (_, own, _) in METHOD_STYLES.items())
    dark = " ".join(f"--{name}: {own};" for name, (_, _, own) in METHOD_STYLES.items())
    rules = (f".{n} {{ fill: var(--{n}); stroke: var(--{n}); }}" for n in METHOD_STYLES)
    in_the_dark = f"@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}"
    return "\n".join([f":root {{ {light} }}", in_the_dark, *rules])


def definitions() -> str:
    """The definitions of all marks, once per page."""
    marks = "".join(
        f'<path id="mark-{name}" d="{d}"/>' for name, (d, _, _) in METHOD_STYLES.items()
    )
    beyond = "".join(f'<path id="{end}" d="{d}"/>' for end, d in BEYOND.items())
    return f'<svg class="defs" aria-hidden="true"><defs>{marks}{beyond}</defs></svg>'


def mark(method: str) -> str:
    """The mark of a method, to show beside its name."""
    place_of = 'x="50%" y="50%"'
    use = f'<use href="#mark-{method}" class="{method}" {place_of}/>'
    return f'<svg class="mark" aria-hidden="true">{use}</svg>'


def figure(rows: Sequence[LabelRow]) -> str:
    """One card for each label, with one lane for each method."""
    cards = "\n".join(_card(row) for row in rows)
    return (
        f'<figure>\n{_key()}\n<ul class="cards">\n{cards}\n</ul>\n'
        f"<figcaption>{text(CAPTION)}</figcaption>\n</figure>"
    )


def _key() -> str:
    swatches = "".join(
        f'<li><svg class="swatch" aria-hidden="true"><rect width="100%" height="100%" '
        f'class="{CSS_CLASS[word]}"/></svg> {SIGN[word]} {word}</li>'
        for word in VERDICTS
    )
    methods = "".join(f"<li>{mark(method)} {title(method)}</li>" for method in METHODS)
    return f'<ul class="key" aria-label="Key">{methods}{swatches}</ul>'


def _card(row: LabelRow) -> str:
    rare = ' <span class="tag">rare</span>' if row.rare else ""
    found = [row.methods[method] for method in METHODS]
    lanes = "".join(_words(one, n) for n, one in enumerate(found, 1))
    bands = "".join(_bands(method, n) for n, method in enumerate(METHODS))
    marks = "".join(_mark(one.standing, one.method, n) for n, one in enumerate(found))
    return (
        f'<li><p class="who"><bdi>{text(row.label)}</bdi>{rare}</p>\n<div class="lanes">{lanes}'
        f'<svg class="plot" aria-hidden="true">{bands}{_lines()}{marks}</svg>'
        f'<svg class="axis" aria-hidden="true">{_axis()}</svg></div></li>'
    )


def _words(found: LabelUnderMethod, row: int) -> str:
    standing = standing_percent(found.standing, found.method)
    return (
        f'<span class="method r{row}">{mark(found.method)} {title(found.method)}</span> '
        f'<span class="value r{row}"><b>{standing}</b> {SIGN[found.verdict]} {found.verdict}</span>'
        " "
    )


def _bands(method: str, row: int) -> str:
    top = LANE * row
    edges = [0.0, *(place(limit) for limit in THRESHOLDS[method]), 100.0]
    return "".join(
        f'<rect class="{CSS_CLASS[word]}" x="{left:.1f}%" y="{top + 1.5:g}%" '
        f'width="{right - left:.1f}%" height="{LANE - 3:g}%"/>'
        for word, left, right in zip(VERDICTS, edges, edges[1:], strict=False)
    )


def _mark(standing: float, method: str, row: int) -> str:
    at = f'x="{place(standing):.1f}%" y="{LANE * (row + 0.5):g}%"'
    end = "below" if standing < LOW else "above" if standing > HIGH else ""
    arrow = f'<use href="#{end}" class="{method}" {at}/>' if end else ""
    return f'<use href="#mark-{method}" class="{method}" {at}/>{arrow}'


def _lines() -> str:
    return "".join(
        f'<line x1="{at:.1f}%" x2="{at:.1f}%" y1="0" y2="100%" class="tick"/>'
        for at in map(place, TICKS)
    )


def _axis() -> str:
    """The numbers below the lines."""
    return "".join(
        f'<text x="{place(tick):.1f}%" y="80%"{NARROW if tick == 0.1 else ""}>'
        f"{100 * tick:g}{' %' if tick == 1 else ''}</text>"
        for tick in TICKS
    )
