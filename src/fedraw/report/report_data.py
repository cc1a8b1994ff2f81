"""The data of a report: each log is read once into a summary and a binned history."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from fedraw.core.types import ClientId
from fedraw.errors import BadInput
from fedraw.eventlog.compare import Group, SeedRun, Stat, grouped
from fedraw.eventlog.log_file import find_logs
from fedraw.eventlog.records import ArrivalRecord, EvaluationRecord, Record
from fedraw.eventlog.state import RunState
from fedraw.eventlog.summary import read_run

# The number of bins for the events of a run, so that the history of a long log is small.
BINS = 24
# Events per bin, for a log without the number of events of the run.
WIDTH_WITHOUT_END = 100
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95, 1.0)


@dataclass(frozen=True, eq=False)
class ReportData:
    """The groups of a comparison, and the history of each of their seeds."""

    groups: Sequence[Group]
    histories: Mapping[str, Sequence[RunHistory]]  # by the group's name, in the order of its runs
    last: bool = False  # whether tables show the last model instead of the last five evaluations

    @property
    def names(self) -> list[str]:
        """The names of the groups."""
        return [group.name for group in self.groups]

    @property
    def runs(self) -> Iterator[tuple[str, SeedRun]]:
        """Each seed with the name of its group."""
        for group in self.groups:
            for run in group.runs:
                yield group.name, run

    @property
    def evaluations(self) -> dict[str, list[Sequence[EvaluationRecord]]]:
        """The evaluations of each seed, by group."""
        return {group.name: [run.evaluations for run in group.runs] for group in self.groups}


def read_report_data(folders: Iterable[Path], *, last: bool = False) -> ReportData:
    """Read all runs at or below these folders; an interrupted run is read up to its end.

    Metrics are means of the last five evaluations, or with `last` those of the last model.
    """
    runs: list[SeedRun] = []
    histories: dict[Path, RunHistory] = {}
    for log in dict.fromkeys(log for folder in folders for log in find_logs(folder)):
        run, history = _read(log)
        runs.append(run)
        histories[log.parent] = history
    _refuse_other_data(runs)
    groups = grouped(runs, last=last)
    by_name = {group.name: [histories[run.folder] for run in group.runs] for group in groups}
    return ReportData(groups, by_name, last)


def interruption(run: SeedRun) -> str:
    """Return where an unfinished run ends, as text; empty for a finished run."""
    if run.summary["finished"]:
        return ""
    wanted = run.start.events
    of_all = "" if wanted is None else f" of {wanted}"
    # A server that has not finished may still be running.
    state = "not finished, at" if run.start.is_server else "interrupted at"
    return f"{state} event {run.summary['events']}{of_all}"


def rare_labels(groups: Sequence[Group]) -> list[str]:
    """Return the rare labels of all runs, each once."""
    return list(dict.fromkeys(x for g in groups for run in g.runs for x in run.start.rare_labels))


def labels(groups: Sequence[Group]) -> list[str]:
    """Return the labels of all runs, each once."""
    return list(dict.fromkeys(x for g in groups for run in g.runs for x in run.start.labels))


def mean_over(group: Group, value: Callable[[SeedRun], Any]) -> float | None:
    """Return the mean of a value over the seeds of a group; None if a seed has no value."""
    return Stat.of([value(run) for run in group.runs]).mean


def recall_means(groups: Sequence[Group], last: bool) -> dict[str, list[float | None]]:
    """Return the mean recall of each label that was measured, one value for each group.

    The rare labels come first. `last` asks for the last model instead of the last five evaluations.
    """
    order = dict.fromkeys([*rare_labels(groups), *labels(groups)])
    means = {label: [_mean_recall(group, label, last) for group in groups] for label in order}
    return {label: row for label, row in means.items() if any(v is not None for v in row)}


def _mean_recall(group: Group, label: str, last: bool) -> float | None:
    key = "recall" if last else "tail_recall"
    return mean_over(group, lambda run: run.summary[key].get(label))


def _read(log: Path) -> tuple[SeedRun, RunHistory]:
    history = RunHistory()
    for record in read_run(log):
        history.observe(record)
    if history.state.start is None or not history.state.counts:
        raise BadInput(
            f"{log} has no clients, because the run never began; leave the run out, or run it again"
        )
    return SeedRun.of(history.state, log.parent), history


def _refuse_other_data(runs: Sequence[SeedRun]) -> None:
    """Refuse runs on different data or labels, whose results cannot be compared."""
    of_seed: dict[Any, SeedRun] = {}
    for run in runs:
        # Another seed may draw other test data, but the same number of samples.
        _refuse(runs[0], run, "data", _form)
        _refuse(runs[0], run, "labels", _label_list)
        _refuse(of_seed.setdefault(run.start.seed, run), run, "data", _fingerprint)


def _refuse(one: SeedRun, other: SeedRun, what: str, facts: Callable[[SeedRun], str]) -> None:
    first, second = facts(one), facts(other)
    if first != second:
        raise BadInput(
            f"{one.folder} and {other.folder} cannot be compared, because their {what} differ: "
            f"{_cut(first)} and {_cut(second)}; make one report for each"
        )


def _label_list(run: SeedRun) -> str:
    if run.start.is_server:  # sites that joined later may have brought further labels
        return "those of the sites"
    return ", ".join(run.start.labels)


def _form(run: SeedRun) -> str:
    data = run.start.data or {}
    sizes = [f"{data[key]} {key} samples" for key in ("train", "test") if key in data]
    return ", ".join([_data_name(run), *sizes])


def _fingerprint(run: SeedRun) -> str:
    sha = (run.start.data or {}).get("sha256")
    return f"{_data_name(run)}, sha256 {sha}" if sha else _data_name(run)


def _data_name(run: SeedRun) -> str:
    if run.start.is_server:
        return "those of a real federation"
    return str(run.summary["spec"].get("data", {}).get("name", "data"))


def _cut(words: str) -> str:
    return words if len(words) <= 120 else f"{words[:119]}…"


class HistoryPoint(NamedTuple):
    """One bin of a history, in percent except `rare_clients`; None if it is undefined.

    A bin without an aggregation has no values, and a run without rare clients has no values for
    them.
    """

    event: float  # the middle of the bin
    end: float  # its last event
    presence: float | None  # share of aggregations with a rare client in the buffer
    rare_clients: float | None  # mean number of rare clients in the buffer
    largest: float | None  # mean weight of the client with the largest weight
    rare_weight: float | None  # mean weight of all rare clients together


@dataclass
class _Bin:
    aggregations: int = 0
    with_rare: int = 0
    rare_clients: int = 0
    weighed: int = 0
    largest: float = 0.0
    rare_weight: float = 0.0


class RunHistory:
    """The state of a run, and the buffer, the weights and the staleness over it, in bins."""

    def __init__(self) -> None:
        self.state = RunState()
        self.rare_staleness: Counter[int] = Counter()
        self.common_staleness: Counter[int] = Counter()
        self._bins: defaultdict[int, _Bin] = defaultdict(_Bin)

    def observe(self, record: Record) -> None:
        """Read the next record of the log."""
        self.state.apply(record)
        if isinstance(record, ArrivalRecord):
            is_rare = record.client in self.state.rare
            stale = self.rare_staleness if is_rare else self.common_staleness
            stale[record.staleness_events] += 1
            if record.aggregated:
                self._aggregate(record)

    @property
    def samples(self) -> dict[ClientId, int]:
        """The number of samples of all clients that ever took part."""
        return {client: sum(held.values()) for client, held in self.state.counts.items()}

    def points(self) -> list[HistoryPoint]:
        """Return one point for each bin up to the last aggregation."""
        if not self._bins:
            return []
        return [self._point(number) for number in range(max(self._bins) + 1)]

    @property
    def _wanted(self) -> int:
        """The number of events of the run, if the log has one."""
        return (self.state.start.events if self.state.start else None) or 0

    @property
    def _width(self) -> float:
        return max(1.0, self._wanted / BINS) if self._wanted > 0 else float(WIDTH_WITHOUT_END)

    def _aggregate(self, arrival: ArrivalRecord) -> None:
        rare, number = self.state.rare, int((arrival.event - 1) / self._width)
        # Events beyond the requested number finish a round; they belong to the last bin.
        last = min(BINS, self._wanted) - 1 if self._wanted > 0 else number
        bin_ = self._bins[min(number, last)]
        present = rare.intersection(arrival.buffer)
        bin_.aggregations += 1
        bin_.with_rare += bool(present)
        bin_.rare_clients += len(present)
        by_client = self.state.weights(arrival)
        if by_client:
            bin_.weighed += 1
            bin_.largest += max(by_client.values())
            bin_.rare_weight += sum(by_client[client] for client in rare & by_client.keys())

    def _point(self, number: int) -> HistoryPoint:
        bin_ = self._bins.get(number, _Bin())
        count, weighed, any_rare = bin_.aggregations, bin_.weighed, self.state.any_rare
        return HistoryPoint(
            event=(number + 0.5) * self._width,
            end=(number + 1) * self._width,
            presence=100 * bin_.with_rare / count if count and any_rare else None,
            rare_clients=bin_.rare_clients / count if count and any_rare else None,
            largest=100 * bin_.largest / weighed if weighed else None,
            rare_weight=100 * bin_.rare_weight / weighed if weighed and any_rare else None,
        )


class Spread(NamedTuple):
    """A distribution; `values` are its quantiles at `QUANTILES`."""

    values: tuple[int, ...]
    mean: float
    updates: int


def spreads(data: ReportData) -> dict[str, tuple[Spread | None, Spread | None]]:
    """Return, for each method, the staleness of the common and of the rare clients' updates."""
    return {
        name: (
            spread_of([history.common_staleness for history in histories]),
            spread_of([history.rare_staleness for history in histories]),
        )
        for name, histories in data.histories.items()
    }


def spread_of(counts: Sequence[Mapping[int, int]]) -> Spread | None:
    """Return the distribution of all seeds together; None if nothing was counted.

    >>> spread_of([{0: 90, 7: 5}, {7: 5}])
    Spread(values=(0, 0, 0, 0, 7, 7), mean=0.7, updates=100)
    """
    total: Counter[int] = Counter()
    for some in counts:
        total.update(some)
    count = total.total()
    if not count:
        return None
    values, before, wanted = [], 0, list(QUANTILES)
    for value in sorted(total):
        before += total[value]
        while wanted and before >= wanted[0] * count - 1e-9:
            values.append(value)
            wanted.pop(0)
    mean = sum(value * times for value, times in total.items()) / count
    return Spread(tuple(values), mean, count)


def share_of(part: Collection[ClientId], samples: Mapping[ClientId, int]) -> float | None:
    """Return the share of all samples, in percent, that these clients hold."""
    whole = sum(samples.values())
    return 100 * sum(samples.get(client, 0) for client in part) / whole if whole else None
