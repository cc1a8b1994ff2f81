"""The tables of the skin lesion archives: which image shows which disease, and whose lesion."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedraw.core.types import Ints
from fedraw.data.histograms import HAM10000, ISIC2019
from fedraw.errors import BadInput, nearest

Row = dict[str, str]
_ISIC2019_COLUMNS = {name.upper(): number for number, name in enumerate(ISIC2019)}


@dataclass(frozen=True, eq=False)
class LesionTable:
    """One row an image; images of one lesion have one group (None: it is not known)."""

    images: tuple[str, ...]
    labels: Ints
    groups: Ints | None


def read_ham10000(path: Path) -> LesionTable:
    """`lesion_id`, `image_id` and `dx`, separated by commas or tabs."""
    rows = _rows(path, "image_id", ("lesion_id", "image_id", "dx"))
    names = list(HAM10000)
    for image, row in rows.items():
        if row["dx"] not in HAM10000:
            raise BadInput(
                f"{path}: image {image} has the unknown dx {row['dx']!r}; "
                f"{nearest(row['dx'], names)}"
            )
    labels = np.array([names.index(row["dx"]) for row in rows.values()])
    return LesionTable(tuple(rows), labels, _groups(rows, rows))


def read_isic2019(truth: Path, metadata: Path | None) -> LesionTable:
    """A column of 0.0 or 1.0 for each class; which images share a lesion stands in `metadata`."""
    rows = _rows(truth, "image", ("image", *_ISIC2019_COLUMNS))
    labels = np.array([_one_hot(truth, image, row) for image, row in rows.items()])
    if metadata is None:
        return LesionTable(tuple(rows), labels, None)
    lesions = _rows(metadata, "image", ("image", "lesion_id"))
    return LesionTable(tuple(rows), labels, _groups(rows, lesions))


def _one_hot(path: Path, image: str, row: Row) -> int:
    columns = [name for name in (*_ISIC2019_COLUMNS, "UNK") if name in row]
    chosen = [name for name in columns if _flag(path, image, name, row[name])]
    if len(chosen) != 1 or chosen == ["UNK"]:
        raise BadInput(
            f"{path}: image {image} is of class {' and '.join(chosen) or 'none'}; give it exactly "
            f"one of {', '.join(_ISIC2019_COLUMNS)}"
        )
    return _ISIC2019_COLUMNS[chosen[0]]


def _flag(path: Path, image: str, column: str, text: str) -> bool:
    try:
        return {0.0: False, 1.0: True}[float(text)]
    except (ValueError, KeyError):
        raise BadInput(f"{path}: image {image} has {column} = {text!r}; write 0.0 or 1.0") from None


def _groups(images: Sequence[str] | dict[str, Row], lesions: dict[str, Row]) -> Ints:
    """Numbers of lesions; an image without a lesion id is a group by itself."""
    known = [lesions.get(image, {}).get("lesion_id", "") for image in images]
    names = [
        (1, lesion) if lesion else (0, image) for lesion, image in zip(known, images, strict=True)
    ]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return np.array([numbers[name] for name in names])


def _rows(path: Path, key: str, columns: Sequence[str]) -> dict[str, Row]:
    """The rows of a table by their key, each of them once."""
    rows: dict[str, Row] = {}
    for line, row in _lines(path, columns):
        if not row[key] or row[key] in rows:
            wrong = f"{row[key]} stands twice" if row[key] else f"no {key}"
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
        raise BadInput(f"{path}: is no table ({error}); download it again") from None


def _check_columns(path: Path, found: Sequence[str], wanted: Sequence[str]) -> None:
    for column in wanted:
        if column not in found:
            has = ", ".join(found) or "nothing"
            raise BadInput(f"{path}: column {column!r} is missing (found {has}); add it")
