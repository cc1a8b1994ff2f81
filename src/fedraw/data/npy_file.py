"""Writes an .npy file piece by piece, by plain writes.

A writable memory map would be shorter, but on a full disk it kills the process.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt


def write_npy(path: Path, chunks: Iterable[npt.NDArray[Any]]) -> tuple[int, str]:
    """The pieces as one array; returns the file's bytes and the sha256 of the array's."""
    digest, rows, header = hashlib.sha256(), 0, b""
    with path.open("wb") as file:
        for chunk in chunks:
            if not header:
                shape, dtype = chunk.shape[1:], chunk.dtype
                header = _header((0, *shape), dtype)
                file.write(header)
            elif (chunk.shape[1:], chunk.dtype) != (shape, dtype):
                raise ValueError(f"{path.name}: {chunk.shape} {chunk.dtype} after {shape} {dtype}")
            content = np.ascontiguousarray(chunk).reshape(-1).view(np.uint8).data
            file.write(content)
            digest.update(content)
            rows += len(chunk)
        if not header:
            raise ValueError(f"{path.name}: there is not one piece to write")
        # NumPy leaves room for the length of the first axis, so the header does not grow.
        file.seek(0)
        file.write(_header((rows, *shape), dtype))
        file.flush()
        os.fsync(file.fileno())
    return path.stat().st_size, digest.hexdigest()


def _header(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bytes:
    file = io.BytesIO()
    description = np.lib.format.dtype_to_descr(dtype)
    np.lib.format.write_array_header_1_0(
        file, {"descr": description, "fortran_order": False, "shape": shape}
    )
    return file.getvalue()
