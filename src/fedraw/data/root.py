"""The data root: the folder below which the public data sets lie, each in its own layout."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from fedraw.errors import BadInput

# A source file as a cache tells it from a later one: its name, its bytes, when it was written.
Stamp = tuple[str, int, int]


def data_root(given: Path | None = None, name: str = "NAME") -> Path:
    """The folder that was given, or else the one that FEDRAW_DATA names."""
    named = os.environ.get("FEDRAW_DATA")
    if given is None and not named:
        raise BadInput(
            "no data root is known; give --data FOLDER or set FEDRAW_DATA "
            f"('fedraw data fetch {name}' puts files there)"
        )
    root = Path(named or "") if given is None else Path(given)
    if not root.is_dir():
        raise BadInput(
            f"the data root {root} is not a folder; give another with --data or FEDRAW_DATA, "
            f"or fill it with 'fedraw data fetch {name}'"
        )
    return root


def stamps(files: Iterable[Path], base: Path) -> list[Stamp]:
    """What a cache remembers of files, by names below `base`."""
    return [_stamp(file, base) for file in files]


def fingerprint(files: Iterable[Stamp]) -> str:
    """Changes when any of the files does."""
    return hashlib.sha256(json.dumps(sorted(files)).encode()).hexdigest()


def places(root: Path, folders: Iterable[str]) -> str:
    """Where something was looked for, as a message says it.

    >>> places(Path("data"), ["EMNIST/raw", "."])
    'data/EMNIST/raw, data'
    """
    return ", ".join(str(root / folder) for folder in folders)


def several(names: Sequence[str], most: int = 6) -> str:
    """So many names that one still reads them.

    >>> several(["a", "b", "c"], most=2)
    'a, b and 1 more'
    """
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest:,} more" if rest > 0 else "")


def _stamp(file: Path, base: Path) -> Stamp:
    try:
        state = file.stat()
    except OSError as error:
        raise BadInput(f"{file}: {error.strerror}; make the file readable") from None
    return file.relative_to(base).as_posix(), state.st_size, state.st_mtime_ns
