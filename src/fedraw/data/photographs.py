"""Decodes photographs in threads, in order, a bounded number at a time."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from fedraw.data.progress import Progress
from fedraw.errors import MissingExtra

Pixels = npt.NDArray[np.uint8]
# Width and height.
Extent = tuple[int, int]
Result = TypeVar("Result")

_BLOCK = 256
_BLOCK_BYTES = 64 * 2**20


def need_pillow() -> None:
    try:
        import PIL  # noqa: F401
    except ImportError as error:
        raise MissingExtra("pillow", "data") from error


def thumbnail(path: Path, size: int) -> tuple[Pixels, Extent]:
    """An image as RGB of shape (3, size, size), and how large it is in the file.

    The aspect is not kept: what is wider than high is squeezed. A rotation that stands in the
    file's EXIF data is ignored. Decoding leaves out detail that the result could not show, down
    to twice its size.
    """
    from PIL import Image

    with Image.open(path) as image:
        extent = image.size
        image.draft("RGB", (2 * size, 2 * size))
        small = image.convert("RGB").resize((size, size), Image.Resampling.BICUBIC)
    return np.asarray(small).transpose(2, 0, 1), extent


def decode_fully(path: Path) -> Extent:
    """How large an image is, after every pixel of it was decoded."""
    from PIL import Image

    with Image.open(path) as image:
        image.load()
        return image.size


def reason(error: Exception) -> str:
    """Why an image could not be decoded, without the path that Pillow repeats."""
    from PIL import UnidentifiedImageError

    return "no image" if isinstance(error, UnidentifiedImageError) else str(error)


def in_blocks(
    work: Callable[[Path], Result],
    files: Sequence[Path],
    doing: str,
    progress: Progress | None,
    block: int = _BLOCK,
) -> Iterator[list[Result]]:
    """The results in the order of the files, block by block; Pillow lets threads run at once."""
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for start in range(0, len(files), block):
            if progress is not None:
                progress(doing, start, len(files))
            yield list(pool.map(work, files[start : start + block]))
    if progress is not None:
        progress(doing, len(files), len(files))


def block_for(size: int) -> int:
    """How many thumbnails fit into a block's memory.

    >>> block_for(64), block_for(1024)
    (256, 21)
    """
    return min(_BLOCK, max(1, _BLOCK_BYTES // (3 * size * size)))


def extent_notes(name: str, extents: Counter[Extent]) -> tuple[str, ...]:
    """What a result must say if the images are not as large as the official ones.

    >>> extent_notes("ham10000", Counter([(200, 150), (200, 150)]))
    ('ham10000: images of 200x150, official 600x450',)
    """
    if not extents:
        return ()
    if name == "ham10000":
        return _other_than((600, 450), name, extents)
    return _at_most((1024, 1024), name, extents)


def _other_than(official: Extent, name: str, extents: Counter[Extent]) -> tuple[str, ...]:
    other = [extent for extent in extents if extent != official]
    if len(extents) == 1 and other:
        return (f"{name}: images of {_text(other[0])}, official {_text(official)}",)
    count = sum(extents[extent] for extent in other)
    some = "1 image" if count == 1 else f"{count:,} images"
    return (f"{name}: {some} not of the official {_text(official)}",) if other else ()


def _at_most(official: Extent, name: str, extents: Counter[Extent]) -> tuple[str, ...]:
    largest = max(extents, key=max)
    if max(largest) >= max(official):
        return ()
    return (f"{name}: images of at most {_text(largest)}, official up to {_text(official)}",)


def _text(extent: Extent) -> str:
    return f"{extent[0]}x{extent[1]}"
