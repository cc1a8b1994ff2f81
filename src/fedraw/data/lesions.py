"""Reads HAM10000 and ISIC-2019: photographs of skin lesions, and tables of their diagnoses.

Tschandl, Rosendahl, Kittler: The HAM10000 dataset. Scientific Data 5, 2018.
ISIC-2019 joins it with BCN_20000 (Combalia et al., 2019) and MSK (Codella et al., 2018).
"""

from __future__ import annotations

import csv
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from fedraw.core.text import several
from fedraw.core.types import Ints
from fedraw.data.cache import Draft, Facts, Stamp, fingerprint, stamps
from fedraw.data.dataset import count_labels
from fedraw.data.releases import (
    HAM10000,
    ISIC2019,
    CheckReport,
    Progress,
    count_notes,
    search_places,
)
from fedraw.errors import BadInput, MissingExtra, nearest

# Increased whenever the same files are read differently, so that cached arrays are written again.
_READER_VERSION = 1
LESION_IDS = "ISIC_2019_Training_Metadata.csv"

_TRUTH = "ISIC_2019_Training_GroundTruth.csv"
_HAM_TABLES = ("HAM10000_metadata.csv", "HAM10000_metadata", "HAM10000_metadata.tab")
_HAM_FOLDERS = ("images", "HAM10000_images_part_1", "HAM10000_images_part_2", ".")
_ISIC_FOLDERS = ("ISIC_2019_Training_Input", ".")
_ISIC_COLUMNS = {name.upper(): number for number, name in enumerate(ISIC2019.label_names)}

Row = dict[str, str]
Pixels = npt.NDArray[np.uint8]
# Width and height.
Extent = tuple[int, int]
Result = TypeVar("Result")

_BLOCK = 256
_BLOCK_BYTES = 64 * 2**20


@dataclass(frozen=True, eq=False)
class LesionTable:
    """The images of a release, their labels, and the number of the lesion that each shows.

    `groups` is None if the lesions are not known.
    """

    images: tuple[str, ...]
    labels: Ints
    groups: Ints | None


@dataclass(frozen=True)
class Photograph:
    """An image file, and its stamp for the cache."""

    file: Path
    stamp: Stamp


@dataclass(frozen=True)
class Lesions:
    """A release found on disk: its tables, and the folders of its images."""

    name: str
    base: Path
    label_names: tuple[str, ...]
    tables: tuple[Path, ...]
    folders: tuple[str, ...]
    read_tables: Callable[[], LesionTable]

    def facts(self, size: int) -> Facts:
        """Return everything that the decoded images depend on."""
        require_pillow()
        file_stamps = stamps(self.tables, self.base)
        file_stamps += [photo.stamp for photo in self._photographs().values()]
        return {"reader": _READER_VERSION, "size": size, "files": fingerprint(file_stamps)}

    def write(self, draft: Draft, size: int, progress: Progress | None) -> Facts:
        """Write `images` of size x size, `labels` and, if known, lesions as `groups`."""
        table = self.read_tables()
        files, missing = self._locate(table.images)
        if missing:
            raise BadInput(
                f"{self.tables[0]} lists {several(missing, 3)}, not found in {self._searched}; get "
                f"the images with 'fedraw data fetch {self.name}'"
            )
        extents: Counter[Extent] = Counter()
        draft.write("images", self._decode(files, size, extents, progress))
        draft.write("labels", [table.labels])
        if table.groups is not None:
            draft.write("groups", [table.groups])
        return {"label_names": self.label_names, "notes": self._notes(table.labels, extents)}

    def check(self, progress: Progress | None) -> CheckReport:
        """Decode every image in full, and continue after a damaged one."""
        require_pillow()
        try:
            table = self.read_tables()
        except BadInput as problem:
            files = [photo.file for photo in self._photographs().values()]
            found = self._check_images(files, progress)
            return CheckReport(self.name, {"all": {}}, (), (str(problem), *_errors(found)))
        files, missing = self._locate(table.images)
        found = self._check_images(files, progress)
        whole = {file.stem for file, result in found if not isinstance(result, str)}
        labels = table.labels[[image in whole for image in table.images]]
        extents = Counter(result for _, result in found if not isinstance(result, str))
        return CheckReport(
            self.name,
            {"all": count_labels(labels, self.label_names)},
            self._notes(labels, extents),
            (*self._missing_images(missing, files), *_errors(found)),
        )

    def _photographs(self) -> dict[str, Photograph]:
        return _find_photographs(self.base, self.folders)

    def _locate(self, images: tuple[str, ...]) -> tuple[list[Path], list[str]]:
        there = self._photographs()
        files = [there[image].file for image in images if image in there]
        return files, [f"{image}.jpg" for image in images if image not in there]

    @property
    def _searched(self) -> str:
        return search_places(self.base, self.folders)

    def _missing_images(self, missing: list[str], there: list[Path]) -> list[str]:
        if missing and not there:
            return [
                f"none of the {len(missing):,} images of {self.tables[0]} is in {self._searched}"
            ]
        return [f"{name}: listed in {self.tables[0]} but missing" for name in missing]

    def _decode(
        self, files: list[Path], size: int, extents: Counter[Extent], progress: Progress | None
    ) -> Iterator[Pixels]:
        work = partial(self._thumbnail, size=size)
        for block in in_blocks(work, files, f"decoding {self.name}", progress, block_size(size)):
            extents.update(extent for _, extent in block)
            yield np.stack([pixels for pixels, _ in block])

    def _thumbnail(self, file: Path, size: int) -> tuple[Pixels, Extent]:
        try:
            return thumbnail(file, size)
        except Exception as error:  # a damaged image may raise anything
            raise BadInput(
                f"{file}: does not decode ({failure_reason(error)}); replace it; 'fedraw data "
                f"check {self.name}' lists all damaged files"
            ) from None

    def _check_images(
        self, files: list[Path], progress: Progress | None
    ) -> list[tuple[Path, Extent | str]]:
        blocks = in_blocks(_extent_or_error, files, f"checking {self.name}", progress)
        return [(file, r) for file, r in zip(files, (r for b in blocks for r in b), strict=True)]

    def _notes(self, labels: Ints, extents: Counter[Extent]) -> tuple[str, ...]:
        counts = {"all": count_labels(labels, self.label_names)}
        return (*count_notes(self.name, counts), *extent_notes(self.name, extents))


def find_ham10000(root: Path) -> Lesions:
    """Find HAM10000 in the data root or its folder HAM10000, with images in one or two folders."""
    table = _find_table(root, "ham10000", "HAM10000", _HAM_TABLES)
    read = partial(read_ham10000, table)
    return Lesions("ham10000", table.parent, HAM10000.label_names, (table,), _HAM_FOLDERS, read)


def find_isic2019(root: Path) -> Lesions:
    """Find ISIC-2019 in the data root or its folder ISIC_2019; the lesion table is optional."""
    truth = _find_table(root, "isic2019", "ISIC_2019", (_TRUTH,))
    lesions = truth.with_name(LESION_IDS)
    tables = (truth, lesions) if lesions.is_file() else (truth,)
    read = partial(read_isic2019, truth, lesions if lesions.is_file() else None)
    return Lesions("isic2019", truth.parent, ISIC2019.label_names, tables, _ISIC_FOLDERS, read)


def read_ham10000(path: Path) -> LesionTable:
    """Read the columns `lesion_id`, `image_id` and `dx`, separated by commas or tabs."""
    rows = _rows(path, "image_id", ("lesion_id", "image_id", "dx"))
    names = HAM10000.label_names
    for image, row in rows.items():
        if row["dx"] not in names:
            raise BadInput(
                f"{path}: image {image} has the unknown dx {row['dx']!r}; "
                f"{nearest(row['dx'], names)}"
            )
    labels = np.array([names.index(row["dx"]) for row in rows.values()])
    return LesionTable(tuple(rows), labels, _groups(rows, rows))


def read_isic2019(truth: Path, metadata: Path | None) -> LesionTable:
    """Read a column of 0.0 or 1.0 for each class, and the lesion of each image from `metadata`."""
    rows = _rows(truth, "image", ("image", *_ISIC_COLUMNS))
    labels = np.array([_one_hot(truth, image, row) for image, row in rows.items()])
    if metadata is None:
        return LesionTable(tuple(rows), labels, None)
    lesions = _rows(metadata, "image", ("image", "lesion_id"))
    return LesionTable(tuple(rows), labels, _groups(rows, lesions))


def _extent_or_error(file: Path) -> Extent | str:
    try:
        return decode_fully(file)
    except Exception as error:  # a damaged image may raise anything
        return f"{file}: does not decode ({failure_reason(error)})"


def _errors(found: list[tuple[Path, Extent | str]]) -> list[str]:
    return [result for _, result in found if isinstance(result, str)]


def _find_table(root: Path, name: str, folder: str, tables: Sequence[str]) -> Path:
    """Return the first of the tables that exists in the folder or in the data root itself."""
    candidates = [root / below / table for below in (folder, ".") for table in tables]
    found = next((table for table in candidates if table.is_file()), None)
    if found is None:
        raise BadInput(
            f"dataset {name!r} was not found: no {' or '.join(tables)} in "
            f"{search_places(root, (folder, '.'))}; get it with 'fedraw data fetch {name}', or "
            "give another data root with data_root=..."
        )
    return found


def _find_photographs(base: Path, folders: Sequence[str]) -> dict[str, Photograph]:
    """Find each ISIC_*.jpg by its stem; of two with the same stem, the first folder's is used."""
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
    # One pass over the folder returns names, sizes and times, even of tens of thousands of files.
    with os.scandir(base / folder) as entries:
        for entry in entries:
            if entry.name.startswith("ISIC_") and entry.name.endswith(".jpg"):
                if not entry.is_file():  # a broken link
                    continue
                state, name = entry.stat(), f"{folder}/{entry.name}"
                stamp = (name, state.st_size, state.st_mtime_ns)
                yield Photograph(base / folder / entry.name, stamp)


def _one_hot(path: Path, image: str, row: Row) -> int:
    columns = [name for name in (*_ISIC_COLUMNS, "UNK") if name in row]
    chosen = [name for name in columns if _flag(path, image, name, row[name])]
    if len(chosen) != 1 or chosen == ["UNK"]:
        raise BadInput(
            f"{path}: image {image} has class {' and '.join(chosen) or 'none'}; give it exactly "
            f"one of {', '.join(_ISIC_COLUMNS)}"
        )
    return _ISIC_COLUMNS[chosen[0]]


def _flag(path: Path, image: str, column: str, text: str) -> bool:
    try:
        return {0.0: False, 1.0: True}[float(text)]
    except (ValueError, KeyError):
        raise BadInput(f"{path}: image {image} has {column} = {text!r}; write 0.0 or 1.0") from None


def _groups(images: Sequence[str] | dict[str, Row], lesions: dict[str, Row]) -> Ints:
    """Number the lesions; an image without a lesion id is a group of its own."""
    known = [lesions.get(image, {}).get("lesion_id", "") for image in images]
    names = [
        (1, lesion) if lesion else (0, image) for lesion, image in zip(known, images, strict=True)
    ]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return np.array([numbers[name] for name in names])


def _rows(path: Path, key: str, columns: Sequence[str]) -> dict[str, Row]:
    """Read the rows of a table by their key; raise BadInput if a key is missing or repeated."""
    rows: dict[str, Row] = {}
    for line, row in _lines(path, columns):
        if not row[key] or row[key] in rows:
            wrong = f"{row[key]} is listed twice" if row[key] else f"no {key}"
            raise BadInput(f"{path}: line {line}: {wrong}; keep one row for each image")
        rows[row[key]] = row
    if not rows:
        raise BadInput(f"{path}: lists no images; download it again")
    return rows


def _lines(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, Row]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            tabs = "\t" in file.readline()
            file.seek(0)
            reader = csv.DictReader(file, restval="", delimiter="\t" if tabs else ",")
            _check_columns(path, reader.fieldnames or (), columns)
            yield from ((reader.line_num, row) for row in reader)
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}; make the file readable") from None
    except UnicodeDecodeError as error:
        raise BadInput(f"{path}: is not UTF-8 ({error}); save it as UTF-8") from None
    except csv.Error as error:
        raise BadInput(f"{path}: is not a table ({error}); download it again") from None


def _check_columns(path: Path, found: Sequence[str], wanted: Sequence[str]) -> None:
    for column in wanted:
        if column not in found:
            has = ", ".join(found) or "nothing"
            raise BadInput(f"{path}: column {column!r} is missing (found {has}); add it")


# Photographs are decoded in threads, in order, with bounded memory.


def require_pillow() -> None:
    """Raise MissingExtra if Pillow is not installed."""
    try:
        import PIL  # noqa: F401
    except ImportError as error:
        raise MissingExtra("pillow", "data") from error


def thumbnail(path: Path, size: int) -> tuple[Pixels, Extent]:
    """Decode an image as RGB of shape (3, size, size), and return its size in the file as well.

    The aspect ratio is not kept, and a rotation in the EXIF data is ignored. To save time, the
    image is decoded at reduced resolution, but at no less than twice the requested size.
    """
    from PIL import Image

    with Image.open(path) as image:
        extent = image.size
        image.draft("RGB", (2 * size, 2 * size))
        small = image.convert("RGB").resize((size, size), Image.Resampling.BICUBIC)
    return np.asarray(small).transpose(2, 0, 1), extent


def decode_fully(path: Path) -> Extent:
    """Decode every pixel of an image and return its size."""
    from PIL import Image

    with Image.open(path) as image:
        image.load()
        return image.size


def failure_reason(error: Exception) -> str:
    """Return why an image could not be decoded, without the path that Pillow repeats."""
    from PIL import UnidentifiedImageError

    return "not an image" if isinstance(error, UnidentifiedImageError) else str(error)


def in_blocks(
    work: Callable[[Path], Result],
    files: Sequence[Path],
    activity: str,
    progress: Progress | None,
    block: int = _BLOCK,
) -> Iterator[list[Result]]:
    """Apply `work` to the files in threads, and yield the results block by block, in order.

    Pillow releases the interpreter lock while it decodes, so threads run in parallel. `activity` is
    the description for `progress`.
    """
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for start in range(0, len(files), block):
            if progress is not None:
                progress(activity, start, len(files))
            yield list(pool.map(work, files[start : start + block]))
    if progress is not None:
        progress(activity, len(files), len(files))


def block_size(size: int) -> int:
    """Return how many thumbnails of this size fit into the memory of a block.

    >>> block_size(64), block_size(1024)
    (256, 21)
    """
    return min(_BLOCK, max(1, _BLOCK_BYTES // (3 * size * size)))


def extent_notes(name: str, extents: Counter[Extent]) -> tuple[str, ...]:
    """Describe how the sizes of the images differ from the official ones; empty if they agree.

    >>> extent_notes("ham10000", Counter([(200, 150), (200, 150)]))
    ('ham10000: images of 200x150, official 600x450',)
    """
    if not extents:
        return ()
    if name == "isic2019":
        largest = max(extents, key=max)
        too_small = max(largest) < 1024
        note = f"{name}: images of at most {_size_text(largest)}, official up to 1024x1024"
        return (note,) if too_small else ()
    other = [extent for extent in extents if extent != (600, 450)]
    if len(extents) == 1 and other:
        return (f"{name}: images of {_size_text(other[0])}, official 600x450",)
    count = sum(extents[extent] for extent in other)
    images = "1 image" if count == 1 else f"{count:,} images"
    return (f"{name}: {images} not of the official 600x450",) if other else ()


def _size_text(extent: Extent) -> str:
    return f"{extent[0]}x{extent[1]}"
