"""Reads releases whose samples have owners: plays by speaking role, flights by aircraft.

Each sample has values in one or more columns, such as its role and its play. A partition by one of
these columns makes a client of each value (`partition.kind = "column"`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedraw.core.text import several
from fedraw.core.types import Ints
from fedraw.data.cache import Draft, Entry, Facts, fingerprint, stamps
from fedraw.data.dataset import Dataset, Inputs, count_labels
from fedraw.data.partition import stratified_holdout
from fedraw.data.releases import CheckReport, Progress, Release, count_notes, missing
from fedraw.errors import BadInput

# Increased whenever the same files are read differently, so that cached arrays are written again.
_READER_VERSION = 1
_HELD_OUT = 0.2


class OwnedSamples(NamedTuple):
    """Samples, their labels, and for each column the value of each sample, as text."""

    inputs: npt.NDArray[Any]
    labels: Ints
    columns: Mapping[str, npt.NDArray[np.str_]]


@dataclass(frozen=True)
class NaturalRelease:
    """A release on disk; `read` turns one of its files into samples."""

    release: Release
    root: Path
    read: Callable[[Path], OwnedSamples]

    @property
    def files(self) -> list[Path]:
        """The files of the release, in the order of their names."""
        sources = self.release.sources
        return sorted(f for s in sources for f in (self.root / s.folder).glob(s.members))

    def facts(self) -> Facts:
        """Return all that the samples depend on; raise BadInput if a file is missing."""
        self._refuse_missing()
        return {"reader": _READER_VERSION, "files": fingerprint(stamps(self.files, self.root))}

    def write(self, draft: Draft, progress: Progress | None) -> Facts:
        """Write the arrays `inputs` and `labels`, and the number of each sample's column values."""
        parts = []
        for done, file in enumerate(self.files, start=1):
            parts.append(self.read(file))
            if progress is not None:
                progress(f"reading {self.release.name}", done, len(self.files))
        draft.write("inputs", [part.inputs for part in parts])
        draft.write("labels", [part.labels for part in parts])
        values = {}
        for column in parts[0].columns:
            found = np.concatenate([part.columns[column] for part in parts])
            names, numbers = np.unique(found, return_inverse=True)
            draft.write(column, [numbers.astype(np.int64)])
            values[column] = names.tolist()
        labels = np.concatenate([part.labels for part in parts])
        counts = {"all": count_labels(labels, self.release.label_names)}
        return {"columns": values, "notes": count_notes(self.release.name, counts)}

    def check(self, progress: Progress | None) -> CheckReport:
        """Read every file, and continue after a damaged one."""
        name, names = self.release.name, self.release.label_names
        if not self.files:
            self._refuse_missing()
        damaged = [str(problem) for problem in self._missing()]
        counts = np.zeros(len(names), np.int64)
        for done, file in enumerate(self.files, start=1):
            try:
                counts += np.bincount(self.read(file).labels, minlength=len(names))
            except BadInput as problem:
                damaged.append(str(problem))
            if progress is not None:
                progress(f"checking {name}", done, len(self.files))
        found = {"all": dict(zip(names, counts.tolist(), strict=True))}
        return CheckReport(name, found, count_notes(name, found), tuple(damaged))

    def _missing(self) -> list[str]:
        lacking = {(s.folder, s.members) for s in missing(self.release, self.root)}
        return [f"{self.root / folder}: not all files {members}" for folder, members in lacking]

    def _refuse_missing(self) -> None:
        problems = self._missing()
        if problems:
            name = self.release.name
            raise BadInput(
                f"dataset {name!r} is not complete: {several(problems)}; get it with 'fedraw data "
                f"fetch {name}', or give another data root with data_root=..."
            )


def dataset_of(release: Release, entry: Entry, rng: np.random.Generator) -> Dataset:
    """Make a dataset from a cached release, with a fifth of each label held out for testing."""
    labels, info = np.array(entry.array("labels")), entry.info
    kept, held = stratified_holdout(labels, _HELD_OUT, rng)
    inputs = Inputs(entry.array("inputs"), sha256=entry.sha256("inputs"))
    columns = {
        column: np.array(names)[entry.array(column)[kept]]
        for column, names in info["columns"].items()
    }
    return Dataset(
        release.name,
        inputs.select(kept),
        labels[kept],
        inputs.select(held),
        labels[held],
        release.label_names,
        tuple(info["notes"]),
        columns=columns,
    )
