"""Pieces of HTML. What comes from a log or a caller goes through `text`, nothing else does."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from csv import writer
from html import escape
from io import StringIO


def text(words: object) -> str:
    """Shown as it is, never read as markup.

    >>> text("<b> & 'c'")
    '&lt;b&gt; &amp; &#x27;c&#x27;'
    """
    return escape(str(words), quote=True)


def section(identity: str, title: str, *body: str) -> str:
    heading = f'<h2 id="{identity}">{text(title)}</h2>'
    return f'<section aria-labelledby="{identity}">\n{heading}\n' + "\n".join(body) + "\n</section>"


def table(
    identity: str,
    caption: str,
    head: str,
    rows: Iterable[str],
    *,
    csv: str = "",
    kind: str = "",
) -> str:
    """A table in a box of its own, which scrolls where the page is narrow; `csv` can be copied."""
    body = "\n".join(f"<tr>{row}</tr>" for row in rows)
    return (
        f'<div class="{f"box {kind}".strip()}" role="region" tabindex="0" '
        f'aria-labelledby="{identity}-about">\n'
        f'<table id="{identity}">\n'
        f'<caption id="{identity}-about"><span>{text(caption)}</span></caption>\n'
        f"<thead>\n{head}\n</thead>\n<tbody>\n{body}\n</tbody>\n</table>\n</div>"
    ) + (copyable(identity, csv) if csv else "")


def copyable(identity: str, csv: str) -> str:
    """Numbers to take along: a button where scripts run, and the text itself for everyone."""
    return (
        f'\n<div class="tools"><button type="button" class="copy" data-copies="{identity}-csv" '
        'hidden>Copy as CSV</button> <span role="status"></span>\n'
        "<details><summary>Numbers as CSV</summary>\n"
        f'<textarea id="{identity}-csv" rows="8" readonly spellcheck="false" '
        f'aria-label="{identity} as CSV">{text(csv)}</textarea>\n</details></div>'
    )


def csv_text(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    r"""Undefined is empty; more than six decimals say nothing.

    >>> csv_text(["label", "recall"], [["8, 9", 1 / 3], ["x", None]])
    'label,recall\n"8, 9",0.333333\nx,\n'
    """
    out = StringIO()
    lines = writer(out, lineterminator="\n")
    lines.writerow(head)
    for row in rows:
        lines.writerow([round(v, 6) if isinstance(v, float) else v for v in row])
    return out.getvalue()


def column_head(
    words: str, kind: str = "", *, column: int | None = None, by_words: bool = False
) -> str:
    """The head of a column; a name such as LocalCommon may break before a capital.

    With its number, rows can be sorted by this column.
    """
    broken = re.sub(r"(?<=[a-z])(?=[A-Z])", "<wbr>", text(words))
    return f'<th scope="col"{_class(kind)}{sortable(column, by_words)}>{broken}</th>'


def sortable(column: int | None, by_words: bool = False) -> str:
    """The first column has names; of the others the numbers count that stand first in a cell."""
    if column is None:
        return ""
    words = ' data-order="words"' if by_words or column == 0 else ""
    return f' data-column="{column}"{words}'


def row_head(words: str, tag: str = "", kind: str = "") -> str:
    note = f' <span class="{f"tag {kind}".strip()}">{text(tag)}</span>' if tag else ""
    return f'<th scope="row">{text(words)}{note}</th>'


def cell(words: str, below: str = "", *, kind: str = "", style: str = "") -> str:
    """A value, with a second line in small print."""
    look = f' style="{text(style)}"' if style else ""
    small = f" <small>{text(below)}</small>" if below else ""
    return f"<td{_class(kind)}{look}>{text(words)}{small}</td>"


def details(summary: str, aside: str, body: str) -> str:
    head = f"<summary>{text(summary)} <span>{text(aside)}</span></summary>"
    return f"<details>{head}\n{body}\n</details>"


def note(words: str) -> str:
    return f'<p class="note">{text(words)}</p>'


def _class(kind: str) -> str:
    kind = kind.strip()
    return f' class="{kind}"' if kind else ""
