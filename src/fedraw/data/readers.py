"""Reads the public releases from a data root: what all of them have in common.

A `Copy` is a release on disk. It names its files and reads each of them on its own. One loop reads
all files, either to decode a release into the cache or to check it.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedraw.core.text import several
from fedraw.core.types import Ints
from fedraw.data import cache
from fedraw.data.dataset import Array, Dataset, Inputs, count_labels
from fedraw.data.partition import grouped_holdout, random_holdout, stratified_holdout
from fedraw.data.releases import (
    LESION_IDS,
    CheckReport,
    Counts,
    Progress,
    Release,
    count_notes,
    extent_notes,
)
from fedraw.errors import BadInput

# Increased whenever the same files are read differently, so that cached arrays are written again.
_READER_VERSION = 2
# The paper holds out a fifth of the samples of a release that has no official test set.
HELD_OUT = 0.2
# Columns that only divide the samples into training and test: the official part, or the lesion.
PART, LESION = "part", "lesion"
HOLDOUTS = ("random", "grouped")


class Content(NamedTuple):
    """The content of a file.

    `columns` has the values of each sample, as text or whole numbers. `extents` has the width and
    height of the images in the file, if the inputs have another size.
    """

    inputs: Array
    labels: Ints
    columns: Mapping[str, Array] = {}
    extents: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Copy:
    """A copy of a release below a data root.

    `files` are all files that the samples depend on. `listed` returns the files to read, in order,
    and what is missing. `read` reads one of them, or raises BadInput with a line for each damaged
    file. Images are shrunk to `size` pixels per side, if it is given, and `block` files are read at
    the same time.
    """

    release: Release
    root: Path
    searched: str
    files: Sequence[Path]
    listed: Callable[[], tuple[Sequence[Path], Sequence[str]]]
    read: Callable[[Path], Content]
    size: int | None = None
    block: int = 1


def find_copy(
    release: Release,
    root: Path,
    folders: Sequence[str],
    wanted: Mapping[str, int],
    read: Callable[[Path], Content],
    units: str = "*",
) -> Copy:
    """Find a release in one of several folders, the most complete one.

    `wanted` has the number of files that match each pattern. Files that match `units` are read on
    their own; each of the others belongs to one of them.
    """
    places = [
        {
            pattern: sorted(filter(Path.is_file, (root / folder).glob(pattern)))[:count]
            for pattern, count in wanted.items()
        }
        for folder in folders
    ]
    found = max(places, key=lambda one: sum(map(len, one.values())))
    files = [file for matching in found.values() for file in matching]
    alone = [file for file in files if fnmatchcase(file.name, units)]
    lacks = [
        pattern if count == 1 else f"{count - len(found[pattern])} of {count} files {pattern}"
        for pattern, count in wanted.items()
        if len(found[pattern]) < count
    ]
    searched = search_places(root, folders)
    return Copy(release, root, searched, files, lambda: (alone, lacks), read)


def load_copy(
    copy: Copy, rng: np.random.Generator, holdout: str | None, progress: Progress | None
) -> Dataset:
    """Make a dataset from a copy of a release, whose decoded samples are cached.

    Without an official test set, a fifth of each label is held out. With `holdout` = 'random', a
    fifth of all samples is drawn instead, and with 'grouped' whole lesions.
    """
    release = copy.release
    files = cache.fingerprint(cache.stamps(copy.files, copy.root))
    facts = {"reader": _READER_VERSION, "size": copy.size, "files": files}
    entry = cache.entry(release.name, facts, partial(_write, copy, progress), progress)
    labels = np.array(entry.array("labels"))
    columns = {column: np.array(entry.array(column)) for column in entry.info["columns"]}
    for column, names in entry.info["columns"].items():
        columns[column] = np.array(names)[columns[column]] if names else columns[column]
    kept, held = _split(copy, labels, columns, holdout, rng)
    inputs = Inputs(entry.array("inputs"), sha256=entry.sha256("inputs"))
    none, notes = inputs.select([]), tuple(entry.info["notes"])
    names = {column: columns[column] for column in columns if column not in (PART, LESION)}
    whole = Dataset(
        release.name, inputs, labels, none, labels[:0], release.label_names, notes, columns=names
    )
    return whole.keep(kept, held=held)


def check_copy(copy: Copy, progress: Progress | None) -> CheckReport:
    """Read every file of a copy in full, and continue after a damaged one."""
    if not copy.files:
        refuse_incomplete(copy)
    name = copy.release.name
    try:
        files, lacks = copy.listed()
    except BadInput as problem:
        return CheckReport(name, {part: {} for part in copy.release.counts}, (), (str(problem),))
    damaged = [f"{lack}: missing in {copy.searched}" for lack in lacks]
    found = [_without_inputs(one) for one in _read(copy, files, "checking", progress, damaged)]
    counts, notes = _described(copy.release, found)
    return CheckReport(name, counts, notes, tuple(damaged))


def refuse_incomplete(copy: Copy) -> None:
    """Raise BadInput if files of the release are missing."""
    _, lacks = copy.listed()
    if lacks:
        name = copy.release.name
        raise BadInput(
            f"dataset {name!r} lacks {several(lacks, 3)} in {copy.searched}; get it with 'fedraw "
            f"data fetch {name}', or give another data root with data_root=..."
        )


def search_places(root: Path, folders: Sequence[str]) -> str:
    """List the folders that were searched, for an error message.

    >>> search_places(Path("data"), ["EMNIST/raw", "."])
    'data/EMNIST/raw, data'
    """
    return ", ".join(str(root / folder) for folder in folders)


def read_bytes(file: Path) -> bytes:
    """Return the content of a file, or raise BadInput."""
    try:
        return file.read_bytes()
    except OSError as error:
        raise BadInput(f"{file}: {error.strerror}; make the file readable") from None


def _write(copy: Copy, progress: Progress | None, draft: cache.Draft) -> cache.Facts:
    """Write inputs, labels and columns to the cache; texts of a column are numbered."""
    refuse_incomplete(copy)
    rest: list[Content] = []

    def inputs() -> Iterator[Array]:
        for samples in _read(copy, copy.listed()[0], "reading", progress):
            yield samples.inputs
            rest.append(_without_inputs(samples))

    draft.write("inputs", inputs())
    draft.write("labels", [samples.labels for samples in rest])
    names: dict[str, list[str]] = {}
    for column, values in _joined_columns(rest).items():
        is_text = values.dtype.kind == "U"
        found, numbers = np.unique(values, return_inverse=True) if is_text else ((), values)
        names[column] = list(map(str, found))
        draft.write(column, [numbers])
    return {"columns": names, "notes": _described(copy.release, rest)[1]}


def _read(
    copy: Copy,
    files: Sequence[Path],
    activity: str,
    progress: Progress | None,
    damaged: list[str] | None = None,
) -> Iterator[Content]:
    """Read files in threads, and yield their samples in order.

    With `damaged`, errors are appended to it instead of raised. Images are decoded without the
    interpreter lock, so threads run in parallel.
    """

    def attempt(file: Path) -> Content | BadInput:
        try:
            return copy.read(file)
        except BadInput as problem:
            if damaged is None:
                name = copy.release.name
                raise BadInput(
                    f"{problem}; 'fedraw data check {name}' lists all damaged files"
                ) from None
            return problem

    def tell(done: int) -> None:
        if progress is not None:
            progress(f"{activity} {copy.release.name}", done, len(files))

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for start in range(0, len(files), copy.block):
            tell(start)
            for found in pool.map(attempt, files[start : start + copy.block]):
                if isinstance(found, Content):
                    yield found
                elif damaged is not None:
                    damaged += str(found).splitlines()
    tell(len(files))


def _without_inputs(samples: Content) -> Content:
    return samples._replace(inputs=np.empty(0))


def _joined_columns(parts: Sequence[Content]) -> dict[str, Array]:
    columns = parts[0].columns if parts else ()
    return {column: np.concatenate([part.columns[column] for part in parts]) for column in columns}


def _described(release: Release, parts: Sequence[Content]) -> tuple[Counts, tuple[str, ...]]:
    """Return the counts of all samples, and notes on differences from the official release."""
    labels = np.concatenate([np.empty(0, np.int64), *(part.labels for part in parts)])
    of = _joined_columns(parts).get(PART, np.full(len(labels), "all"))
    counts = {
        part: count_labels(labels[of == part], release.label_names) for part in release.counts
    }
    extents = Counter(extent for part in parts for extent in part.extents)
    return counts, (*count_notes(release, counts), *extent_notes(release, extents))


def _split(
    copy: Copy,
    labels: Ints,
    columns: Mapping[str, Array],
    holdout: str | None,
    rng: np.random.Generator,
) -> tuple[Ints, Ints]:
    if PART in columns:
        is_test = columns[PART] == "test"
        return np.flatnonzero(~is_test), np.flatnonzero(is_test)
    if holdout is None:
        return stratified_holdout(labels, HELD_OUT, rng)
    if holdout == "random":
        return random_holdout(len(labels), HELD_OUT, rng)
    if LESION not in columns:
        raise BadInput(
            f"holdout = 'grouped' needs the lesion of each image, but {LESION_IDS} is not in "
            f"{copy.searched}; put it there, or use holdout = 'random'"
        )
    return grouped_holdout(columns[LESION], HELD_OUT, rng)
