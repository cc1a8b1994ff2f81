"""Images in memory or in a file, and which of them: read when they are needed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedraw.core.types import Ints
from fedraw.errors import BadInput

# uint8 (0 to 255, turned into 0..1 by whoever computes with them) or float32.
Pixels = npt.NDArray[Any]
_CHUNK = 1024


class Images:
    """Rows of an array of shape (n, ...).

    A selection copies nothing, and images of a file that is mapped into memory are shared by all
    processes that read them: sent to another process, only the file's name travels.

    >>> images = Images(np.arange(8, dtype=np.uint8).reshape(4, 2)).select([3, 1])
    >>> len(images), images.shape, images[:1].tolist(), images.select([1]).take([0]).tolist()
    (2, (2, 2), [[6, 7]], [[2, 3]])
    """

    def __init__(
        self, pixels: Pixels, rows: npt.ArrayLike | None = None, sha256: str | None = None
    ) -> None:
        if not pixels.ndim:
            raise BadInput(
                "images have shape (), a single number; give (n, ...), one row per image"
            )
        self.pixels = pixels
        self.rows: Ints | None = None if rows is None else np.asarray(rows, np.int64)
        self._sha256 = sha256

    @classmethod
    def open(cls, path: Path, rows: Ints | None = None, sha256: str | None = None) -> Images:
        """The images of an .npy file, mapped; `sha256` spares reading all of it to tell them."""
        return cls(np.load(path, mmap_mode="r"), rows, sha256)

    def __len__(self) -> int:
        return len(self.pixels) if self.rows is None else len(self.rows)

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self), *self.pixels.shape[1:])

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.pixels.dtype

    @property
    def in_a_file(self) -> bool:
        return isinstance(self.pixels, np.memmap)

    def select(self, rows: npt.ArrayLike) -> Images:
        """These rows of these rows."""
        wanted = np.asarray(rows, np.int64)
        chosen = wanted if self.rows is None else self.rows[wanted]
        return Images(self.pixels, chosen, self._sha256)

    def everything(self) -> Images:
        """All rows of the array that these are a selection of."""
        return Images(self.pixels, sha256=self._sha256)

    def mapped_to(self, others: Images) -> Images:
        """The same rows of another array: what something else says about the same samples."""
        return others if self.rows is None else others.select(self.rows)

    def take(self, positions: npt.ArrayLike) -> Pixels:
        return self.select(positions)[:]

    def __getitem__(self, part: slice) -> Pixels:
        found = self.pixels[part if self.rows is None else self.rows[part]]
        return np.asarray(found)  # a plain array, also of a mapped file

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> Pixels:
        return np.array(self[:], dtype=dtype, copy=copy)

    def sha256(self) -> str:
        """A fingerprint of these images: the content, not where it lies."""
        digest = hashlib.sha256(f"{self.shape}{self.dtype}".encode())
        if self._sha256 is not None:
            digest.update(self._sha256.encode())
            digest.update(b"" if self.rows is None else self.rows.tobytes())
        elif self.pixels.size:
            for start in range(0, len(self), _CHUNK):
                digest.update(np.ascontiguousarray(self[start : start + _CHUNK]).data.cast("B"))
        return digest.hexdigest()

    def __reduce__(self) -> tuple[Callable[..., Images], tuple[Any, ...]]:
        if isinstance(self.pixels, np.memmap):
            return Images.open, (self.pixels.filename, self.rows, self._sha256)
        return Images, (self.pixels, self.rows, self._sha256)
