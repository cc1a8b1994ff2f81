"""Event logs written by hand, with digests as fedraw writes them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path

from fedraw.disk.event_log import Chain, Record, read_log


def as_bytes(records: Iterable[Record], after: Path | None = None) -> bytes:
    """The lines of these records, at the beginning of a log or at the end of `after`."""
    chain = Chain()
    for record in () if after is None else read_log(after):
        chain.line(record)
    return b"".join(chain.line(record) for record in records)


def rewrite(path: Path, change: Callable[[str], str]) -> None:
    """Change the text of a log and give it new digests, as if it had been written so."""
    content = "\n".join(json.dumps(record, separators=(",", ":")) for record in read_log(path))
    path.write_bytes(as_bytes(json.loads(line) for line in change(content).splitlines()))
