"""Shakespeare's First Folio as a task: predict the missing letter in the words of a role.

The text of each speaking role is cut into pieces of 15 characters. The letter in the middle is the
label, and the seven characters before and after it are the inputs, as lower-case ASCII codes. A
role is a speech prefix of one play. If the printers of 1623 spell a name in several ways, each
spelling is a role. The Folio prints i for j, so there are 25 letters. Roles range from a single
line to a leading part, and small roles never use q, x and z: this is the label skew of the task.
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import numpy as np

from fedraw.data.readers import Content, Copy, find_copy, read_bytes
from fedraw.data.releases import RELEASES
from fedraw.errors import BadInput

SHAKESPEARE = RELEASES["shakespeare"]

BEFORE = AFTER = 7
_PIECE = BEFORE + 1 + AFTER
# The label of each character code; -1 for a code that is not a label.
_LABEL_OF = np.full(256, -1)
_LABEL_OF[[ord(letter) for letter in SHAKESPEARE.label_names]] = range(SHAKESPEARE.labels)
# A speech begins with an indented prefix: "  Fran. Nay answer me".
_SPEECH = re.compile(r"^ {1,4}([A-Z][A-Za-z. ]{0,14}?)\. (.*)$")
_STAGE = ("Enter ", "Exit", "Exeunt")


def find_shakespeare(root: Path) -> Copy:
    """Find the plays of the First Folio below the data root."""
    (source,) = SHAKESPEARE.sources
    plays = {source.members: source.count}
    return find_copy(SHAKESPEARE, root, (source.folder,), plays, read_play)


def read_play(path: Path) -> Content:
    """Read the pieces of all roles of one play."""
    text = read_bytes(path).decode("latin-1")
    play = path.name.removesuffix("_gut_f.txt")
    by_role = {role: pieces(words) for role, words in speeches(text).items()}
    sizes = [len(own_pieces) for own_pieces in by_role.values()]
    if not any(sizes):
        raise BadInput(f"{path}: has no speeches of the form '  Name. Text'; download it again")
    codes = np.concatenate(list(by_role.values()))
    return Content(
        np.delete(codes, BEFORE, axis=1).astype(np.int16),
        _LABEL_OF[codes[:, BEFORE]],
        {
            "role": np.repeat([f"{play}/{role}" for role in by_role], sizes),
            "play": np.repeat(np.array([play]), len(codes)),
        },
    )


def speeches(text: str) -> dict[str, str]:
    r"""Return everything that each role says, in one text.

    >>> speeches("  Bar. Long liue the King\n\n  Fran. Barnardo?\n  Bar. He\nEnter Ghost.\n")
    {'Bar': 'Long liue the King He', 'Fran': 'Barnardo?'}
    """
    said: dict[str, list[str]] = defaultdict(list)
    role = None
    for line in text.splitlines():
        start = _SPEECH.match(line)
        if start is not None:
            role = start[1]
            said[role].append(start[2].strip())
        elif not line.strip():
            role = None
        elif role is not None and not line.startswith(_STAGE):
            said[role].append(line.strip())
    return {role: " ".join(lines) for role, lines in said.items()}


def pieces(words: str) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    """Cut a text into pieces, one per row, and keep those whose middle character is a letter.

    >>> ["".join(map(chr, piece)) for piece in pieces("Who's there? Nay answer me")]
    ["who's there? na"]
    """
    codes = np.frombuffer(words.lower().encode("ascii", "replace"), np.uint8)
    whole = codes[: len(codes) // _PIECE * _PIECE].reshape(-1, _PIECE)
    return whole[_LABEL_OF[whole[:, BEFORE]] >= 0]
