"""Ctrl-C while a run starts or ends, when it cannot stop between two arrivals."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from fedraw.errors import Interrupted
from fedraw.eventlog.records import Record, StartRecord
from fedraw.experiment.cells import Cell, run_cells
from fedraw.experiment.options import Options
from fedraw.experiment.spec import Spec

# Progress is reported every 20 events within a run, and once when the last event is done.
EVENTS = 30


def cells(folder: Path, count: int) -> list[Cell]:
    spec = Spec.from_dict(
        {
            "partition": {"clients": 8, "rare_labels": [9], "clients_per_common_label": 5},
            "strategy": {"name": "fedraw", "buffer": 4},
            "training": {"kind": "none"},
            "run": {"events": EVENTS},
        }
    )
    return [Cell(spec, seed, folder / f"seed-{seed}") for seed in range(1, count + 1)]


def press_ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize(
    ("count", "message"),
    [
        (1, "interrupted before the run was finished"),
        (3, "interrupted with 1 of 3 runs finished"),
    ],
)
@pytest.mark.parametrize("moment", ["start", "end"])
def test_the_message_fits_the_number_of_runs(
    tmp_path: Path, moment: str, count: int, message: str
) -> None:
    last = min(count, 2) - 1  # the only run, or the second of three

    def observe(number: int, record: Record) -> None:
        if moment == "start" and number == last and isinstance(record, StartRecord):
            press_ctrl_c()

    def progress(number: int, events: int) -> None:
        if moment == "end" and number == last and events == EVENTS:
            press_ctrl_c()

    with pytest.raises(Interrupted) as stopped:
        run_cells(cells(tmp_path, count), Options(), 1, progress, observe=observe)
    assert str(stopped.value) == message
    resumed = run_cells(cells(tmp_path, count), Options(resume=True), 1)
    assert [run.summary["events"] for run in resumed] == [EVENTS] * count
