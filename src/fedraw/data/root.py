"""The data root: the folder that contains the public datasets, each in its own layout."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from fedraw.errors import BadInput

# Called during long work with what is being done, how much of it is done, and the total.
Progress = Callable[[str, int, int], None]


def data_root(given: Path | None = None, name: str = "NAME") -> Path:
    """Return the given folder, or else the one that FEDRAW_DATA names; it must exist.

    `name` is the dataset that the error message suggests to fetch.
    """
    from_environment = os.environ.get("FEDRAW_DATA")
    if given is None and not from_environment:
        raise BadInput(
            "no data root is set; give --data FOLDER or set FEDRAW_DATA "
            f"('fedraw data fetch {name}' downloads files there)"
        )
    root = Path(from_environment or "") if given is None else Path(given)
    if not root.is_dir():
        raise BadInput(
            f"the data root {root} is not a folder; give another with --data or FEDRAW_DATA, "
            f"or create it with 'fedraw data fetch {name}'"
        )
    return root


def search_places(root: Path, folders: Iterable[str]) -> str:
    """List the folders in which something was searched, for an error message.

    >>> search_places(Path("data"), ["EMNIST/raw", "."])
    'data/EMNIST/raw, data'
    """
    return ", ".join(str(root / folder) for folder in folders)
