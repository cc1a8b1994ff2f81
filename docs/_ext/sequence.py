"""Draws Mermaid sequence diagrams as inline SVG, because the site must work without a network.

GitHub draws a `mermaid` fence by itself. Here the fence becomes a picture in the text's own colour.
Participants, messages and notes are known; any other line is an error.
"""

from __future__ import annotations

import re
from html import escape
from typing import NamedTuple

from docutils import nodes  # type: ignore[import-untyped]
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

CHARACTER, LINE = 6.6, 15  # pixels of a character and of a line, at 12 pixels a letter
PARTICIPANT = re.compile(r"participant (\w+) as (.+)")
STEP = re.compile(r"(\w+)(--?)>>(\w+): (.+)|Note over (\w+)(?:,(\w+))?: (.+)")


class Step(NamedTuple):
    """A message, or a note over one or several participants; the text has several lines."""

    kind: str  # "-", "--" (dashed) or "note"
    start: int
    end: int
    text: list[str]


def read(source: str) -> tuple[list[list[str]], list[Step]]:
    """The participants and the steps; ValueError names the first line that is not supported."""
    names: dict[str, list[str]] = {}
    steps = []
    for number, line in enumerate(map(str.strip, source.splitlines()), 1):
        if found := PARTICIPANT.fullmatch(line):
            names[found[1]] = found[2].split("<br/>")
            continue
        if line in ("", "sequenceDiagram"):
            continue
        found = STEP.fullmatch(line)
        start, end = (found[1] or found[5], found[3] or found[6] or found[5]) if found else ("", "")
        if found is None or not {start, end} <= set(names) or (found[2] and start == end):
            raise ValueError(f"line {number} of the diagram is not supported: {line!r}")
        places, text = list(names), (found[4] or found[7]).split("<br/>")
        steps.append(Step(found[2] or "note", places.index(start), places.index(end), text))
    return list(names.values()), steps


def svg(source: str) -> str:
    """Draw the diagram: a column for each participant, as wide as the widest text needs."""
    names, steps = read(source)
    texts = [(label, 1) for label in names]
    texts += [(own.text, abs(own.end - own.start) + (own.kind == "note")) for own in steps]
    gap = max((16 + CHARACTER * max(map(len, text))) / columns for text, columns in texts)
    top = 10 + LINE * max(map(len, names))
    drawn, y = list[str](), top + 4

    def write(lines: list[str], x: float, y: int, kind: str = "") -> None:
        for i, line in enumerate(lines, 1):
            place = f'x="{x:.0f}" y="{y + LINE * i}"'
            drawn.append(f"<text{kind} {place}>{escape(line)}</text>")

    for kind, start, end, text in steps:
        left, right = gap * (min(start, end) + 0.5), gap * (max(start, end) + 0.5)
        if kind == "note":
            box = f'x="{left - gap / 2 + 4:.0f}" width="{right - left + gap - 8:.0f}"'
            drawn.append(f'<rect {box} y="{y}" height="{LINE * len(text) + 8}" rx="4"/>')
        write(text, (left + right) / 2, y)
        y += LINE * len(text) + 6
        if kind != "note":
            dashed = ' stroke-dasharray="5 3"' if kind == "--" else ""
            drawn.append(f'<path d="M{left:.0f},{y} H{right:.0f}"{dashed}/>')
            tip, back = (right, -8) if end > start else (left, 8)
            drawn.append(f'<path class="tip" d="M{tip:.0f},{y} l{back},-4 v8 z"/>')
        y += 12
    for i, label in enumerate(names):
        drawn.insert(0, f'<path class="life" d="M{gap * (i + 0.5):.0f},{top} V{y}"/>')
        write(label, gap * (i + 0.5), 0, ' class="head"')
    width = f"{gap * len(names):.0f}"
    size = f'viewBox="0 0 {width} {y}" width="{width}" height="{y}"'
    title = escape("Sequence diagram: " + ", ".join(map("".join, names)))
    body = "\n".join(drawn)
    return f'<svg class="sequence" {size} role="img" aria-label="{title}">\n{body}</svg>'


class Mermaid(SphinxDirective):
    """A fence with a sequence diagram."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """Draw the diagram."""
        try:
            drawing = svg("\n".join(self.content))
        except ValueError as problem:
            raise self.error(str(problem)) from None
        return [nodes.raw("", f'<div class="table-wrapper">{drawing}</div>', format="html")]


def setup(app: Sphinx) -> dict[str, bool]:
    """Make the fence known to Sphinx."""
    app.add_directive("mermaid", Mermaid)
    return {"parallel_read_safe": True}
