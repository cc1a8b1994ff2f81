"""Building blocks of HTML pages in one file: templates, sections, tables and cells.

Functions return HTML unless they say otherwise, and escape text from logs and callers with `text`.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from csv import writer
from hashlib import sha256
from html import escape
from importlib.resources import files
from io import StringIO
from pathlib import Path
from string import Template

from fedraw.errors import BadInput
from fedraw.storage.files import atomic_write


def fill(package: str, template: str, *, title: str, live: bool = False, **parts: str) -> str:
    """Fill a template file of a package with its parts, all of them HTML.

    A template begins with `$head`, which has the title, the common style and the content security
    policy, and continues with its own `<style>`. The policy allows only the scripts of the
    template. Only the scripts of a `live` page may send requests, and only to the page's server.
    """
    content = _resource(package, template)
    style = _resource("fedraw.pages", "style.css")
    # The scripts are collected before the parts are filled in, so that a part cannot add one.
    allowed = " ".join(map(_digest, re.findall(r"<script>(.*?)</script>", content, re.DOTALL)))
    scripts = f"script-src {allowed};" if allowed else ""
    if live:
        scripts += " connect-src 'self';"
    head = Template(_resource("fedraw.pages", "head.html")).substitute(
        title=title, style=style, scripts=scripts
    )
    return Template(content).substitute(head=head, title=title, style=style, **parts)


def contents(sections: Mapping[str, str]) -> str:
    """Return a list of links to the sections, under the given names."""

    def link(name: str, part: str) -> str:
        identity = part.split('id="', 1)[1].split('"', 1)[0]
        return f'<li><a href="#{identity}">{text(name)}</a></li>'

    links = "".join(link(name, part) for name, part in sections.items())
    return f'<nav aria-label="Contents"><ul>{links}</ul></nav>'


def write_page(out: Path, content: str) -> None:
    """Write the page completely or not at all, and create missing folders."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        # Bytes in file names that are not UTF-8 become escape sequences.
        atomic_write(out, content.encode("utf-8", errors="backslashreplace"))
    except OSError as problem:
        raise BadInput(f"cannot write {out}: {problem.strerror}; choose another file") from None


def text(words: object) -> str:
    """Escape text, so that a browser shows it unchanged and never reads it as markup.

    >>> text("<b> & 'c'")
    '&lt;b&gt; &amp; &#x27;c&#x27;'
    """
    return escape(str(words), quote=True)


def section(identity: str, title: str, *body: str) -> str:
    """Return a section with a heading that links can target."""
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
    """Return a table in a box that scrolls on narrow screens.

    Args:
        identity: The id of the table.
        caption: The text of the caption.
        head: The rows of the table's head, as HTML.
        rows: The cells of each row, as HTML.
        csv: The numbers as CSV, which readers can copy.
        kind: Further CSS classes of the box.

    """
    body = "\n".join(f"<tr>{row}</tr>" for row in rows)
    return (
        f'<div class="{f"box {kind}".strip()}" role="region" tabindex="0" '
        f'aria-labelledby="{identity}-about">\n'
        f'<table id="{identity}">\n'
        f'<caption id="{identity}-about"><span>{text(caption)}</span></caption>\n'
        f"<thead>\n{head}\n</thead>\n<tbody>\n{body}\n</tbody>\n</table>\n</div>"
    ) + (copyable(identity, csv) if csv else "")


def copyable(identity: str, csv: str) -> str:
    """Return a text area with numbers to copy, and a button, which works if scripts run."""
    return (
        f'\n<div class="tools"><button type="button" class="copy" data-copies="{identity}-csv" '
        'hidden>Copy as CSV</button> <span role="status"></span>\n'
        "<details><summary>Numbers as CSV</summary>\n"
        f'<textarea id="{identity}-csv" rows="8" readonly spellcheck="false" '
        f'aria-label="{identity} as CSV">{text(csv)}</textarea>\n</details></div>'
    )


def csv_text(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    r"""Return a table as CSV; None is empty, and numbers have at most six decimals.

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
    """Return the head of a column; a name such as LocalCommon may break before a capital letter.

    If the number of the column is given, readers can sort the rows by it.
    """
    broken = re.sub(r"(?<=[a-z])(?=[A-Z])", "<wbr>", text(words))
    return f'<th scope="col"{_class(kind)}{sortable(column, by_words)}>{broken}</th>'


def sortable(column: int | None, by_words: bool = False) -> str:
    """Return the attributes for sorting: the first column as text, others as numbers."""
    if column is None:
        return ""
    words = ' data-order="words"' if by_words or column == 0 else ""
    return f' data-column="{column}"{words}'


def row_head(words: str, tag: str = "", kind: str = "") -> str:
    """Return the head of a row, with an optional tag beside it."""
    note = f' <span class="{f"tag {kind}".strip()}">{text(tag)}</span>' if tag else ""
    return f'<th scope="row">{text(words)}{note}</th>'


def cell(words: str, below: str = "", *, kind: str = "", style: str = "") -> str:
    """Return a value with an optional second line in small print."""
    css = f' style="{text(style)}"' if style else ""
    small = f" <small>{text(below)}</small>" if below else ""
    return f"<td{_class(kind)}{css}>{text(words)}{small}</td>"


def details(summary: str, aside: str, body: str) -> str:
    """Return a collapsed block."""
    head = f"<summary>{text(summary)} <span>{text(aside)}</span></summary>"
    return f"<details>{head}\n{body}\n</details>"


def note(words: str) -> str:
    """Return a paragraph of explanation."""
    return f'<p class="note">{text(words)}</p>'


def _class(kind: str) -> str:
    kind = kind.strip()
    return f' class="{kind}"' if kind else ""


def _digest(script: str) -> str:
    return f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'"


def _resource(package: str, name: str) -> str:
    return files(package).joinpath(name).read_text(encoding="utf-8").rstrip("\n")
