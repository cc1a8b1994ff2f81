"""Sites in memory that reply to a real coordinator, with a manual clock and without a network."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from tests.eventlog.logs import read_objects

from fedraw.core.layout import Layout
from fedraw.core.types import Vector
from fedraw.server.coordinator import Coordinator, open_federation
from fedraw.server.results import EvaluationOutput
from fedraw.server.settings import ServerSettings
from fedraw.server.tasks import (
    EvaluateReply,
    Failure,
    LabelSummary,
    Reply,
    Task,
    TaskKind,
    TrainReply,
)
from fedraw.strategies.fedfa import FedFa
from fedraw.strategies.protocol import Strategy

SIZE = 4
LAYOUT = Layout.of([("head.weight", (2, 1)), ("head.bias", (2,))])
COUNTS = {
    "north": {"cat": 6, "dog": 4},
    "south": {"cat": 5, "dog": 5},
    "east": {"dog": 8},
    "west": {"owl": 3, "cat": 1},
}


@dataclass
class Site:
    """A site: its node, its training time, and its replies if it is not honest."""

    node: int
    seconds: float = 1.0
    counts: Mapping[str, Any] = field(default_factory=dict)
    name: str | None = None  # under which it introduces itself
    reply: Callable[[Task, TrainReply], Reply] | None = None
    trained: int = 0
    evaluated: Callable[[Task, EvaluateReply], Reply] | None = None


class Engine:
    """Delivers tasks and replies between a coordinator and its sites."""

    def __init__(
        self,
        folder: Path,
        strategy: Strategy[Any] | None = None,
        sites: Mapping[str, Mapping[str, Any]] = COUNTS,
        evaluate: Callable[[Vector], EvaluationOutput] | None = None,
        model: Vector | None = None,
        layout: Layout = LAYOUT,
        only: tuple[str, ...] = (),
        *,
        pace: float = 1.0,
        train_config: Callable[[str, int], Mapping[str, Any]] | None = None,
        **settings: Any,
    ) -> None:
        self.now = 1_000_000.0
        self.wall_shift = 0.0  # of the wall clock, from `now`
        self.strategy = FedFa(buffer=2) if strategy is None else strategy
        defaults = {"sites": only, "arrivals": 1000, "min_clients": len(sites), "evaluate_every": 0}
        self.settings = ServerSettings(folder=folder, **{**defaults, **settings})
        self.evaluate = evaluate
        self.train_config = train_config
        self.layout = layout
        self.model = np.zeros(layout.size, np.float32) if model is None else model
        self.sites = {
            name: Site(100 + i, pace * (1.0 + i), counts)
            for i, (name, counts) in enumerate(sites.items())
        }
        self.online = set(self.sites)
        self.unreachable: set[str | None] = set()  # sites to which nothing can be sent
        self.delays: dict[TaskKind, float] = {}  # of all replies to a kind of task, in seconds
        self.replies: list[tuple[float, str, Reply]] = []
        self.sent: list[Task] = []
        self.coordinator = self.open()

    def open(self) -> Coordinator:
        return open_federation(
            self.strategy,
            lambda: self.model,
            self.settings,
            self.layout,
            evaluate=self.evaluate,
            train_config=self.train_config,
            engine="test",
            now=self.now,
            wall=lambda: self.now + self.wall_shift,
        )

    def restart(self, away: float = 10.0, **settings: Any) -> None:
        """Kill and restart the process; pending tasks never get a reply."""
        self.coordinator._store.log.close()
        self.replies = []
        self.now += away
        self.settings = replace(self.settings, **settings)
        self.coordinator = self.open()

    def turn(self) -> None:
        """One turn of an engine's loop."""
        leader = self.coordinator
        leader.online(
            {site.node for name, site in self.sites.items() if name in self.online}, self.now
        )
        for task in leader.tasks(self.now):
            if task.site in self.unreachable:
                leader.not_sent(task, "no route", self.now)
                continue
            message_id = f"message_id {task.number} at {self.now}"
            leader.sent(task, message_id)
            self.sent.append(task)
            self._serve(task, message_id)
        for due, message_id, reply in sorted(self.replies, key=lambda entry: entry[:2]):
            if due <= self.now:
                self.replies.remove((due, message_id, reply))
                leader.receive(message_id, reply, self.now)
        leader.tick(self.now)

    def run(self, until: Callable[[], bool], limit: int = 2000, step: float = 0.5) -> None:
        for _ in range(limit):
            if until():
                return
            self.now += step
            self.turn()
        raise AssertionError(f"not within {limit} turns; the log: {self.kinds()}")

    def accept(self, arrivals: int) -> None:
        """Run until this many updates are accepted."""
        self.run(lambda: self.coordinator.accepted >= arrivals)

    def wait(self, seconds: float) -> None:
        until = self.now + seconds
        self.run(lambda: self.now >= until, limit=100_000)

    def log(self, *kinds: str) -> list[dict[str, Any]]:
        path = self.settings.folder / "events.jsonl"
        records = read_objects(path) if path.stat().st_size else ()
        return [record for record in records if not kinds or record["kind"] in kinds]

    def kinds(self) -> list[str]:
        return [record["kind"] for record in self.log()]

    def reasons(self, kind: str = "note") -> str:
        return "\n".join(str(record["reason"]) for record in self.log(kind))

    def _serve(self, task: Task, message_id: str) -> None:
        name = next(name for name, site in self.sites.items() if site.node == task.node)
        site = self.sites[name]
        reply: Reply
        delay = self.delays.get(task.kind, 0.0)
        if task.kind == "summary":
            reply = LabelSummary(site.name or name, site.counts)
        elif task.kind == "evaluate":
            total = {label: int(n) for label, n in site.counts.items()}
            right = {label: n // 2 for label, n in total.items()}
            reply = honest_test = EvaluateReply(name, task.number, right, total)
            if site.evaluated is not None:
                reply = site.evaluated(task, honest_test)
        else:
            site.trained += 1
            delay += site.seconds
            honest = self._train(name, task)
            reply = honest if site.reply is None else site.reply(task, honest)
        if name in self.online:
            self.replies.append((self.now + delay, message_id, reply))

    def _train(self, name: str, task: Task) -> TrainReply:
        assert task.model is not None
        site = self.sites[name]
        drawn = np.random.default_rng([site.node, site.trained]).normal(size=self.layout.size)
        sends = self.coordinator.needs.sends
        vector = np.asarray(drawn + (task.model if sends == "model" else 0), np.float32)
        return TrainReply(name, task.number, task.version, vector, 10, 0.5)


def failing(task: Task, honest: TrainReply) -> Reply:
    return Failure("the client app crashed")
