"""The records that a simulation writes to its event log."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, cast

from fedraw.core.types import ClientId
from fedraw.errors import BadInput
from fedraw.eventlog.records import (
    ArrivalRecord,
    DeclaredRecord,
    JoinedRecord,
    LeftRecord,
    LostRecord,
    NoteRecord,
    Record,
    RejectedRecord,
    StartRecord,
    arrival_record,
)
from fedraw.experiment.conditions import founders
from fedraw.experiment.scenario import Scenario
from fedraw.experiment.sections import StrategySpec
from fedraw.experiment.spec import Spec
from fedraw.simulation.loop import Happening, Step
from fedraw.strategies.catalog import log_name
from fedraw.strategies.protocol import Joined, Left, Strategy


def row_name(spec: StrategySpec, strategy: Strategy[Any] | None = None) -> str:
    """Return the name in tables of a spec's strategy, or of the strategy given instead.

    >>> row_name(StrategySpec("fedraw", {"weighting": "uniform"}))
    'fedraw-dedup-only'
    """
    return log_name(strategy or spec.make())


def opening_records(scenario: Scenario) -> Iterator[Record]:
    """Yield the records before the first arrival: the start, the first clients, false claims."""
    yield start_record(scenario)
    counts = founders(scenario.clients.table, scenario.changes).counts()
    for client, own in cast("dict[ClientId, dict[str, int]]", counts).items():  # labels are names
        yield JoinedRecord(event=0, time=0.0, client=client, counts=own)
    yield from claim_records(scenario)


def start_record(scenario: Scenario) -> StartRecord:
    """Return the first record of a log, with the spec and a description of the data."""
    dataset = scenario.clients.dataset
    labels = dataset.label_names
    loaded = scenario.loaded
    return StartRecord(
        origin="simulation",
        name=row_name(scenario.spec.strategy, scenario.strategy),
        seed=scenario.seed,
        events=scenario.spec.run.events,
        labels=list(labels),
        rare_labels=[labels[i] for i in scenario.clients.rare_labels],
        attacker=next(iter(scenario.clients.attackers), None),
        influence=scenario.strategy.needs.influence,
        notes=tuple(scenario.notes),
        data={
            "train": len(dataset.labels),
            "test": len(dataset.test_labels),
            "sha256": dataset.origin or dataset.sha256(),
            **({"map": dataset.map_digest} if dataset.origin else {}),
        },
        weights=None
        if loaded is None
        else {"sha256": loaded.sha256, "loaded": loaded.loaded, "new": list(loaded.new)},
        trace=_traces(scenario.spec),
        sources=scenario.sources() or None,
        spec=scenario.tables(),
    )


def _traces(spec: Spec) -> dict[str, str] | None:
    """Return the fingerprints of the traces that the spec names; None without any."""
    sections = (
        ("availability", spec.availability),
        ("membership", spec.membership),
        ("costs", spec.costs),
    )
    found = {"sha256": _sha256(spec.speeds.trace, "speeds.trace")}
    for name, section in sections:
        found[name] = None if section is None else _sha256(section.trace, f"{name}.trace")
    return {key: digest for key, digest in found.items() if digest is not None} or None


def _sha256(path: str | None, key: str) -> str | None:
    if path is None:
        return None
    try:
        content = Path(path).read_bytes()
    except OSError as problem:
        raise BadInput(
            f"{key}: cannot read {path}: {problem.strerror}; name a readable file"
        ) from None
    return hashlib.sha256(content).hexdigest()


def claim_records(scenario: Scenario) -> Iterator[Record]:
    """Yield the claims of misreporting clients; none in an honest federation."""
    claim = scenario.spec.misreport
    if claim is None:
        return
    reason = f"claims that {claim.share:.0%} of its data is label {claim.label} ({claim.form})"
    if claim.form == "hidden":
        reason = f"does not tell that it holds label {claim.label}"
    for client in scenario.clients.attackers:
        yield DeclaredRecord(event=0, time=0.0, client=client, reason=reason)


def drift_records(scenario: Scenario, event: int, time: float) -> Iterator[Record]:
    """Yield the changes of the clients' data at an event; none at most events."""
    drift, wanted = scenario.drift, scenario.spec.drift
    if drift is None or wanted is None or event != drift.after:
        return
    what = "moves to other clients" if wanted.kind == "move" else "appears"
    yield NoteRecord(event=event, time=time, reason=f"label {wanted.label} {what}")
    for client, counts in drift.declarations:
        yield DeclaredRecord(
            event=event, time=time, client=client, counts=counts, reason="new counts"
        )


def step_record(step: Step) -> ArrivalRecord | RejectedRecord:
    """Return the record of an arrival, or of the refusal of its update."""
    if step.refused is not None:
        return RejectedRecord(
            event=step.event,
            time=step.time,
            client=step.client,
            start_time=step.start_time,
            reason=step.refused,
            paused=step.paused,
        )
    return arrival_record(
        step.event,
        step.time,
        step.client,
        handed_out=(step.event - step.staleness_events, step.start_time, step.start_version),
        versions=(step.start_version + step.staleness_versions, step.version),
        contents=step.contents,
        metrics=step.metrics,
        paused=step.paused,
    )


def happening_records(happened: Iterable[Happening], event: int) -> Iterator[Record]:
    """Yield the records between two arrivals; `event` is the number of the first arrival."""
    for time, what in happened:
        match what:
            case Joined(client, counts):
                yield JoinedRecord(event=event, time=time, client=client, counts=counts)
            case Left(client):
                yield LeftRecord(event=event, time=time, client=client, reason="it leaves")
            case _:
                yield LostRecord(event=event, time=time, **what._asdict())
