"""A release that keeps its images in a few large files, split into train and test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedraw.core.types import Ints
from fedraw.data.cache import Draft, Facts
from fedraw.data.official import Checked, count_notes, tally
from fedraw.data.progress import Progress
from fedraw.data.root import fingerprint, several, stamps
from fedraw.errors import BadInput

# One more whenever the same files come to be read in another way, so that caches are made anew.
READER = 1
PARTS = ("train", "test")

Pixels = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Batch:
    """Images with their labels, in one file or in two that belong together."""

    part: str
    files: tuple[Path, ...]
    # What a file holds, and how the content of the files becomes images and labels.
    read_file: Callable[[Path], Any]
    join: Callable[..., tuple[Pixels, Ints]]

    def read(self) -> tuple[Pixels, Ints]:
        return self.join(*(self.read_file(file) for file in self.files))


@dataclass(frozen=True)
class Batches:
    """The batches of a release, and where they were looked for."""

    name: str
    root: Path
    label_names: tuple[str, ...]
    batches: tuple[Batch, ...]
    looked_in: str

    @property
    def files(self) -> list[Path]:
        return [file for batch in self.batches for file in batch.files]

    def facts(self) -> Facts:
        """What the decoded images depend on; refuses what is incomplete."""
        self._refuse_missing(at_most=0)
        return {"reader": READER, "files": fingerprint(stamps(self.files, self.root))}

    def write(self, draft: Draft, progress: Progress | None) -> Facts:
        """Images, labels and parts, as numbers into PARTS."""
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
        counts = {p: tally(found[part == i], self.label_names) for i, p in enumerate(PARTS)}
        return {"label_names": self.label_names, "notes": count_notes(self.name, counts)}

    def check(self, progress: Progress | None) -> Checked:
        """Read every file, and go on after a damaged one."""
        self._refuse_missing(at_most=len(self.files) - 1)
        damaged: list[str] = []
        counts = {part: dict.fromkeys(self.label_names, 0) for part in PARTS}
        for batch, _, numbers in self._read("checking", progress, damaged):
            for label, n in tally(numbers, self.label_names).items():
                counts[batch.part][label] += n
        return Checked(self.name, counts, count_notes(self.name, counts), tuple(damaged))

    def _read(
        self, doing: str, progress: Progress | None, damaged: list[str] | None = None
    ) -> Iterator[tuple[Batch, Pixels, Ints]]:
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
                f"dataset {self.name!r} lacks {several([file.name for file in missing])}; looked "
                f"in {self.looked_in}; get it with 'fedraw data fetch {self.name}', or give "
                "another data root with --data"
            )


def _problems(batch: Batch) -> list[str]:
    """What is wrong with each file by itself."""
    problems = []
    for file in batch.files:
        try:
            batch.read_file(file)
        except BadInput as problem:
            problems.append(str(problem))
    return problems


def check_labels(file: Path, labels: Ints, classes: int) -> Ints:
    """The labels, if each is one of the classes."""
    outside = (labels < 0) | (labels >= classes)
    if outside.any():
        row = int(outside.argmax())
        raise BadInput(
            f"{file}: image {row} has label {labels[row]}, and labels go from 0 to {classes - 1}; "
            "download it again"
        )
    return labels
