"""Event logs written by hand, with digests as fedraw writes them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from fedraw.eventlog.log_file import Chain, read_log
from fedraw.eventlog.records import KINDS, ArrivalRecord, Record, from_fields, to_fields

# What a record says where a test does not care.
NEUTRAL: dict[str, Any] = {
    "origin": "simulation",
    "name": "fedraw",
    "seed": 1,
    "events": None,
    "labels": [],
    "rare_labels": [],
    "spec": {},
    "event": 0,
    "time": 0.0,
    "client": "a",
    "counts": {},
    "start_time": 0.0,
    "start_version": 0,
    "version": 0,
    "staleness_events": 0,
    "staleness_versions": 0,
    "aggregated": False,
    "buffer": [],
    "weights": [],
    "reason": "",
    "label": "x",
    "claimed": 1.0,
    "presence": 0.0,
    "cause": "",
    "before": {},
    "after": {},
    "metrics": {},
    "recall": {},
    "server_models": 1.0,
    "epoch": 0.0,
    "gap": 0.0,
    "reasked": [],
    "segment": 1,
}


def record(kind: str, **own: Any) -> Record:
    """A complete record; fields that are not given have arbitrary values."""
    needed = [field.name for field in fields(KINDS[kind]) if field.default is MISSING]
    return from_fields({"kind": kind, **{name: NEUTRAL[name] for name in needed}, **own})


def arrival(**own: Any) -> ArrivalRecord:
    """A complete arrival; fields that are not given have arbitrary values."""
    made = record("arrival", **own)
    assert isinstance(made, ArrivalRecord)
    return made


def as_bytes(content: Iterable[Record | Mapping[str, Any]], after: Path | None = None) -> bytes:
    """The lines of records or JSON objects, as a new log or as a continuation of `after`."""
    chain = Chain()
    for known in () if after is None else read_log(after):
        chain.encode(known)
    return b"".join(
        chain.encode_fields(dict(own)) if isinstance(own, Mapping) else chain.encode(own)
        for own in content
    )


def read_objects(path: Path) -> list[dict[str, Any]]:
    """The verified records of a log as JSON objects."""
    return [to_fields(known) for known in read_log(path)]


def rewrite(path: Path, change: Callable[[str], str]) -> None:
    """Change the text of a log and update its digests."""
    content = "\n".join(json.dumps(own, separators=(",", ":")) for own in read_objects(path))
    path.write_bytes(as_bytes(json.loads(line) for line in change(content).splitlines()))
