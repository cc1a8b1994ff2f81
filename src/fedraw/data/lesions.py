"""HAM10000 and ISIC-2019: photographs of skin lesions in folders, and a table of what they show.

Tschandl, Rosendahl, Kittler: The HAM10000 dataset. Scientific Data 5, 2018.
ISIC-2019 joins it with BCN_20000 (Combalia et al., 2019) and MSK (Codella et al., 2018).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from fedraw.core.types import Ints
from fedraw.data.cache import Draft, Facts
from fedraw.data.histograms import HAM10000, ISIC2019
from fedraw.data.lesion_folders import Photograph, find_photographs, find_table
from fedraw.data.lesion_tables import LesionTable, read_ham10000, read_isic2019
from fedraw.data.official import Checked, count_notes, tally
from fedraw.data.photographs import (
    Extent,
    Pixels,
    block_for,
    decode_fully,
    extent_notes,
    in_blocks,
    need_pillow,
    reason,
    thumbnail,
)
from fedraw.data.progress import Progress
from fedraw.data.root import fingerprint, places, several, stamps
from fedraw.errors import BadInput

# One more whenever the same files come to be read in another way, so that caches are made anew.
READER = 1
LESION_IDS = "ISIC_2019_Training_Metadata.csv"

_TRUTH = "ISIC_2019_Training_GroundTruth.csv"
_HAM_TABLES = ("HAM10000_metadata.csv", "HAM10000_metadata", "HAM10000_metadata.tab")
_HAM_FOLDERS = ("images", "HAM10000_images_part_1", "HAM10000_images_part_2", ".")
_ISIC_FOLDERS = ("ISIC_2019_Training_Input", ".")


@dataclass(frozen=True)
class Lesions:
    """A release found on disk: its tables, and where each image lies."""

    name: str
    base: Path
    label_names: tuple[str, ...]
    tables: tuple[Path, ...]
    folders: tuple[str, ...]
    read_tables: Callable[[], LesionTable]

    def facts(self, size: int) -> Facts:
        """What the decoded images depend on."""
        need_pillow()
        marks = stamps(self.tables, self.base)
        marks += [photo.stamp for photo in self._photographs().values()]
        return {"reader": READER, "size": size, "files": fingerprint(marks)}

    def write(self, draft: Draft, size: int, progress: Progress | None) -> Facts:
        """Images of size x size, labels and, if they are known, lesions as groups."""
        table = self.read_tables()
        files, missing = self._located(table.images)
        if missing:
            raise BadInput(
                f"{self.tables[0]} lists {several(missing, 3)}, not found in {self._places}; get "
                f"the images with 'fedraw data fetch {self.name}'"
            )
        extents: Counter[Extent] = Counter()
        draft.write("images", self._decode(files, size, extents, progress))
        draft.write("labels", [table.labels])
        if table.groups is not None:
            draft.write("groups", [table.groups])
        return {"label_names": self.label_names, "notes": self._notes(table.labels, extents)}

    def check(self, progress: Progress | None) -> Checked:
        """Decode every image in full, and go on after a damaged one."""
        need_pillow()
        try:
            table = self.read_tables()
        except BadInput as problem:
            files = [photo.file for photo in self._photographs().values()]
            found = self._examine(files, progress)
            return Checked(self.name, {"all": {}}, (), (str(problem), *_reasons(found)))
        files, missing = self._located(table.images)
        found = self._examine(files, progress)
        whole = {file.stem for file, result in found if not isinstance(result, str)}
        labels = table.labels[[image in whole for image in table.images]]
        extents = Counter(result for _, result in found if not isinstance(result, str))
        return Checked(
            self.name,
            {"all": tally(labels, self.label_names)},
            self._notes(labels, extents),
            (*self._lost(missing, files), *_reasons(found)),
        )

    def _photographs(self) -> dict[str, Photograph]:
        return find_photographs(self.base, self.folders)

    def _located(self, images: tuple[str, ...]) -> tuple[list[Path], list[str]]:
        there = self._photographs()
        files = [there[image].file for image in images if image in there]
        return files, [f"{image}.jpg" for image in images if image not in there]

    @property
    def _places(self) -> str:
        return places(self.base, self.folders)

    def _lost(self, missing: list[str], there: list[Path]) -> list[str]:
        if missing and not there:
            return [f"none of the {len(missing):,} images of {self.tables[0]} is in {self._places}"]
        return [f"{name}: listed in {self.tables[0]} and not there" for name in missing]

    def _decode(
        self, files: list[Path], size: int, extents: Counter[Extent], progress: Progress | None
    ) -> Iterator[Pixels]:
        work = partial(self._thumbnail, size=size)
        for block in in_blocks(work, files, f"decoding {self.name}", progress, block_for(size)):
            extents.update(extent for _, extent in block)
            yield np.stack([pixels for pixels, _ in block])

    def _thumbnail(self, file: Path, size: int) -> tuple[Pixels, Extent]:
        try:
            return thumbnail(file, size)
        except Exception as error:  # a damaged image fails in any way there is
            raise BadInput(
                f"{file}: does not decode ({reason(error)}); replace it; 'fedraw data check "
                f"{self.name}' lists all damaged files"
            ) from None

    def _examine(
        self, files: list[Path], progress: Progress | None
    ) -> list[tuple[Path, Extent | str]]:
        blocks = in_blocks(_extent_or_reason, files, f"checking {self.name}", progress)
        return [(file, r) for file, r in zip(files, (r for b in blocks for r in b), strict=True)]

    def _notes(self, labels: Ints, extents: Counter[Extent]) -> tuple[str, ...]:
        counts = {"all": tally(labels, self.label_names)}
        return (*count_notes(self.name, counts), *extent_notes(self.name, extents))


def find_ham10000(root: Path) -> Lesions:
    """In HAM10000 below the data root or in the root; images in one folder or in two."""
    table = find_table(root, "ham10000", "HAM10000", _HAM_TABLES)
    read = partial(read_ham10000, table)
    return Lesions("ham10000", table.parent, tuple(HAM10000), (table,), _HAM_FOLDERS, read)


def find_isic2019(root: Path) -> Lesions:
    """In ISIC_2019 below the data root or in the root; the table of lesions may be absent."""
    truth = find_table(root, "isic2019", "ISIC_2019", (_TRUTH,))
    lesions = truth.with_name(LESION_IDS)
    tables = (truth, lesions) if lesions.is_file() else (truth,)
    read = partial(read_isic2019, truth, lesions if lesions.is_file() else None)
    return Lesions("isic2019", truth.parent, tuple(ISIC2019), tables, _ISIC_FOLDERS, read)


def _extent_or_reason(file: Path) -> Extent | str:
    try:
        return decode_fully(file)
    except Exception as error:  # a damaged image fails in any way there is
        return f"{file}: does not decode ({reason(error)})"


def _reasons(found: list[tuple[Path, Extent | str]]) -> list[str]:
    return [result for _, result in found if isinstance(result, str)]
