"""Reads HAM10000 and ISIC-2019: photographs of skin lesions, and tables of their diagnoses.

Tschandl, Rosendahl, Kittler: The HAM10000 dataset. Scientific Data 5, 2018.
ISIC-2019 joins it with BCN_20000 (Combalia et al., 2019) and MSK (Codella et al., 2018).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from fedraw.data.readers import LESION, Content, Copy, search_places
from fedraw.data.releases import LESION_IDS, RELEASES, Release
from fedraw.errors import BadInput, MissingExtra, nearest
from fedraw.storage.tables import UnreadableCell, open_table, parse_name, quoted

HAM10000 = RELEASES["ham10000"]
ISIC2019 = RELEASES["isic2019"]

_TRUTH = "ISIC_2019_Training_GroundTruth.csv"
_HAM_TABLES = ("HAM10000_metadata.csv", "HAM10000_metadata", "HAM10000_metadata.tab")
_HAM_FOLDERS = ("images", "HAM10000_images_part_1", "HAM10000_images_part_2", ".")
_ISIC_FOLDERS = ("ISIC_2019_Training_Input", ".")
_FLAGS = {"0": False, "0.0": False, "1": True, "1.0": True}

# The label of each image, and the number of the lesion that it shows, if the lesions are known.
Diagnoses = Mapping[str, tuple[int, int | None]]

_BLOCK = 256
_BLOCK_BYTES = 64 * 2**20


class Photographs:
    """The photographs of a release and their diagnoses, which are read when they are needed."""

    def __init__(
        self,
        base: Path,
        folders: Sequence[str],
        size: int | None,
        read_diagnoses: Callable[[], Diagnoses],
    ) -> None:
        """Find each ISIC_*.jpg; of two with the same name, the one in the first folder is used."""
        self.files = {
            file.stem: file
            for folder in reversed(folders)
            for file in (base / folder).glob("ISIC_*.jpg")
            if file.is_file()  # not a broken link
        }
        self.size = size
        self.diagnoses = cache(read_diagnoses)

    def listed(self) -> tuple[list[Path], list[str]]:
        """Return the photographs that the table lists, in its order, and those that are missing."""
        images, there = self.diagnoses(), self.files
        lacks = [f"{image}.jpg" for image in images if image not in there]
        if len(lacks) == len(images):
            return [], [f"all {len(lacks):,} images"]
        return [there[image] for image in images if image in there], lacks

    def read(self, file: Path) -> Content:
        """Decode one photograph."""
        try:
            pixels, extent = decoded(file, self.size)
        except Exception as error:  # a damaged image may raise anything
            raise BadInput(f"{file}: does not decode ({_reason(error)}); replace it") from None
        label, lesion = self.diagnoses()[file.stem]
        columns = {} if lesion is None else {LESION: np.array([lesion])}
        return Content(pixels[None], np.array([label]), columns, (extent,))


def find_ham10000(root: Path, size: int | None) -> Copy:
    """Find HAM10000 in the data root or its folder HAM10000, with images in one or two folders.

    Images have shape (3, size, size). Without a size, they are decoded in full and not returned.
    """
    table = _find_table(root, "ham10000", "HAM10000", _HAM_TABLES)
    return _copy(HAM10000, root, (table,), _HAM_FOLDERS, size, partial(read_ham10000, table))


def find_isic2019(root: Path, size: int | None) -> Copy:
    """Find ISIC-2019 in the data root or its folder ISIC_2019; the lesion table is optional."""
    truth = _find_table(root, "isic2019", "ISIC_2019", (_TRUTH,))
    lesions = truth.with_name(LESION_IDS)
    tables = (truth, lesions) if lesions.is_file() else (truth,)
    return _copy(ISIC2019, root, tables, _ISIC_FOLDERS, size, partial(read_isic2019, *tables))


def read_ham10000(path: Path) -> Diagnoses:
    """Read the columns `lesion_id`, `image_id` and `dx`, separated by commas or tabs."""
    rows = _rows(path, {"image_id": parse_name, "dx": _dx, "lesion_id": str})
    labels = {image: label for image, (label, _) in rows.items()}
    return _with_lesions(labels, {image: lesion for image, (_, lesion) in rows.items()})


def read_isic2019(truth: Path, metadata: Path | None = None) -> Diagnoses:
    """Read a column of 0.0 or 1.0 for each class, and the lesion of each image from `metadata`."""
    classes = [name.upper() for name in ISIC2019.label_names]
    labels = {}
    for image, flags in _rows(truth, {"image": parse_name} | dict.fromkeys(classes, _flag)).items():
        if sum(flags) != 1:
            chosen = " and ".join(name for name, flag in zip(classes, flags, strict=True) if flag)
            raise BadInput(
                f"{truth}: image {image} has class {chosen or 'none'}; give it exactly one of "
                f"{', '.join(classes)}"
            )
        labels[image] = flags.index(True)
    if metadata is None:
        return {image: (label, None) for image, label in labels.items()}
    lesions = _rows(metadata, {"image": parse_name, "lesion_id": str})
    return _with_lesions(labels, {image: lesion for image, (lesion,) in lesions.items()})


def decoded(
    path: Path, size: int | None
) -> tuple[np.ndarray[Any, np.dtype[np.uint8]], tuple[int, int]]:
    """Decode an image as RGB of shape (3, size, size), and return its size in the file as well.

    The aspect ratio is not kept, and a rotation in the EXIF data is ignored. To save time, the
    image is decoded at reduced resolution, but at no less than twice the requested size. Without a
    size, every pixel is decoded and none is returned.
    """
    from PIL import Image

    with Image.open(path) as image:
        extent = image.size
        if size is None:
            image.load()
            return np.empty(0, np.uint8), extent
        image.draft("RGB", (2 * size, 2 * size))
        small = image.convert("RGB").resize((size, size), Image.Resampling.BICUBIC)
    return np.asarray(small).transpose(2, 0, 1), extent


def _copy(
    release: Release,
    root: Path,
    tables: Sequence[Path],
    folders: Sequence[str],
    size: int | None,
    read_diagnoses: Callable[[], Diagnoses],
) -> Copy:
    try:
        import PIL  # noqa: F401
    except ImportError as error:
        raise MissingExtra("pillow", "data") from error
    base = tables[0].parent
    own = Photographs(base, folders, size, read_diagnoses)
    files, searched = [*tables, *own.files.values()], search_places(base, folders)
    block = min(_BLOCK, max(1, _BLOCK_BYTES // (3 * (size or 1) ** 2)))
    return Copy(release, root, searched, files, own.listed, own.read, size, block)


def _reason(error: Exception) -> str:
    """Return why an image could not be decoded, without the path that Pillow repeats."""
    from PIL import UnidentifiedImageError

    return "not an image" if isinstance(error, UnidentifiedImageError) else str(error)


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


def _dx(text: str) -> int:
    names = HAM10000.label_names
    if text not in names:
        raise UnreadableCell(f"{quoted(text)} is no diagnosis; {nearest(text, names)}")
    return names.index(text)


def _flag(text: str) -> bool:
    if text not in _FLAGS:
        raise UnreadableCell(f"{quoted(text)} is not 0.0 or 1.0; write one of them")
    return _FLAGS[text]


def _with_lesions(labels: Mapping[str, int], lesions: Mapping[str, str]) -> Diagnoses:
    """Number the lesions; an image without a lesion id is a lesion of its own."""
    numbers: dict[tuple[str, str], int] = {}
    found = {}
    for image, label in labels.items():
        lesion = lesions.get(image, "")
        key = (lesion, "") if lesion else ("", image)
        found[image] = label, numbers.setdefault(key, len(numbers))
    return found


def _rows(path: Path, columns: Mapping[str, Callable[[str], Any]]) -> dict[str, list[Any]]:
    """Read the rows of a table by the image that the first of the columns names."""
    table, rows = open_table(path), dict[str, list[Any]]()
    for place, (image, *values) in table.parsed(columns):
        if image in rows:
            raise BadInput(
                f"{table.at(place)}: {image} is listed twice; keep one row of each image"
            )
        rows[image] = values
    if not rows:
        raise BadInput(f"{path}: lists no images; download it again")
    return rows
