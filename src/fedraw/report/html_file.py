"""What every page has in common: one style, a list of contents, one way to be written."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from string import Template

from fedraw.errors import BadInput
from fedraw.report.markup import text


def fill(template: str, **parts: str) -> str:
    """A template of this folder with the common style and these parts."""
    return Template(_own(template)).substitute(style=_own("style.css"), **parts)


def contents(sections: Mapping[str, str]) -> str:
    """Links to the sections, by the names given here."""

    def link(name: str, part: str) -> str:
        identity = part.split('id="', 1)[1].split('"', 1)[0]
        return f'<li><a href="#{identity}">{text(name)}</a></li>'

    links = "".join(link(name, part) for name, part in sections.items())
    return f'<nav aria-label="Contents"><ul>{links}</ul></nav>'


def write_page(out: Path, content: str) -> None:
    """All of it or nothing; folders that are missing are made."""
    draft = out.with_name(f"{out.name}.part")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        # Bytes of a file name that are not UTF-8 are shown as escapes.
        draft.write_text(content, encoding="utf-8", errors="backslashreplace")
        draft.replace(out)
    except OSError as problem:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise BadInput(f"cannot write {out}: {problem.strerror}; choose another file") from None


def _own(name: str) -> str:
    return files("fedraw.report").joinpath(name).read_text(encoding="utf-8").rstrip("\n")
