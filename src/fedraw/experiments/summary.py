"""What a run's event log comes to: the same whether read from disk or fed while running."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fedraw.core.labels import LabelTable
from fedraw.core.types import ClientId
from fedraw.disk.event_log import Record
from fedraw.experiments.membership import Changes, Membership
from fedraw.metrics.dynamics import Dynamics
from fedraw.metrics.influence import Influence, label_influence

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
        self._events = 0
        self._rejected: dict[str, int] = {}
        self._doubted: dict[str, list[str]] = {}
        self._begin({})

    @classmethod
    def of(cls, records: Iterable[Record]) -> Summary:
        summary = cls()
        for record in records:
            summary.observe(record)
        return summary

    def _begin(self, start: Record) -> None:
        self.start = start
        self._membership = Membership(start.get("rare_labels", ()))
        self._dynamics = Dynamics(attacker=start.get("attacker"))
        self._influence = Influence(rule=start.get("influence", "slots"))

    def observe(self, record: Record) -> None:
        match record["kind"]:
            case "arrival":
                self._events = record["event"]
                self._dynamics.observe(record)
                self._influence.observe(record)
            case "evaluation":
                self.evaluations.append(record)
            case "rejected":
                self._events = record["event"]
                client = str(record["client"])
                self._rejected[client] = self._rejected.get(client, 0) + 1
            case "doubted" | "cleared":
                self._doubt(str(record["client"]), str(record["label"]), record["kind"])
            case "start":
                self._begin(record)
            case "end":
                self.finished = True
            case "joined":
                if record["client"] not in self._membership.members:
                    self._influence.joined(record["client"])
                self._membership.joined(record)
                self._count(record["client"])
            case "declared" if "counts" in record:  # else a false claim, which changes nothing
                self._membership.declared(record)
                self._count(record["client"])
            case "left":
                if record["client"] in self._membership.members:
                    self._influence.left(record["client"])
                self._membership.left(record)
            case "restarted":
                self._membership.restarted(record)

    def _count(self, client: ClientId) -> None:
        rare = self._membership.is_rare(client)
        self._dynamics.count_as(client, rare)
        self._influence.count_as(client, rare)

    @property
    def events(self) -> int:
        """How many updates have reached the server, refused ones included."""
        return self._events

    @property
    def clients(self) -> list[ClientId]:
        """Everyone who ever took part."""
        return list(self._membership.counts)

    @property
    def members(self) -> list[ClientId]:
        """Those who take part now."""
        return list(self._membership.members)

    @property
    def changes(self) -> Changes:
        return self._membership.changes

    @property
    def rejected(self) -> dict[str, int]:
        """How many updates were refused, by client."""
        return dict(self._rejected)

    @property
    def doubted(self) -> dict[str, list[str]]:
        """Labels about which a client's updates contradict it, by client."""
        return {client: list(labels) for client, labels in self._doubted.items() if labels}

    @property
    def rare_clients(self) -> list[ClientId]:
        """Those that hold a label that the metrics call rare; also those that have left."""
        return self._membership.rare

    def dynamics(self) -> dict[str, float | None]:
        """Who reached the buffer so far, and how stale: see metrics.dynamics."""
        return self._dynamics.metrics()

    def as_dict(self) -> dict[str, Any]:
        """The content of summary.json."""
        last = self.evaluations[-1] if self.evaluations else {}
        influence = self._influence.by_client()
        counts = self._membership.counts
        measured = {**last.get("metrics", {}), **self.dynamics()}
        measured["RareInfluence"] = self._influence.of_rare()
        table = LabelTable.from_counts({c: held for c, held in counts.items() if held})
        labels = label_influence(influence, table) if influence else {}
        changes = self.changes.as_dict()
        return {
            "name": self.start.get("name"),
            "seed": self.start.get("seed"),
            "notes": self.start.get("notes", []),
            "finished": self.finished,
            "events": self._events,
            "rejected": self._rejected,
            **({"doubted": self.doubted} if self.doubted else {}),
            **({"inferred": last["inferred"]} if "inferred" in last else {}),
            "metrics": {**dict.fromkeys(METRICS), **measured},
            "tail": self._tail(),
            "server_models": max((e.get("server_models", 0) for e in self.evaluations), default=0),
            "recall": last.get("recall", {}),
            "confusion": last.get("confusion"),
            "influence": {str(client): influence.get(client, 0.0) for client in counts},
            "label_influence": {str(label): value._asdict() for label, value in labels.items()},
            **({"changes": changes} if changes else {}),
            "spec": self.start.get("spec", {}),
        }

    def _doubt(self, client: str, label: str, kind: str) -> None:
        others = [known for known in self._doubted.get(client, []) if known != label]
        self._doubted[client] = [*others, label] if kind == "doubted" else others

    def _tail(self) -> dict[str, float | None]:
        """The mean of the last five evaluations; None where one of them is."""
        last = [evaluation["metrics"] for evaluation in self.evaluations[-TAIL:]]
        names = last[0] if last else ()
        columns = {name: [metrics[name] for metrics in last] for name in names}
        return {
            name: None if None in values else sum(values) / len(values)
            for name, values in columns.items()
        }
