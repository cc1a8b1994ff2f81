"""Results: all seeds of one run, in memory or in their folders, as tables, models and plots."""

from __future__ import annotations

import html
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fedraw.core.layout import Layout
from fedraw.core.table import Table
from fedraw.core.types import Vector
from fedraw.errors import BadInput, MissingExtra, nearest
from fedraw.eventlog.compare import goal_words, identity
from fedraw.eventlog.goals import RARE_GOALS, Goal
from fedraw.eventlog.log_file import LOG, Chain, Position, find_logs
from fedraw.eventlog.metrics import COSTS, METRICS, QUALITY, VALUES_OF, cost_columns, measured
from fedraw.eventlog.records import (
    ArrivalRecord,
    EvaluationRecord,
    Record,
    RejectedRecord,
    to_fields,
)
from fedraw.eventlog.state import RunState
from fedraw.eventlog.summary import end_of_log, read_run
from fedraw.storage.snapshot import MODEL, read_tensors

# The columns of a result that say when AvgRare passed a mark, by the goal's name in a summary.
_GOALS = {str(goal): f"arrivals to {goal_words(goal)}" for goal in RARE_GOALS}


@dataclass(frozen=True, eq=False)
class SeedResult:
    """The result of one seed.

    Attributes:
        name: The name of the method in tables.
        seed: The seed; None for a real federation, where nothing is drawn.
        summary: The content of summary.json.
        model: The last model as one vector. It is empty if the run trained no model or if the
            result was read from a folder; `state_dict` has the tensors.
        folder: The folder of the run, if it has one.

    """

    name: str
    seed: int | None
    summary: Mapping[str, Any]
    model: Vector = field(default_factory=lambda: np.zeros(0, np.float32))
    folder: Path | None = None
    layout: Layout | None = None
    log: bytes | None = None  # the event log of a run without a folder
    end: Position | None = None  # the end of the log in the folder, if the run is finished
    cautions: tuple[str, ...] = ()  # notes of a new run about a likely mistake of the user

    def __repr__(self) -> str:
        seed = "" if self.seed is None else f", seed {self.seed}"
        place = "" if self.folder is None else f", {self.folder}"
        return f"SeedResult({self.name}{seed}, {self.summary['events']:,} events{place})"

    @property
    def finished(self) -> bool:
        """Whether the run is finished."""
        return bool(self.summary["finished"])

    def records(self) -> Iterator[Record]:
        """Yield the records of the event log, from the folder or from memory."""
        if self.folder is not None:
            self._refuse_other_run(self.folder)
            yield from read_run(self.folder / LOG)
        elif self.log is not None:
            chain = Chain()
            for line in io.BytesIO(self.log):
                yield chain.decode(line, Path(LOG))
        else:
            raise BadInput(f"the log of {self.name}, seed {self.seed}, was not kept")

    @cached_property
    def evaluations(self) -> list[EvaluationRecord]:
        """The evaluations of the run, in the order of the events."""
        return [record for record in self.records() if isinstance(record, EvaluationRecord)]

    def state_dict(self) -> dict[str, Any]:
        """Return the last model by tensor name: torch tensors, or arrays without torch."""
        try:
            from fedraw.learning.vectors import tensors
        except ModuleNotFoundError:
            return self._arrays()
        return tensors(self._arrays())

    def classifier(self, feature_map: Any) -> Any:
        """Return the feature map and the last model as one torch module, from samples to scores.

        For methods whose clients send sums, such as one pass. `feature_map` is the one that the
        notes of the result name: `fedraw.learning.feature_maps.default_map(shape)` where nobody
        chose another.
        """
        digest = feature_map.digest
        notes = [note for note in self.summary.get("notes", ()) if "feature map" in note]
        if not any(f"digest {digest[:16]}" in note for note in notes):
            said = f"has the {notes[-1]}" if notes else "has no feature map"
            raise BadInput(
                f"{self.name}, seed {self.seed}, {said}, and the given one has the digest "
                f"{digest[:16]}; give the map of the run"
            )
        return feature_map.with_head(self.state_dict())

    def _arrays(self) -> dict[str, Any]:
        if self.layout is not None:
            return {s.name: self.model[s.slice].reshape(s.shape) for s in self.layout.segments}
        if self.folder is not None:
            self._refuse_other_run(self.folder)
        path = None if self.folder is None else self.folder / MODEL
        if path is None or not path.exists():
            why = (
                "trained no model" if self.finished else "is not finished, so it has no last model"
            )
            raise BadInput(f"{self.name}, seed {self.seed}, {why}")
        return read_tensors(path)

    def _refuse_other_run(self, folder: Path) -> None:
        """Refuse to read a folder whose finished run was replaced or continued."""
        if self.end is not None and end_of_log(folder / LOG) != self.end:
            raise BadInput(
                f"{folder} no longer holds the run of this result ({self.name}); to keep several "
                "results, run into another folder, or load this one again with fedraw.load"
            )


class Result:
    """All seeds of one run.

    Iterating over a result gives its seeds, each a `SeedResult`.
    """

    def __init__(self, runs: Sequence[SeedResult]) -> None:
        if not runs:
            raise BadInput("a result has at least one seed")
        self.runs = tuple(runs)

    @property
    def name(self) -> str:
        """The name of the method in tables."""
        return self.runs[0].name

    @property
    def seeds(self) -> tuple[int | None, ...]:
        """The seeds, in the order of the runs."""
        return tuple(run.seed for run in self.runs)

    @property
    def summaries(self) -> list[Mapping[str, Any]]:
        """The content of each seed's summary.json."""
        return [run.summary for run in self.runs]

    @property
    def spec(self) -> dict[str, Any]:
        """The settings as in a SPEC.toml, with all seeds; for a server, its settings."""
        spec = json.loads(json.dumps(self.runs[0].summary["spec"]))
        if "run" in spec:
            spec["run"]["seeds"] = list(self.seeds)
        return dict(spec)

    @property
    def finished(self) -> bool:
        """Whether all seeds are finished."""
        return all(run.finished for run in self.runs)

    def __iter__(self) -> Iterator[SeedResult]:
        return iter(self.runs)

    def __len__(self) -> int:
        return len(self.runs)

    def __getitem__(self, seed: int) -> SeedResult:
        """Return the run of this seed."""
        return self._run(seed)

    @cached_property
    def summary(self) -> Table:
        """One row per seed: the metrics, and the number of events.

        Metrics are means of the last five evaluations; `last` has those of the last model. The
        columns "arrivals to 50 %" and "arrivals to 80 %" say when AvgRare passed these marks, and
        are None for a seed in which it did not; see `until`.
        """
        return self._seeds(lambda run: {**measured(run.summary), **run.summary["tail"]})

    @cached_property
    def last(self) -> Table:
        """The summary of the last model instead of the last five evaluations."""
        return self._seeds(lambda run: measured(run.summary))

    def _seeds(self, metrics: Callable[[SeedResult], Mapping[str, float | None]]) -> Table:
        rows = [
            {"seed": run.seed, **metrics(run)}
            | {
                column: _whole(run.summary["reached"][goal]["arrivals"])
                for goal, column in _GOALS.items()
                if goal in run.summary["reached"]
            }
            | {"events": run.summary["events"], **cost_columns(run.summary.get("costs"))}
            for run in self.runs
        ]
        # A metric that is undefined in all runs, such as that of a missing test set, is left out.
        undefined = {key for key in rows[0] if all(row.get(key) is None for row in rows)}
        undefined -= {"seed", *_GOALS.values()}
        return Table.of_rows([{k: v for k, v in row.items() if k not in undefined} for row in rows])

    @cached_property
    def curves(self) -> Table:
        """One row per evaluation of each seed: the event, the virtual time, the metrics.

        The user's own metrics have their own names, with the prefix "rare " for test samples of
        rare labels. The metrics of a calibrated model have the prefix "calibrated ". With
        costs, there are columns for the virtual hours, megabytes and kilojoules so far.
        """
        return Table.of_rows(
            [
                {"seed": run.seed, "event": e.event, "time": e.time, "version": e.version}
                | cost_columns(e.costs)
                | measured(to_fields(e))
                for run in self.runs
                for e in run.evaluations
            ],
            ("seed", "event", "time", "version"),
        )

    @cached_property
    def recalls(self) -> Table:
        """One row per evaluation of each seed, one column per label: recall in percent.

        A label with the name of one of the first columns has the prefix "label ".
        """
        first = ("seed", "event", "time")
        return Table.of_rows(
            [
                {"seed": run.seed, "event": e.event, "time": e.time}
                | {f"label {k}" if k in first else k: value for k, value in e.recall.items()}
                for run in self.runs
                for e in run.evaluations
            ],
            first,
        )

    def arrivals(self) -> Table:
        """Return one row per update that reached the server, including refused ones.

        The metrics that the user's training function returned have columns with the prefix "train
        ".
        """
        columns = (
            "seed", "event", "time", "client", "start_time", "start_version", "version",
            "staleness_events", "staleness_versions", "aggregated", "buffer", "weights", "refused",
        )  # fmt: skip
        rows: list[dict[str, Any]] = []
        for run in self.runs:
            for record in run.records():
                if isinstance(record, ArrivalRecord | RejectedRecord):
                    row = {name: getattr(record, name, None) for name in columns[1:-1]}
                    refused = record.reason if isinstance(record, RejectedRecord) else None
                    metrics = record.metrics if isinstance(record, ArrivalRecord) else None
                    trained = {f"train {k}": v for k, v in (metrics or {}).items()}
                    rows.append({"seed": run.seed, **row, "refused": refused, **trained})
        return Table.of_rows(rows, columns)

    def state_dict(self, seed: int | None = None) -> dict[str, Any]:
        """Return the last model of a seed, by default of the first, by tensor name.

        The values are torch tensors, or NumPy arrays if torch is not installed.
        `net.load_state_dict(result.state_dict())` loads them into a module of the same kind. The
        dict has every float tensor of the model once. So a module whose own dict has other names,
        because of tied parameters, buffers of whole numbers or buffers with `persistent=False`,
        needs `net.load_state_dict(result.state_dict(), strict=False)`.
        """
        return self._run(seed).state_dict()

    def until(self, goal: str) -> Table:
        """Return the cost of each seed until it reached a goal such as "AvgRare>=50".

        A metric is reached at the first evaluation from which the mean of five consecutive ones is
        at least the goal. A goal may also name a label: "8>=50" is about its recall.
        There are columns for the events, the virtual seconds and, in a run with costs, the hours,
        megabytes and kilojoules; all are None for a seed that never reached the goal.
        """
        wanted, rows = Goal.parse(goal), []
        wanted.require(self.name, [e for run in self.runs for e in run.evaluations])
        for run in self.runs:
            first = wanted.first_reached(run.evaluations)
            found = {"event": first and first.event, "time": first and first.time}
            rows.append(
                {"seed": run.seed, **found, **cost_columns(None if first is None else first.costs)}
            )
        return Table.of_rows(rows, ("seed", "event", "time"))

    def plot(self, metric: str = "AvgRare", ax: Any = None, over: str = "event") -> Any:
        """Plot a metric over the events, one line per seed, and return the matplotlib axes.

        Args:
            metric: A column of `curves`, or a label, to plot the label's recall.
            ax: The axes to plot into; by default new ones.
            over: Another column for the horizontal axis: "time", or with costs "hours", "MB" or
                "kJ".

        """
        try:
            from matplotlib import pyplot
        except ModuleNotFoundError:
            raise MissingExtra("matplotlib", "report") from None
        table = self.curves if metric in self.curves else self.recalls
        if metric not in table:
            known = {*self.curves.columns[4:], *self.recalls.columns[3:]}
            raise BadInput(f"there is no metric {metric!r} to plot; {nearest(metric, known)}")
        across = [name for name in ("event", "time", *COSTS) if name in self.curves]
        if over not in across:
            raise BadInput(f"over = {over!r} is not an axis of this run; {nearest(over, across)}")
        ax = pyplot.subplots()[1] if ax is None else ax
        rows = list(zip(self.curves[over], table.rows(), strict=True))
        for run in self.runs:
            points = [(at, r[metric]) for at, r in rows if r["seed"] == run.seed]
            known_points = [point for point in points if point[1] is not None]
            seed = "" if run.seed is None else f", seed {run.seed}"
            ax.plot(*zip(*known_points, strict=True), label=f"{self.name}{seed}")
        units = {"time": "virtual seconds", "hours": "virtual hours"}
        ax.set_xlabel(units.get(over, over))
        ax.set_ylabel(metric if table is self.curves else f"recall of {metric} (%)")
        ax.legend()
        return ax

    def __repr__(self) -> str:
        return f"{self._title()}\n{self._short()!r}"

    def _repr_html_(self) -> str:
        """Return the result as HTML, for notebooks."""
        return f"<p>{html.escape(self._title())}</p>{self._short()._repr_html_()}"

    def _title(self) -> str:
        runs = "1 seed" if len(self.runs) == 1 else f"{len(self.runs)} seeds"
        if self.seeds == (None,):
            runs = "a federation"
        events = max(run.summary["events"] for run in self.runs)
        state = "" if self.finished else ", not finished"
        place = self.runs[0].folder
        where = "" if place is None else f", {place.parent if len(self.runs) > 1 else place}"
        values = f"; {VALUES_OF[False]}" if any(m in self.summary for m in QUALITY) else ""
        return f"{self.name}: {runs} of {events:,} events{state}{where}{values}"

    def _short(self) -> Table:
        """Return the most important metrics that the run has."""
        columns = [key for key in ("seed", *METRICS) if key in self.summary]
        columns[3:3] = [key for key in _GOALS.values() if key in self.summary]
        own = self.runs[0].summary.get("own", {})
        shown = [*columns[:7], *(key for key in own if key in self.summary)][:9]
        return Table({key: self.summary[key] for key in shown})

    def _run(self, seed: int | None) -> SeedResult:
        if seed is None:
            return self.runs[0]
        for run in self.runs:
            if run.seed == seed:
                return run
        known = ", ".join(map(str, self.seeds))
        raise BadInput(f"there is no seed {seed!r} in this result; it has {known}")


def _whole(arrivals: float | None) -> int | None:
    return None if arrivals is None else int(arrivals)


def load(folder: str | Path) -> Result:
    """Read a result from its folder.

    Args:
        folder: The folder of a run with the folders of its seeds, the folder of one seed, or that
            of a server. If the run is still going on, the result has what its log has so far.

    """
    runs: dict[str, list[SeedResult]] = {}
    for log in find_logs(Path(folder)):
        result = _read(log)
        runs.setdefault(identity(result.name, result.summary["spec"]), []).append(result)
    if len(runs) > 1:
        places = [f"{own[0].folder}" for own in runs.values()]
        raise BadInput(
            f"{folder} holds {len(runs)} different runs, for example {places[0]} and {places[1]}; "
            "load one of them, or give all to fedraw.compare"
        )
    (own,) = runs.values()
    return Result(own)


def _read(log: Path) -> SeedResult:
    state = RunState.read(log)
    if state.start is None:
        raise BadInput(f"{log} has no record yet; wait until the run has begun")
    content, folder, end = state.summary(), log.parent, end_of_log(log)
    return SeedResult(content["name"], content["seed"], content, folder=folder, end=end)


def problems_of(runs: Sequence[SeedResult]) -> list[str]:
    """Return the problems of the runs: refused updates, and models that never changed."""
    found = []
    for run in runs:
        summary = run.summary
        refused = sum(summary["rejected"].values())
        if refused:
            worst = max(summary["rejected"], key=summary["rejected"].__getitem__)
            found.append(
                f"seed {run.seed}: {refused} of {summary['events']} updates were refused, most of "
                f"them from client {worst}; the first: {first_refusal([run])}"
            )
        if summary.get("ended"):
            found.append(
                f"seed {run.seed}: the run ended after {summary['events']} events: "
                f"{summary['ended']}"
            )
        if not summary["metrics"]["Aggregations"]:
            found.append(
                f"seed {run.seed}: the model never changed, because nothing was aggregated in "
                f"{summary['events']} events"
            )
    return found


def first_refusal(runs: Sequence[SeedResult]) -> str:
    """Return the reason of the first refused update."""
    refused = (r for run in runs for r in run.records() if isinstance(r, RejectedRecord))
    return next(refused).reason


def accepted_nothing(run: SeedResult) -> bool:
    """Return whether every update of a run was refused."""
    refused = sum(run.summary["rejected"].values())
    return bool(refused == run.summary["events"] > 0)
