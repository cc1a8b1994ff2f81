"""What fedraw raises when the cause lies outside its code.

FedrawError
├── BadInput            a file, a key, a table, a setting: the user's to mend (exit code 2)
│   └── MissingExtra    an optional dependency is not installed
├── FolderChanged       someone moved or changed the files of a running server; it has to stop
├── Interrupted         someone asked a run to stop; it can be resumed
├── RefusedUpdate       one client's update is unusable; the federation goes on without it
└── WorkerDied          a process that trained for a run is gone; the run can be resumed
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class FedrawError(Exception):
    """Base of everything below; its text is written for the user."""


class BadInput(FedrawError, ValueError):
    """Names the thing, the value and the remedy."""


class MissingExtra(BadInput, ImportError):
    """An optional dependency is needed and absent."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"this needs {package}: pip install 'fedraw[{extra}]'")
        self._needed = (package, extra)

    def __reduce__(self) -> tuple[type[MissingExtra], tuple[str, str]]:
        return MissingExtra, self._needed  # so that a worker process can tell its parent


class RefusedUpdate(FedrawError):
    """Raised before anything of the state was touched, so the state it was given stays good."""


class FolderChanged(FedrawError):
    """Names the file, what happened to it, and how to go on. Nothing more may be written."""


class Interrupted(FedrawError):
    """Raised between two arrivals, after a checkpoint."""


class WorkerDied(FedrawError):
    """A worker process ended before its work was done."""


def nearest(word: object, known: Iterable[str]) -> str:
    """The remedy for an unknown name: the closest known one, or all of them.

    >>> nearest("bufer", ["buffer", "cap"])
    "did you mean 'buffer'?"
    >>> nearest("x", ["buffer", "cap"])
    'known: buffer, cap'
    """
    names = sorted(known)
    close = difflib.get_close_matches(str(word), names, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(names)}"
