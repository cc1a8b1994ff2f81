"""Finds the tables and photographs of the skin lesion archives, however they were unpacked."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedraw.data.root import Stamp, places
from fedraw.errors import BadInput


@dataclass(frozen=True)
class Photograph:
    file: Path
    stamp: Stamp


def find_table(root: Path, name: str, folder: str, tables: Sequence[str]) -> Path:
    """The first of the tables that is in the folder below the data root, or in the root itself."""
    candidates = [root / below / table for below in (folder, ".") for table in tables]
    found = next((table for table in candidates if table.is_file()), None)
    if found is None:
        raise BadInput(
            f"dataset {name!r} is not there: no {' or '.join(tables)} in "
            f"{places(root, (folder, '.'))}; get it with 'fedraw data fetch {name}', or give "
            "another data root with --data"
        )
    return found


def find_photographs(base: Path, folders: Sequence[str]) -> dict[str, Photograph]:
    """Each ISIC_*.jpg by its name without the end; of two alike, that of the first folder."""
    found: dict[str, Photograph] = {}
    for folder in reversed(folders):
        try:
            found |= {photo.file.stem: photo for photo in _scan(base, folder)}
        except FileNotFoundError:
            continue
        except OSError as error:
            raise BadInput(f"{base / folder}: {error.strerror}; make it readable") from None
    return found


def _scan(base: Path, folder: str) -> Iterator[Photograph]:
    # One pass tells names, sizes and times: of tens of thousands of files that takes a moment.
    with os.scandir(base / folder) as entries:
        for entry in entries:
            if entry.name.startswith("ISIC_") and entry.name.endswith(".jpg"):
                if not entry.is_file():  # a link to nothing
                    continue
                state, name = entry.stat(), f"{folder}/{entry.name}"
                stamp = (name, state.st_size, state.st_mtime_ns)
                yield Photograph(base / folder / entry.name, stamp)
