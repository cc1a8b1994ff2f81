"""What a run's event log comes to: the same whether read from disk or fed while running."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fedraw.core.labels import LabelTable
from fedraw.core.types import ClientId
from fedraw.experiments.event_log import Record
from fedraw.metrics.dynamics import Dynamics
from fedraw.metrics.influence import Influence, group_influence, label_influence

# What the model can do: the higher the better; in percent, Jain in 0..1.
QUALITY = (
    "GlobalAcc",
    "AvgRare",
    "MacroF1",
    "RareF1",
    "RareF2",
    "Worst10",
    "LocalRare",
    "LocalCommon",
    "MeanClient",
    "Jain",
)
# Who reaches the server: shares in percent, staleness in events.
PARTICIPATION = ("BufPres", "RarePart", "RareMeanStale", "RareMaxStale")
# The order of a full table.
METRICS = QUALITY + PARTICIPATION
TAIL = 5


class Summary:
    """Takes in records one by one."""

    def __init__(self) -> None:
        self.start: Record = {}
        self.evaluations: list[Record] = []
        self.finished = False
        self._counts: dict[ClientId, dict[str, int]] = {}
        self._events = 0
        self._rejected: dict[str, int] = {}
        self._dynamics: Dynamics | None = None
        self._influence: Influence | None = None

    @classmethod
    def of(cls, records: Iterable[Record]) -> Summary:
        summary = cls()
        for record in records:
            summary.observe(record)
        return summary

    def observe(self, record: Record) -> None:
        match record["kind"]:
            case "arrival":
                if self._dynamics is None or self._influence is None:
                    self._dynamics = Dynamics(self.rare_clients, self.start.get("attacker"))
                    rule = self.start.get("influence", "slots")
                    self._influence = Influence(len(self._counts), rule)
                self._events = record["event"]
                self._dynamics.observe(record)
                self._influence.observe(record)
            case "evaluation":
                self.evaluations.append(record)
            case "rejected":
                self._events = record["event"]
                client = str(record["client"])
                self._rejected[client] = self._rejected.get(client, 0) + 1
            case "joined":
                self._counts[record["client"]] = record["counts"]
            case "start":
                self.start = record
            case "end":
                self.finished = True

    @property
    def events(self) -> int:
        """How many updates have reached the server, refused ones included."""
        return self._events

    @property
    def clients(self) -> list[ClientId]:
        return list(self._counts)

    @property
    def rejected(self) -> dict[str, int]:
        """How many updates were refused, by client."""
        return dict(self._rejected)

    @property
    def rare_clients(self) -> list[ClientId]:
        """Those that hold a label that the metrics call rare."""
        rare = set(self.start.get("rare_labels", ()))
        return [c for c, counts in self._counts.items() if not rare.isdisjoint(counts)]

    def dynamics(self) -> dict[str, float | None]:
        """Who reached the buffer so far, and how stale: see metrics.dynamics."""
        dynamics = Dynamics(self.rare_clients) if self._dynamics is None else self._dynamics
        return dynamics.metrics()

    def as_dict(self) -> dict[str, Any]:
        """The content of summary.json."""
        last = self.evaluations[-1] if self.evaluations else {}
        influence = {} if self._influence is None else self._influence.by_client()
        measured = {**last.get("metrics", {}), **self.dynamics()}
        rare = self.rare_clients
        measured["RareInfluence"] = group_influence(influence, rare) if rare and influence else None
        table = LabelTable.from_counts(self._counts)
        labels = label_influence(influence, table) if influence else {}
        return {
            "name": self.start.get("name"),
            "seed": self.start.get("seed"),
            "notes": self.start.get("notes", []),
            "finished": self.finished,
            "events": self._events,
            "rejected": self._rejected,
            "metrics": {**dict.fromkeys(METRICS), **measured},
            "tail": self._tail(),
            "recall": last.get("recall", {}),
            "confusion": last.get("confusion"),
            "influence": {str(client): influence.get(client, 0.0) for client in self._counts},
            "label_influence": {str(label): value._asdict() for label, value in labels.items()},
            "spec": self.start.get("spec", {}),
        }

    def _tail(self) -> dict[str, float | None]:
        """The mean of the last five evaluations; None where one of them is."""
        last = [evaluation["metrics"] for evaluation in self.evaluations[-TAIL:]]
        names = last[0] if last else ()
        columns = {name: [metrics[name] for metrics in last] for name in names}
        return {
            name: None if None in values else sum(values) / len(values)
            for name, values in columns.items()
        }
