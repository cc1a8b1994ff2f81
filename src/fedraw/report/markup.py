"""Pieces of HTML. What comes from a log or a caller goes through `text`, nothing else does."""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape


def text(words: object) -> str:
    """Shown as it is, never read as markup.

    >>> text("<b> & 'c'")
    '&lt;b&gt; &amp; &#x27;c&#x27;'
    """
    return escape(str(words), quote=True)


def section(identity: str, title: str, *body: str) -> str:
    heading = f'<h2 id="{identity}">{text(title)}</h2>'
    return f'<section aria-labelledby="{identity}">\n{heading}\n' + "\n".join(body) + "\n</section>"


def table(identity: str, caption: str, head: str, rows: Iterable[str]) -> str:
    """A table in a box of its own, which scrolls where the page is narrow."""
    body = "\n".join(f"<tr>{row}</tr>" for row in rows)
    return (
        f'<div class="box" role="region" tabindex="0" aria-labelledby="{identity}-about">\n'
        "<table>\n"
        f'<caption id="{identity}-about"><span>{text(caption)}</span></caption>\n'
        f"<thead>\n{head}\n</thead>\n<tbody>\n{body}\n</tbody>\n</table>\n</div>"
    )


def column_head(words: str, kind: str = "") -> str:
    """The head of a column; a name such as LocalCommon may break before a capital."""
    broken = re.sub(r"(?<=[a-z])(?=[A-Z])", "<wbr>", text(words))
    return f'<th scope="col"{_class(kind)}>{broken}</th>'


def row_head(words: str, tag: str = "") -> str:
    note = f' <span class="tag">{text(tag)}</span>' if tag else ""
    return f'<th scope="row">{text(words)}{note}</th>'


def cell(words: str, below: str = "", *, kind: str = "", style: str = "") -> str:
    """A value, with a second line in small print."""
    look = f' style="{text(style)}"' if style else ""
    small = f" <small>{text(below)}</small>" if below else ""
    return f"<td{_class(kind)}{look}>{text(words)}{small}</td>"


def details(summary: str, aside: str, body: str) -> str:
    head = f"<summary>{text(summary)} <span>{text(aside)}</span></summary>"
    return f"<details>{head}\n{body}\n</details>"


def _class(kind: str) -> str:
    kind = kind.strip()
    return f' class="{kind}"' if kind else ""
