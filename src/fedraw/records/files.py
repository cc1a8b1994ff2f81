"""What kind of file a path leads to, told by its first bytes."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from fedraw.errors import BadInput

HEAD = 1 << 16
PARQUET = b"PAR1"
_GZIP = b"\x1f\x8b"
_AS_CSV = "save it as CSV in UTF-8"


def is_parquet(path: Path) -> bool:
    return path.suffix == ".parquet" or head(path).startswith(PARQUET)


def is_gzip(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_GZIP)) == _GZIP


@contextmanager
def read_errors(path: Path) -> Iterator[None]:
    """What the system says about a file, as a message with a remedy."""
    try:
        yield
    except FileNotFoundError:
        raise BadInput(f"{path}: there is no such file; check the path") from None
    except UnicodeDecodeError:
        raise BadInput(f"{path}: line {_undecodable(path)} is not UTF-8; {_AS_CSV}") from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise BadInput(f"{path}: damaged gzip file ({error}); compress it again") from None
    except OSError as error:
        reason = error.strerror or error
        raise BadInput(f"{path}: cannot be read ({reason}); make it readable") from None


def require_file(path: Path) -> None:
    with read_errors(path):
        path.stat()
    if path.is_dir():
        raise BadInput(f"{path}: is a folder; name the file in it")
    if not path.is_file():
        raise BadInput(f"{path}: is no regular file; save its contents to one, they are read twice")
    if not head(path):
        raise BadInput(f"{path}: is empty; a header and rows are needed")


def require_text(path: Path) -> None:
    start = head(path)
    if start.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise BadInput(f"{path}: is UTF-16; {_AS_CSV}")
    if start.startswith(b"PK\x03\x04"):
        raise BadInput(f"{path}: is a workbook or a zip archive; {_AS_CSV}")
    if b"\0" in start:
        raise BadInput(f"{path}: is a binary file; {_AS_CSV}, or name a .parquet file")


def head(path: Path) -> bytes:
    with read_errors(path), open_bytes(path) as file:
        return file.read(HEAD)


def open_bytes(path: Path) -> IO[bytes] | gzip.GzipFile:
    """The bytes of a file, unpacked if it is gzip."""
    return gzip.open(path, "rb") if is_gzip(path) else path.open("rb")


def open_text(path: Path) -> IO[str]:
    """Without a byte-order mark, and with the line ends the file has."""
    if is_gzip(path):
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    return path.open(encoding="utf-8-sig", newline="")


def _undecodable(path: Path) -> int:
    with open_bytes(path) as file:
        return next(number for number, line in enumerate(file, start=1) if not _decodes(line))


def _decodes(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True
