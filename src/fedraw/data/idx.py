"""The idx format of the MNIST family: four bytes of kind, the axes, then the values."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedraw.errors import BadInput

# Two zeros, then 8 for unsigned bytes; the fourth is the number of axes.
_UNSIGNED_BYTES = b"\x00\x00\x08"


def read_idx(path: Path, axes: int) -> npt.NDArray[np.uint8]:
    """An array of bytes with so many axes, from a file that may be packed with gzip."""
    content = _content(path)
    if len(content) < 4 + 4 * axes or content[:4] != _UNSIGNED_BYTES + bytes([axes]):
        raise BadInput(
            f"{path}: begins with {content[:4].hex(' ') or 'nothing'}, and an idx file of bytes "
            f"with {axes} axes with 00 00 08 {axes:02x}; download it again"
        )
    shape = struct.unpack_from(f">{axes}I", content, 4)
    expected = 4 + 4 * axes + math.prod(shape)
    if len(content) != expected:
        raise BadInput(
            f"{path}: has {len(content):,} bytes, and its header promises {expected:,} "
            f"({' x '.join(str(n) for n in shape)}); download it again"
        )
    return np.frombuffer(content, np.uint8, offset=4 + 4 * axes).reshape(shape)


def _content(path: Path) -> bytes:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}; make the file readable") from None
    if path.suffix != ".gz":
        return raw
    try:
        return gzip.decompress(raw)
    except (OSError, EOFError, zlib.error) as error:
        raise BadInput(f"{path}: is no whole gzip file ({error}); download it again") from None
