"""`fedraw server join`: makes one file of a log that a server of fedraw 0.2 wrote in several.

events.jsonl          the first file
events.000002.jsonl   the second file, and so on

Each file but the last ends with a `continued` record. The joined log has the same bytes in the same
order, so its digests hold, and so do the positions in the snapshots.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from fedraw.errors import BadInput
from fedraw.eventlog.log_file import LOG, NUMBERED, Chain, is_cut_off, read_log
from fedraw.eventlog.records import ContinuedRecord
from fedraw.server.rollback import REMEDY, RUNNING
from fedraw.storage.files import atomic_file, private_opener, sync
from fedraw.storage.lock import FolderLock


def join(folder: Path) -> int:
    """Join the files of a server's log in `events.jsonl`; return how many files there were.

    The server must not be running. The joined log is complete and verified before it replaces the
    first file, and the other files are removed after that. If the function is interrupted, the
    folder is refused as before, and the next call completes the work.
    """
    log = folder / LOG
    if not log.is_file():
        raise BadInput(f"{folder} has no {LOG}; name the folder of a server")
    lock = FolderLock(folder, RUNNING)
    try:
        later = sorted(folder.glob(NUMBERED))
        joined = log.read_bytes() if later else b""
        if not all(path.read_bytes() in joined for path in later):  # else only the removal is left
            _verify([log, *later])
            with atomic_file(log) as draft:
                _concatenate([log, *later], draft)
        for path in reversed(later):
            path.unlink()
        sync(folder)
    finally:
        lock.close()
    return 1 + len(later)


def _verify(files: Sequence[Path]) -> None:
    """Verify every line of the files, and that no file is missing; errors name the file."""
    chain, last = Chain(remedy=REMEDY), None
    for number, path in enumerate(files, start=1):
        expected = path.with_name(f"events.{number:06d}.jsonl")
        if number > 1 and path != expected:
            raise BadInput(f"{expected} is missing, and the log continues in it; {REMEDY}")
        chain.position = chain.position._replace(lines=0)  # messages count the lines of a file
        with path.open("rb") as file:
            for line in file:
                if is_cut_off(line) and not any(rest.stat().st_size for rest in files[number:]):
                    return  # by a kill; the next start removes it
                last = chain.decode(line, path)
    if isinstance(last, ContinuedRecord) and last.segment > len(files):
        missing = files[0].with_name(f"events.{last.segment:06d}.jsonl")
        raise BadInput(f"{missing} is missing, and the log continues in it; {REMEDY}")


def _concatenate(files: Sequence[Path], draft: Path) -> None:
    """Write the files one after another, and verify the result."""
    with open(draft, "wb", opener=private_opener) as out:
        for path in files:
            with path.open("rb") as file:
                shutil.copyfileobj(file, out)
    for _ in read_log(draft, allow_cut_off=True):
        pass
