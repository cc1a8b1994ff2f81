"""Decodes photographs in threads, in order, with bounded memory."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from fedraw.data.root import Progress
from fedraw.errors import MissingExtra

Pixels = npt.NDArray[np.uint8]
# Width and height.
Extent = tuple[int, int]
Result = TypeVar("Result")

_BLOCK = 256
_BLOCK_BYTES = 64 * 2**20


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
    doing: str,
    progress: Progress | None,
    block: int = _BLOCK,
) -> Iterator[list[Result]]:
    """Apply `work` to the files in threads, and yield the results block by block, in order.

    Pillow releases the interpreter lock while it decodes, so threads run in parallel. `doing` is
    the description for `progress`.
    """
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for start in range(0, len(files), block):
            if progress is not None:
                progress(doing, start, len(files))
            yield list(pool.map(work, files[start : start + block]))
    if progress is not None:
        progress(doing, len(files), len(files))


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
