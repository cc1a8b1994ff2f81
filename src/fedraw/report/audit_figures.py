"""The standing of labels as a picture: lanes in SVG that stretch with the page, words in HTML."""

from __future__ import annotations

import math

from fedraw.analysis.audit import METHODS, Audit
from fedraw.analysis.verdict import THRESHOLDS
from fedraw.report.audit_words import KIND, SIGN, VERDICTS, in_percent, named, shown
from fedraw.report.markup import text

LOW, HIGH = 0.001, 3.0  # the ends of the axis
TICKS = (0.001, 0.01, 0.1, 1.0)
TIGHT = ' class="between"'  # left out where a lane is narrow
LANE = 100 / len(METHODS)  # percent of the height
EDGE = 9.0  # percent left free at both ends, so that no mark is cut

CAPTION = (
    "Standing in percent, on a logarithmic axis up to 300 %: each line to the right is ten times as"
    " much. Where lost, at risk and kept begin depends on the method, so each lane has limits of"
    " its own. A small arrow: beyond the axis."
)

# Around (0, 0), in pixels; as different in outline as in colour.
MARKS = {
    "fedfa": "M0-6 6 5H-6Z",
    "fedbuff": "M-5-5H5V5H-5Z",
    "ca2fl": "M0-7 7 0 0 7-7 0Z",
    "fedraw": "M-5.5 0a5.5 5.5 0 1 0 11 0a5.5 5.5 0 1 0-11 0Z",
    "fedraw-replay": "M-6-2H-2V-6H2V-2H6V2H2V6H-2V2H-6Z",
}
BEYOND = {"below": "M-8-4V4L-13 0Z", "above": "M8-4V4L13 0Z"}


def place(standing: float) -> float:
    """Where a standing is on the logarithmic axis, in percent; beyond an end, there.

    >>> [round(place(standing), 1) for standing in (0.0, 0.001, 0.1, 1.0, 3.0, 9.0)]
    [9.0, 9.0, 56.2, 79.7, 91.0, 91.0]
    """
    inside = min(standing, HIGH) if standing > LOW else LOW
    return EDGE + (100 - 2 * EDGE) * math.log(inside / LOW) / math.log(HIGH / LOW)


def definitions() -> str:
    """The marks, once for the whole page."""
    marks = "".join(f'<path id="mark-{method}" d="{d}"/>' for method, d in MARKS.items())
    beyond = "".join(f'<path id="{end}" d="{d}"/>' for end, d in BEYOND.items())
    return f'<svg class="defs" aria-hidden="true"><defs>{marks}{beyond}</defs></svg>'


def mark(method: str) -> str:
    """The method's mark, to stand before its name."""
    place_of = 'x="50%" y="50%"'
    use = f'<use href="#mark-{method}" class="{method}" {place_of}/>'
    return f'<svg class="mark" aria-hidden="true">{use}</svg>'


def picture(audit: Audit, labels: list[int]) -> str:
    """One card for each label, one lane in it for each method."""
    cards = "\n".join(_card(audit, label) for label in labels)
    return (
        f'<figure>\n{_key()}\n<ul class="cards">\n{cards}\n</ul>\n'
        f"<figcaption>{text(CAPTION)}</figcaption>\n</figure>"
    )


def _key() -> str:
    swatches = "".join(
        f'<li><svg class="swatch" aria-hidden="true"><rect width="100%" height="100%" '
        f'class="{KIND[word]}"/></svg> {SIGN[word]} {word}</li>'
        for word in VERDICTS
    )
    methods = "".join(f"<li>{mark(method)} {shown(method)}</li>" for method in METHODS)
    return f'<ul class="key" aria-label="Key">{methods}{swatches}</ul>'


def _card(audit: Audit, label: int) -> str:
    rare = ' <span class="tag">rare</span>' if audit.labels[label] in audit.rare_labels else ""
    lanes = "".join(_words(audit, method, label, n) for n, method in enumerate(METHODS, 1))
    bands = "".join(_bands(method, n) for n, method in enumerate(METHODS))
    marks = "".join(
        _mark(float(audit.standing[method][label]), method, n) for n, method in enumerate(METHODS)
    )
    return (
        f'<li><p class="who">{named(audit.labels[label])}{rare}</p>\n<div class="lanes">{lanes}'
        f'<svg class="plot" aria-hidden="true">{bands}{_lines()}{marks}</svg>'
        f'<svg class="axis" aria-hidden="true">{_axis()}</svg></div></li>'
    )


def _words(audit: Audit, method: str, label: int, row: int) -> str:
    found = audit.verdicts[method][label]
    standing = in_percent(float(audit.standing[method][label]), method)
    return (
        f'<span class="method r{row}">{mark(method)} {shown(method)}</span> '
        f'<span class="value r{row}"><b>{standing}</b> {SIGN[found]} {found}</span> '
    )


def _bands(method: str, row: int) -> str:
    top = LANE * row
    edges = [0.0, *(place(limit) for limit in THRESHOLDS[method]), 100.0]
    return "".join(
        f'<rect class="{KIND[word]}" x="{left:.1f}%" y="{top + 1.5:g}%" '
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
    """Numbers below the lines."""
    return "".join(
        f'<text x="{place(tick):.1f}%" y="80%"{TIGHT if tick == 0.1 else ""}>'
        f"{100 * tick:g}{' %' if tick == 1 else ''}</text>"
        for tick in TICKS
    )
