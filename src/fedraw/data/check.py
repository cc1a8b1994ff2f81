"""Reads a public data set from end to end and tells what is there and what is damaged."""

from __future__ import annotations

from pathlib import Path

from fedraw.data.official import Checked
from fedraw.data.progress import Progress
from fedraw.data.public import BATCHES, LESIONS, PUBLIC
from fedraw.data.root import data_root
from fedraw.errors import BadInput, nearest

__all__ = ["Checked", "check"]


def check(name: str, root: Path | None = None, progress: Progress | None = None) -> Checked:
    """Read every file afresh, decode every image in full, and list each one that cannot be used.

    A release that is not there at all is BadInput. JPEG has no checksum: bytes that were altered
    and still decode are not found here.
    """
    if name not in PUBLIC:
        raise BadInput(f"no public dataset {name!r} can be checked; {nearest(name, PUBLIC)}")
    place = data_root(root, name)
    release = BATCHES[name](place) if name in BATCHES else LESIONS[name](place)
    return release.check(progress)
