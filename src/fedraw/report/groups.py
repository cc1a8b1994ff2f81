"""The runs behind the rows of a comparison, each event log read once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedraw.errors import BadInput
from fedraw.experiments.compare import Row, compare, find_logs
from fedraw.experiments.event_log import Record, read_log
from fedraw.experiments.names import distinct_names
from fedraw.experiments.run import Result
from fedraw.experiments.summary import Summary


@dataclass(frozen=True, eq=False)
class Run:
    """One seed: what its log says, and the folder the log lies in."""

    folder: Path
    start: Record
    evaluations: Sequence[Record]
    content: dict[str, Any]  # as in summary.json


@dataclass(frozen=True, eq=False)
class Group:
    """One row of the comparison and the seeds it is made of."""

    row: Row
    runs: Sequence[Run]

    @property
    def name(self) -> str:
        return self.row.name

    @property
    def spec(self) -> dict[str, Any]:
        """The spec that runs all these seeds again."""
        spec: dict[str, Any] = dict(self.runs[0].content["spec"])
        return spec | {"run": spec["run"] | {"seeds": list(self.row.seeds)}}


def read_groups(folders: Sequence[Path]) -> list[Group]:
    """The rows that `compare` makes of these folders, with what lies behind them."""
    runs = [_read(log) for folder in folders for log in find_logs(folder)]
    if not runs:
        raise BadInput("no runs to report on; name a folder that 'fedraw run' has written")
    rows = compare([_result(run) for run in runs])
    names = distinct_names(
        [run.content["name"] for run in runs], [_without_seeds(run) for run in runs]
    )
    by_name: dict[str, list[Run]] = {}
    for name, run in zip(names, runs, strict=True):
        by_name.setdefault(name, []).append(run)
    return [Group(row, by_name[row.name]) for row in rows]


def _read(log: Path) -> Run:
    summary = Summary.of(read_log(log))
    if not summary.finished:
        raise BadInput(f"{log.parent} is not finished; run it to its end first")
    return Run(log.parent, summary.start, summary.evaluations, summary.as_dict())


def _result(run: Run) -> Result:
    no_model = np.empty(0, dtype=np.float32)
    return Result(run.content["name"], run.content["seed"], run.content, no_model, run.folder)


def _without_seeds(run: Run) -> dict[str, Any]:
    spec: dict[str, Any] = dict(run.content["spec"])
    return spec | {"run": {k: v for k, v in spec["run"].items() if k != "seeds"}}
