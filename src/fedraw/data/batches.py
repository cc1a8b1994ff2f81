"""Reads a release that stores its images in a few large files, split into train and test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedraw.core.text import several
from fedraw.core.types import Ints
from fedraw.data.cache import Draft, Facts, fingerprint, stamps
from fedraw.data.dataset import count_labels
from fedraw.data.releases import CheckReport, count_notes
from fedraw.data.root import Progress
from fedraw.errors import BadInput

# Increased whenever the same files are read differently, so that cached arrays are written again.
_READER_VERSION = 1
PARTS = ("train", "test")

Pixels = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class ReleaseBatch:
    """Images with their labels, in one file or in two files that belong together.

    `read_file` reads one of the files, and `join` turns their contents into images and labels.
    """

    part: str
    files: tuple[Path, ...]
    read_file: Callable[[Path], Any]
    join: Callable[..., tuple[Pixels, Ints]]

    def read(self) -> tuple[Pixels, Ints]:
        """Read the images and labels."""
        return self.join(*(self.read_file(file) for file in self.files))


@dataclass(frozen=True)
class BatchedRelease:
    """The batches of a release; `searched` lists the folders that were searched for them."""

    name: str
    root: Path
    label_names: tuple[str, ...]
    batches: tuple[ReleaseBatch, ...]
    searched: str

    @property
    def files(self) -> list[Path]:
        """All files of the release, whether or not they exist."""
        return [file for batch in self.batches for file in batch.files]

    def facts(self) -> Facts:
        """Return what the decoded images depend on; raise BadInput if a file is missing."""
        self._refuse_missing(at_most=0)
        return {"reader": _READER_VERSION, "files": fingerprint(stamps(self.files, self.root))}

    def write(self, draft: Draft, progress: Progress | None) -> Facts:
        """Write the arrays `images`, `labels` and `part` (an index into PARTS) to the cache."""
        labels: list[Ints] = []
        parts: list[Ints] = []

        def images() -> Iterator[Pixels]:
            for batch, pixels, numbers in self._read("decoding", progress):
                labels.append(numbers)
                parts.append(np.full(len(numbers), PARTS.index(batch.part)))
                yield pixels

        draft.write("images", images())
        draft.write("labels", labels)
        draft.write("part", parts)
        found, part = np.concatenate(labels), np.concatenate(parts)
        counts = {p: count_labels(found[part == i], self.label_names) for i, p in enumerate(PARTS)}
        return {"label_names": self.label_names, "notes": count_notes(self.name, counts)}

    def check(self, progress: Progress | None) -> CheckReport:
        """Read every file, and continue after a damaged one."""
        self._refuse_missing(at_most=len(self.files) - 1)
        damaged: list[str] = []
        counts = {part: dict.fromkeys(self.label_names, 0) for part in PARTS}
        for batch, _, numbers in self._read("checking", progress, damaged):
            for label, n in count_labels(numbers, self.label_names).items():
                counts[batch.part][label] += n
        return CheckReport(self.name, counts, count_notes(self.name, counts), tuple(damaged))

    def _read(
        self, doing: str, progress: Progress | None, damaged: list[str] | None = None
    ) -> Iterator[tuple[ReleaseBatch, Pixels, Ints]]:
        for done, batch in enumerate(self.batches, start=1):
            try:
                yield (batch, *batch.read())
            except BadInput as problem:
                if damaged is None:
                    raise
                damaged += _problems(batch) or [str(problem)]
            if progress is not None:
                progress(f"{doing} {self.name}", done, len(self.batches))

    def _refuse_missing(self, at_most: int) -> None:
        missing = [file for file in self.files if not file.is_file()]
        if len(missing) > at_most:
            raise BadInput(
                f"dataset {self.name!r} lacks {several([file.name for file in missing], 6)} in "
                f"{self.searched}; get it with 'fedraw data fetch {self.name}', or give another "
                "data root with --data"
            )


def _problems(batch: ReleaseBatch) -> list[str]:
    """Return what is wrong with each file by itself."""
    problems = []
    for file in batch.files:
        try:
            batch.read_file(file)
        except BadInput as problem:
            problems.append(str(problem))
    return problems


def check_labels(file: Path, labels: Ints, classes: int) -> Ints:
    """Return the labels, or raise BadInput if one of them is not a class."""
    outside = (labels < 0) | (labels >= classes)
    if outside.any():
        row = int(outside.argmax())
        raise BadInput(
            f"{file}: image {row} has label {labels[row]}, but labels go from 0 to {classes - 1}; "
            "download it again"
        )
    return labels
