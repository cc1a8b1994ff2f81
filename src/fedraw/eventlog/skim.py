"""A quick preview of a long event log, shown while the complete log is still being read.

Almost all lines of a long log are arrivals. Skimming reads all other records, and only the last
arrivals. It does not check digests; `follow` checks them when it reads the log.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from fedraw.eventlog.log_file import decode_unverified, is_cut_off
from fedraw.eventlog.records import Record
from fedraw.eventlog.segments import open_log
from fedraw.eventlog.status import RunProgress

# Arrivals are read in this many bytes at the end of the log; bytes that are read at once.
TAIL, PIECE = 1 << 20, 1 << 22

_OTHER = re.compile(rb'^\{"kind":"(?!arrival")[^\n]*\n', re.MULTILINE)


def skim(log: Path) -> RunProgress | None:
    """Return the progress of a run without its early arrivals; None if a line is damaged."""
    progress = RunProgress()
    try:
        for record in _records(log):
            progress.observe(record)
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None
    return progress


def _records(log: Path) -> Iterator[Record]:
    with open_log(log) as file:
        tail = max(0, file.seek(0, os.SEEK_END) - TAIL)
        file.seek(0)
        rest = b""
        while file.tell() < tail:
            rest += file.read(min(PIECE, tail - file.tell()))
            end = rest.rfind(b"\n") + 1
            for found in _OTHER.finditer(rest, 0, end):
                yield decode_unverified(found[0])
            rest = rest[end:]
        for line in (rest + file.read()).splitlines(keepends=True):
            if not is_cut_off(line):
                yield decode_unverified(line)
