"""The event log: one JSON record a line, the same from a simulation and from a real server.

start       strategy, seed, spec, what counts as rare
joined      a client and its label counts (one for each client at the start)
declared    a client that reports other counts than before
arrival     one update reaching the server, and what it did
rejected    an update that was refused, and why
evaluation  what the global model could do after an event
end         the run is complete
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np

from fedraw.errors import BadInput
from fedraw.experiments.scenario import Scenario
from fedraw.simulation.loop import Step

FORMAT = 1
Record = dict[str, Any]


def start_record(scenario: Scenario, name: str) -> Record:
    dataset = scenario.clients.dataset
    labels = dataset.label_names
    return {
        "kind": "start",
        "format": FORMAT,
        "name": name,
        "seed": scenario.seed,
        "events": scenario.spec.run.events,
        "labels": list(labels),
        "rare_labels": [labels[i] for i in scenario.clients.rare_labels],
        "attacker": scenario.clients.attacker,
        # How a client's weight in the model is read off the arrivals: see metrics.influence.
        "influence": getattr(scenario.strategy, "influence", "slots"),
        "notes": list(scenario.notes),
        "data": {
            "train": len(dataset.labels),
            "test": len(dataset.test_labels),
            "sha256": dataset.sha256(),
        },
        **_weights(scenario),
        "spec": scenario.tables(),
    }


def _weights(scenario: Scenario) -> Record:
    """What the first model was loaded from; nothing where it was drawn."""
    loaded = None if scenario.network is None else scenario.network.loaded
    if loaded is None:
        return {}
    facts = {"sha256": loaded.sha256, "loaded": loaded.loaded, "new": list(loaded.new)}
    return {"weights": facts}


def joined_records(scenario: Scenario) -> Iterator[Record]:
    table = scenario.clients.table
    names = [table.labels[column] for column in table.column.tolist()]
    entries = zip(names, table.count.tolist(), strict=True)
    for client, size in zip(table.clients, np.diff(table.start).tolist(), strict=True):
        counts = dict(islice(entries, size))
        yield {"kind": "joined", "event": 0, "time": 0.0, "client": client, "counts": counts}


def claim_records(scenario: Scenario) -> Iterator[Record]:
    """What a misreporting client claims; none in an honest federation."""
    claim = scenario.spec.misreport
    if claim is not None:
        reason = f"claims that {claim.share:.0%} of its data is label {claim.label} ({claim.form})"
        client = scenario.clients.attacker
        yield {"kind": "declared", "event": 0, "time": 0.0, "client": client, "reason": reason}


def arrival_record(step: Step) -> Record:
    if step.refused is not None:
        return {
            "kind": "rejected",
            "event": step.event,
            "time": step.time,
            "client": step.client,
            "start_time": step.start_time,
            "reason": step.refused,
        }
    return {
        "kind": "arrival",
        "event": step.event,
        "time": step.time,
        "client": step.client,
        "start_time": step.start_time,
        "start_version": step.start_version,
        "version": step.version,
        "staleness_events": step.staleness_events,
        "staleness_versions": step.staleness_versions,
        "aggregated": step.aggregated,
        "buffer": step.contents.clients,
        "weights": step.contents.weights if step.aggregated else (),
    }


class EventLog:
    """Appends records to a file."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        # Without the search for cycles, of which these records have none, it is quicker.
        self._encode = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode

    def write(self, record: Record) -> None:
        self._file.write(self._encode(record).encode() + b"\n")

    def flush(self) -> None:
        """Show readers what was written so far."""
        self._file.flush()

    def to_disk(self) -> int:
        """Make sure that everything written survives; return the log's length in bytes."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._file.tell()


def read_log(path: Path) -> Iterator[Record]:
    """The records of a log; an unreadable one is an error that names the line."""
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                yield _record(line, path, number)
    except (OSError, UnicodeDecodeError) as problem:
        raise BadInput(f"cannot read {path}: {problem}") from None


def _record(line: str, path: Path, number: int) -> Record:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        record = None
    if not isinstance(record, dict) or "kind" not in record:
        raise BadInput(f"{path}, line {number} is no record of an event log; was the run cut off?")
    if record["kind"] == "start" and record.get("format") != FORMAT:
        raise BadInput(
            f"{path} has format {record.get('format')!r}, this fedraw reads {FORMAT}; run it again"
        )
    return record
