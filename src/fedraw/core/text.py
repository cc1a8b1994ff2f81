"""Text for terminals and messages: safe printing of untrusted names, lists, durations."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable


def printable(text: str) -> str:
    r"""Escape every character that could control a terminal or that no terminal can show.

    These are control and format characters, such as the escape sequences that set colours or clear
    the screen, and bytes of a file name that are not UTF-8. Line breaks stay.

    >>> print(printable("caf\udce9 \x1b[2J\u202e"))
    caf\xe9 \x1b[2J\u202e
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else _escaped(c) for c in text)


def one_line(text: str) -> str:
    r"""Return printable text on one line, with single spaces between its words.

    >>> one_line("site\r\n  4\x07")
    'site 4\\x07'
    """
    return printable(" ".join(text.split()))


def several(names: Iterable[str], most: int = 5) -> str:
    """List at most `most` names, and say how many more there are.

    >>> several(["a", "b", "c"], most=2), several(["a", "b"], most=2)
    ('a, b and 1 more', 'a, b')
    """
    names = list(names)
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest:,} more" if rest > 0 else "")


def counted(number: int, noun: str) -> str:
    """Return a number and the noun that it counts.

    >>> counted(1, "label"), counted(1000, "client")
    ('1 label', '1,000 clients')
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _escaped(character: str) -> str:
    if unicodedata.category(character) == "Zs":  # a space of another width
        return " "
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # Python's stand-in for a byte that is not UTF-8
        code -= 0xDC00
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def duration(seconds: float | None) -> str:
    """Format a duration with at most two units; an unknown duration (None) is "–".

    >>> duration(4.2), duration(200), duration(7500), duration(100_000), duration(None)
    ('4 s', '3 min 20 s', '2 h 05 min', '1 d 3 h', '–')
    >>> duration(60), duration(3600), duration(86400)
    ('1 min 00 s', '1 h 00 min', '1 d 0 h')
    """
    if seconds is None:
        return "–"
    whole = int(seconds)
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if days:
        return f"{days} d {hours % 24} h"
    if hours:
        return f"{hours} h {minutes % 60:02d} min"
    return f"{minutes} min {whole % 60:02d} s" if minutes else f"{whole} s"
