"""The Markdown that the documents of the studies share: tables, intervals and widths."""

from __future__ import annotations

from collections.abc import Sequence

from fedraw_studies.rules import MeanInterval

WIDTH = 100  # of a line of text
NOTHING = "–"  # a cell without a value


def pipe_table(
    head: Sequence[str], lines: Sequence[Sequence[str]], *, left: int = 0, padded: bool = True
) -> str:
    """Write a Markdown table; the first `left` columns are aligned left, the others right.

    Without `padded`, cells are not padded, and columns are aligned left.

    >>> print(pipe_table(["", "AvgRare"], [["FedRAW", "30.2"]], left=1), end="")
    |        | AvgRare |
    | ------ | ------: |
    | FedRAW |    30.2 |
    """
    if not padded:
        return "".join(f"| {' | '.join(row)} |\n" for row in [head, ["---"] * len(head), *lines])
    widths = [max(map(len, column)) for column in zip(head, *lines, strict=True)]
    rule = ["-" * w if n < left else "-" * (w - 1) + ":" for n, w in enumerate(widths)]
    text = ""
    for row in (head, rule, *lines):
        cells = [
            cell.ljust(width) if n < left else cell.rjust(width)
            for n, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        text += f"| {' | '.join(cells)} |\n"
    return text


def escaped_table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Write a Markdown table of texts, which are escaped and not padded."""
    return pipe_table(head, [[plain_text(text) for text in line] for line in lines], padded=False)


def plain_text(text: str) -> str:
    r"""Escape text for a cell of a table.

    >>> print(plain_text("a|b <b>"))
    a\|b &lt;b&gt;
    """
    one_line = " ".join(text.split())
    escaped = one_line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return escaped.replace("|", "\\|")


def interval_text(interval: MeanInterval | None) -> str:
    """Format a mean difference with its interval, bold if it excludes zero.

    >>> interval_text(MeanInterval(2.0, -0.5, 4.5))
    '+2.0 (-0.5 to +4.5)'
    """
    if interval is None:
        return NOTHING
    mean, low, high = interval
    text = f"{mean:+.1f} ({low:+.1f} to {high:+.1f})"
    return f"**{text}**" if low > 0 or high < 0 else text
