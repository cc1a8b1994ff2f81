"""Label influence as a picture: lanes in SVG that stretch with the page, their words in HTML."""

from __future__ import annotations

import math

from fedraw.analysis.audit import METHODS, Audit
from fedraw.analysis.verdict import THRESHOLDS
from fedraw.report.audit_words import KIND, SIGN, VERDICTS, multiple, named, shown
from fedraw.report.markup import text

LOW, HIGH = 0.05, 5.0
TICKS = (0.1, 0.3, 1.0, 3.0)
LANE = 100 / len(METHODS)  # percent of the height
EDGE = 9.0  # percent left free at both ends, so that no mark is cut

# Around (0, 0), in pixels; as different in outline as in colour.
MARKS = {
    "fedfa": "M0-6 6 5H-6Z",
    "fedbuff": "M-5-5H5V5H-5Z",
    "ca2fl": "M0-7 7 0 0 7-7 0Z",
    "fedraw": "M-5.5 0a5.5 5.5 0 1 0 11 0a5.5 5.5 0 1 0-11 0Z",
}
BEYOND = {"low": "M-8-4V4L-13 0Z", "high": "M8-4V4L13 0Z"}


def place(share: float) -> float:
    """Where a share of fair stands on the logarithmic axis, in percent; beyond it, at its end.

    >>> place(0.05), round(place(0.5), 1), place(5.0), place(0.0)
    (9.0, 50.0, 91.0, 9.0)
    """
    if not math.isfinite(share):
        share = HIGH if share > 0 else LOW
    inside = min(max(share, LOW), HIGH)
    return EDGE + (100 - 2 * EDGE) * math.log(inside / LOW) / math.log(HIGH / LOW)


def definitions() -> str:
    """The marks, once for the whole page."""
    marks = "".join(f'<path id="mark-{method}" d="{d}"/>' for method, d in MARKS.items())
    beyond = "".join(f'<path id="beyond-{side}" d="{d}"/>' for side, d in BEYOND.items())
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
        f'<figure>\n{_key(audit)}\n<ul class="cards">\n{cards}\n</ul>\n'
        f"<figcaption>{text(_caption(audit))}</figcaption>\n</figure>"
    )


def _caption(audit: Audit) -> str:
    words = (
        "Share of fair on a logarithmic axis: each step to the right is about three times as much."
        " The dashed line at 1 is the fair share. Where lost, at risk and kept begin depends on the"
        " method, so each lane has limits of its own. A small arrow: beyond the axis."
    )
    if audit.label_interval is None:
        return words
    return (
        f"{words} The line through a mark: what the uncertainty of the times leaves open, 95 %"
        " of the federations that could have left such a log."
    )


def _key(audit: Audit) -> str:
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
    marks = "".join(_mark(audit, method, label, n) for n, method in enumerate(METHODS))
    return (
        f'<li><p class="who">{named(audit.labels[label])}{rare}</p>\n<div class="lanes">{lanes}'
        f'<svg class="plot" aria-hidden="true">{bands}{_lines()}{marks}</svg>'
        f'<svg class="axis" aria-hidden="true">{_axis()}</svg></div></li>'
    )


def _words(audit: Audit, method: str, label: int, row: int) -> str:
    share, found = float(audit.label_influence[method][label]), audit.verdicts[method][label]
    return (
        f'<span class="method r{row}">{mark(method)} {shown(method)}</span> '
        f'<span class="value r{row}"><b>{multiple(share)}</b> {SIGN[found]} {found}</span> '
    )


def _bands(method: str, row: int) -> str:
    top = LANE * row
    edges = [0.0, *map(place, THRESHOLDS[method]), 100.0]
    return "".join(
        f'<rect class="{KIND[word]}" x="{left:.1f}%" y="{top + 1.5:g}%" '
        f'width="{right - left:.1f}%" height="{LANE - 3:g}%"/>'
        for word, left, right in zip(VERDICTS, edges, edges[1:], strict=False)
    )


def _mark(audit: Audit, method: str, label: int, row: int) -> str:
    share, middle = float(audit.label_influence[method][label]), LANE * (row + 0.5)
    at = f'x="{place(share):.1f}%" y="{middle:g}%"'
    beyond = "low" if share < LOW else "high" if share > HIGH else ""
    arrow = f'<use href="#beyond-{beyond}" class="{method}" {at}/>' if beyond else ""
    whisker = _whisker(audit, method, label, middle)
    return f'{whisker}<use href="#mark-{method}" class="{method}" {at}/>{arrow}'


def _whisker(audit: Audit, method: str, label: int, middle: float) -> str:
    if audit.label_interval is None:
        return ""
    interval = audit.label_interval[method]
    low, high = place(float(interval.low[label])), place(float(interval.high[label]))
    line = f'y1="{middle:g}%" y2="{middle:g}%" class="whisker {method}"'
    return f'<line x1="{low:.1f}%" x2="{high:.1f}%" {line}/>'


def _lines() -> str:
    return "".join(
        f'<line x1="{place(tick):.1f}%" x2="{place(tick):.1f}%" y1="0" y2="100%" '
        f'class="{"fair" if tick == 1 else "tick"}"/>'
        for tick in TICKS
    )


def _axis() -> str:
    return "".join(
        f'<text x="{place(tick):.1f}%" y="80%" class="{kind}">{tick:g}</text>'
        for tick, kind in zip(TICKS, ("", "between", "fair", ""), strict=True)
    )
