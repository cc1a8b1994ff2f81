"""What a simulation writes into its event log: see disk.event_log for all kinds of records."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np

from fedraw.disk.event_log import FORMAT, Record
from fedraw.errors import BadInput
from fedraw.experiments.scenario import Scenario
from fedraw.simulation.loop import Step


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
        "attacker": next(iter(scenario.clients.attackers), None),
        # How a client's weight in the model is read off the arrivals: see metrics.influence.
        "influence": scenario.strategy.needs.influence,
        "notes": list(scenario.notes),
        "data": {
            "train": len(dataset.labels),
            "test": len(dataset.test_labels),
            "sha256": dataset.sha256(),
        },
        **_weights(scenario),
        **_trace(scenario),
        "spec": scenario.tables(),
    }


def _weights(scenario: Scenario) -> Record:
    """What the first model was loaded from; nothing where it was drawn."""
    loaded = scenario.loaded
    if loaded is None:
        return {}
    facts = {"sha256": loaded.sha256, "loaded": loaded.loaded, "new": list(loaded.new)}
    return {"weights": facts}


def _trace(scenario: Scenario) -> Record:
    """The fingerprint of the recorded durations; nothing where they are drawn."""
    trace = scenario.spec.speeds.trace
    if trace is None:
        return {}
    try:
        content = Path(trace).read_bytes()
    except OSError as problem:
        raise BadInput(f"speeds.trace: cannot read {trace}: {problem.strerror}") from None
    return {"trace": {"sha256": hashlib.sha256(content).hexdigest()}}


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
        if claim.form == "hidden":
            reason = f"does not tell that it holds label {claim.label}"
        for client in scenario.clients.attackers:
            yield {"kind": "declared", "event": 0, "time": 0.0, "client": client, "reason": reason}


def drift_records(scenario: Scenario, event: int, time: float) -> Iterator[Record]:
    """What an event has changed in the clients' data; mostly nothing."""
    drift, wanted = scenario.drift, scenario.spec.drift
    if drift is None or wanted is None or event != drift.after:
        return
    what = "moves to other clients" if wanted.kind == "move" else "appears"
    stamp = {"event": event, "time": time}
    yield {"kind": "note", **stamp, "reason": f"label {wanted.label} {what}"}
    for client, counts in drift.declarations:
        own = {"client": client, "counts": counts, "reason": "new counts"}
        yield {"kind": "declared", **stamp, **own}


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
