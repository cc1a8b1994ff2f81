"""The errors that fedraw raises for causes outside its code.

FedrawError
├── BadInput                a file, key, table or setting that the user must correct (exit code 2)
│   ├── FolderUnavailable   a folder is in use or cannot be written; a later attempt may succeed
│   └── MissingExtra        an optional dependency is not installed
├── FolderChanged           the files of a running server were moved or changed, so it must stop
├── Interrupted             a run was asked to stop; it can be resumed
│   └── ScriptInterrupted   the same in a Python script; a KeyboardInterrupt too
├── RefusedUpdate           one client's update is unusable; the federation continues without it
├── TrainingFailed          the user's own training function raised an error; the run can be resumed
└── WorkerDied              a worker process of a run died; the run can be resumed
"""

from __future__ import annotations

import difflib
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class FedrawError(Exception):
    """The base of all errors of fedraw; the text is written for the user."""


class BadInput(FedrawError, ValueError):
    """The user must correct something; the text names the thing, the value and the remedy."""


class MissingExtra(BadInput, ImportError):
    """An optional dependency is needed but not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"this needs {package}: pip install 'fedraw[{extra}]'")
        self._needed = (package, extra)

    def __reduce__(self) -> tuple[type[MissingExtra], tuple[str, str]]:
        return MissingExtra, self._needed  # lets a worker process send the error to its parent


class FolderUnavailable(BadInput):
    """A folder is in use by another process or cannot be written; a later attempt may succeed."""


class RefusedUpdate(FedrawError):
    """An update cannot be used; it is raised before any state changes."""


class FolderChanged(FedrawError):
    """A server's files were changed from outside, so it must not write anything more.

    The text names the file, what happened to it, and how to continue.
    """


class Interrupted(FedrawError):
    """A run stopped between two arrivals, after writing a checkpoint."""


class ScriptInterrupted(Interrupted, KeyboardInterrupt):
    """A run of a Python script stopped because of Ctrl-C or SIGTERM.

    A script catches it as KeyboardInterrupt or as `fedraw.Interrupted`. Otherwise it ends the
    script with this line and exit code 130.
    """


class TrainingFailed(FedrawError):
    """The user's training function raised an error; the text ends with its traceback."""


class WorkerDied(FedrawError):
    """A worker process ended before its work was done."""


def nearest(word: object, known: Iterable[str]) -> str:
    """Return the remedy for an unknown name: the closest known name, or all known names.

    >>> nearest("bufer", ["buffer", "cap"])
    "did you mean 'buffer'?"
    >>> nearest("Cap", ["buffer", "cap"])
    "did you mean 'cap'?"
    >>> nearest("x", ["buffer", "cap"])
    'known: buffer, cap'
    """
    names = {name.lower(): name for name in sorted(known)}
    close = difflib.get_close_matches(str(word).lower(), names, n=1)
    return f"did you mean {names[close[0]]!r}?" if close else f"known: {', '.join(names.values())}"


@contextmanager
def error_context(subject: object) -> Iterator[None]:
    """Prefix a BadInput with what it is about.

    >>> with error_context("labels.csv"):
    ...     raise BadInput("line 3 has no client")
    Traceback (most recent call last):
    fedraw.errors.BadInput: labels.csv: line 3 has no client
    """
    try:
        yield
    except BadInput as problem:
        raise BadInput(f"{subject}: {problem}") from None


def user_traceback(error: BaseException) -> str:
    """Return the traceback of an error in a user's function, without the frame that called it."""
    own = error.__traceback__.tb_next if error.__traceback__ else None
    return "".join(traceback.format_exception(type(error), error, own)).rstrip()
