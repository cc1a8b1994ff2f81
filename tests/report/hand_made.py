"""Event logs that are small enough to check by hand.

Client "a" holds three samples of `common`; "b" one of `common` and two of `rare`.
Two aggregations, in both of which "b" weighs 1/4.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.eventlog.logs import as_bytes, record

from fedraw.eventlog.records import Record, StartRecord

COMMON, RARE = "common", "scarce"


def spec(name: str, seed: int, **strategy: Any) -> dict[str, Any]:
    return {
        "version": 1,
        "data": {"name": "digits"},
        "partition": {"clients": 2},
        "strategy": {"name": name, **strategy},
        "run": {"events": 2, "seeds": [seed]},
    }


def records(
    name: str,
    seed: int,
    accuracies: Sequence[tuple[float, float | None]] = ((60.0, 20.0), (90.0, 50.0)),
    *,
    rare: str = RARE,
    finished: bool = True,
    data: str | None = None,
    events_wanted: int = 2,
    labels_beside: int = 0,
    **strategy: Any,
) -> list[Record]:
    """`accuracies` are GlobalAcc and AvgRare, one pair an evaluation; none is training-free.

    The last model of a finished run takes 3 of 4 test samples of the rare label for the common one.
    """
    beside = [f"label {n}" for n in range(labels_beside)]
    start = StartRecord(
        origin="simulation",
        name=name,
        seed=seed,
        events=events_wanted,
        labels=[COMMON, rare, *beside],
        rare_labels=[rare],
        data=None if data is None else {"train": 6, "test": 8, "sha256": data},
        spec=spec(name, seed, **strategy),
    )
    joined = [
        record("joined", client="a", counts={COMMON: 3}),
        record("joined", client="b", counts={COMMON: 1, rare: 2}),
    ]
    confusion = {label: {label: 4} for label in start.labels}
    confusion[rare] = {COMMON: 3, rare: 1}
    evaluations = [
        record(
            "evaluation",
            event=event,
            metrics={"GlobalAcc": everywhere, "AvgRare": scarce},
            recall={COMMON: 100.0, rare: scarce, **dict.fromkeys(beside, 90.0)},
            confusion=confusion if finished and event == len(accuracies) else None,
        )
        for event, (everywhere, scarce) in enumerate(accuracies, start=1)
    ]
    end = [record("end")] if finished else []
    return [start, *joined, _arrival(1, "a"), _arrival(2, "b"), *evaluations, *end]


def write_run(folder: Path, name: str, seed: int, *args: Any, **kwargs: Any) -> Path:
    """Write the folder of one seed in the layout of 'fedraw run'."""
    own = folder / name / f"seed-{seed}"
    own.mkdir(parents=True)
    (own / "events.jsonl").write_bytes(as_bytes(records(name, seed, *args, **kwargs)))
    timing = {"date": "2031-02-03T04:05:06+00:00", "machine": "z80", "cores": 1, "python": "3.11.1"}
    (own / "timing.json").write_text(json.dumps(timing), encoding="utf-8")
    return folder / name


def _arrival(event: int, client: str) -> Record:
    return record(
        "arrival",
        event=event,
        client=client,
        staleness_events=4 * event,
        aggregated=True,
        buffer=["a", "b"],
        weights=[0.75, 0.25],
    )
