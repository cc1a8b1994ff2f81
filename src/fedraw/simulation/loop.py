"""The event loop: virtual time, one arrival at a time."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedraw.core.types import ClientId, Finding, Vector
from fedraw.core.update import Update, difference
from fedraw.errors import BadInput, RefusedUpdate
from fedraw.simulation.arrivals import ArrivalLaw
from fedraw.simulation.executors.base import Executor, Job, TrainingResult
from fedraw.strategies.protocol import (
    Arrived,
    Contents,
    Declared,
    Setup,
    State,
    Strategy,
    scorer_of,
)
from fedraw.strategies.scoring import Scorer
from fedraw.strategies.statistics import with_statistics


@dataclass(frozen=True, eq=False)
class HandOut:
    """How many clients train at once, and who is handed the model next.

    While fewer than `concurrency` clients train, one of the waiting clients, drawn uniformly with
    `rng`, is handed the current model. Clients in `first` come before all others. By default all
    clients train at once, so nobody ever waits.
    """

    concurrency: int | None = None
    first: Collection[ClientId] = ()
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def __post_init__(self) -> None:
        if self.concurrency is not None and self.concurrency < 1:
            raise BadInput(f"concurrency = {self.concurrency} must be at least 1")


class Scheduled(NamedTuple):
    """A change of the clients' data after the arrival number `after`.

    Clients that are handed the model from then on train in the next data epoch. The strategy gets
    the declarations before the next arrival.
    """

    after: int
    declarations: Sequence[Declared] = ()


class Step(NamedTuple):
    """What one arrival did."""

    event: int
    time: float
    client: ClientId
    start_time: float  # when the client was handed its model
    start_version: int
    version: int
    staleness_events: int  # since the client was handed its model
    staleness_versions: int  # before this arrival
    aggregated: bool
    contents: Contents
    refused: str | None = None
    doubts: Sequence[Finding] = ()
    metrics: Mapping[str, float | None] | None = None  # what the client's training reports


@dataclass(slots=True, eq=False)
class InTraining:
    """A client in training: the model it was handed, and when."""

    model: Vector
    version: int
    event: int
    time: float


@dataclass
class Timeline:
    """The state of virtual time: everything in the loop that is not the strategy's state."""

    now: float = 0.0
    event: int = 0
    turn: int = 0
    # A heap, in which the turn settles ties.
    due: list[tuple[float, int, ClientId]] = field(default_factory=list)
    in_flight: dict[ClientId, InTraining] = field(default_factory=dict)
    waiting: list[ClientId] = field(default_factory=list)
    waiting_first: list[ClientId] = field(default_factory=list)
    trainings: dict[ClientId, int] = field(default_factory=dict)
    mid_round: bool = False
    # What clients keep from one training to the next, if they keep anything.
    client_states: dict[ClientId, dict[str, npt.NDArray[Any]]] = field(default_factory=dict)
    # The model of each client's last accepted update, if clients send residuals.
    sent: dict[ClientId, Vector] = field(default_factory=dict)


@dataclass
class Saved:
    """A simulation between two arrivals."""

    timeline: Timeline
    state: Any
    receivers: str  # state of the generator that draws among the waiting clients, as JSON


class Simulation:
    """Runs a strategy in virtual time; the caller decides when to evaluate, log and stop.

    The loop knows two kinds of things that happen: arrivals, whose times come from `law`, and
    `scheduled` changes. Whatever perturbs training wraps the executor.

    Args:
        strategy: Decides what the global model becomes and who is handed it next.
        setup: The initial model, the label counts that clients declare, the model's layout.
        law: How long each training lasts.
        executor: Trains the clients.
        hand_out: How many clients train at once, and who is handed the model next.
        scheduled: Changes of the clients' data, at most one after each arrival.

    """

    def __init__(
        self,
        strategy: Strategy[Any],
        setup: Setup,
        law: ArrivalLaw,
        executor: Executor,
        hand_out: HandOut | None = None,
        scheduled: Iterable[Scheduled] = (),
    ) -> None:
        hand_out = hand_out or HandOut()
        clients = setup.clients
        self._needs = strategy.needs
        self._sends = self._needs.sends
        self._has_findings = self._needs.label_evidence in ("checked", "inferred")
        self._strategy = with_statistics(strategy, setup.layout)
        self._law = law
        self._executor = executor
        self._layout = setup.layout
        self._statistics_size = 0 if setup.layout is None else setup.layout.statistics_count
        self._concurrency = hand_out.concurrency or len(clients)
        self._nobody_waits = self._concurrency >= len(clients)
        self._rng = hand_out.rng
        self._first = frozenset(hand_out.first)
        self._scheduled = {change.after: change.declarations for change in scheduled}
        self._changes = sorted(self._scheduled)
        self._position = {client: i for i, client in enumerate(clients.clients)}
        self.timeline = Timeline()
        self.state: State
        # Handed out in the first step, because a restored simulation must not have begun to train.
        self.state, self._founders = self._strategy.start(setup)
        if self._sends == "residual":
            self.timeline.sent = dict.fromkeys(clients.clients, self.state.model)

    def save(self) -> Saved:
        """What `restore` needs to continue bit for bit; it shares arrays with this simulation."""
        return Saved(self.timeline, self.state, json.dumps(self._rng.bit_generator.state))

    def restore(self, saved: Saved) -> None:
        """Continue from what another simulation of the same scenario has saved."""
        self.timeline, self.state, self._founders = saved.timeline, saved.state, ()
        self._rng.bit_generator.state = json.loads(saved.receivers)
        for due, _, client in sorted(self.timeline.due):
            training = self.timeline.trainings[client] - 1
            self._submit(client, training, due, self.timeline.in_flight[client])

    @property
    def mid_round(self) -> bool:
        """Whether the last update led to no hand-out: a synchronous method waits for the rest."""
        return self.timeline.mid_round

    @property
    def scorer(self) -> Scorer | None:
        """The strategy's scorer, if it uses updates as label evidence."""
        return scorer_of(self._needs, self.state)

    def step(self) -> Step:
        """Advance to the next arrival."""
        timeline = self.timeline
        if self._founders:
            self._hand_out(self._founders)
            self._founders = ()
        if self._changes:
            for declared in self._scheduled.get(timeline.event, ()):
                self.state, _ = self._strategy.step(self.state, declared)
        if not timeline.due:
            raise BadInput("nobody is training, so nothing can arrive: the strategy named no one")
        timeline.now, _, client = heappop(timeline.due)
        timeline.event += 1
        flight = timeline.in_flight.pop(client)
        before = self.state.version
        refused = None
        trained = self._executor.collect(client)
        if trained.state is not None:
            timeline.client_states[client] = dict(trained.state)
        try:
            arrived = Arrived(self._update(client, flight, trained))
            self.state, receivers = self._strategy.step(self.state, arrived)
            timeline.mid_round = not receivers
            if self._sends == "residual":
                timeline.sent[client] = trained.vector
        except RefusedUpdate as refusal:
            refused, receivers = str(refusal), [client]
        self._hand_out(receivers)
        scorer = self.scorer if self._has_findings else None
        event, version = timeline.event, self.state.version
        return Step(
            event,
            timeline.now,
            client,
            flight.time,
            flight.version,
            version,
            event - flight.event,
            before - flight.version,
            version > before,
            self.state.contents,
            refused,
            () if scorer is None else scorer.drain_findings(),
            trained.metrics,
        )

    def _update(self, client: ClientId, flight: InTraining, trained: TrainingResult) -> Update:
        vector = trained.vector
        if vector.shape == flight.model.shape:  # otherwise the strategy refuses it
            if self._sends == "delta":
                vector = difference(vector, flight.model, self._layout)
            elif self._sends == "residual":
                vector = difference(vector, self.timeline.sent[client])
        return Update(
            client, flight.version, vector, trained.examples, trained.loss, self._statistics_size
        )

    def _hand_out(self, receivers: Iterable[ClientId]) -> None:
        if self._nobody_waits:
            for client in receivers:
                self._launch(client)
            return
        ordinary, first = self.timeline.waiting, self.timeline.waiting_first
        in_flight = self.timeline.in_flight
        for client in receivers:
            (first if client in self._first else ordinary).append(client)
        while (waiting := first or ordinary) and len(in_flight) < self._concurrency:
            drawn = int(self._rng.integers(len(waiting)))
            waiting[drawn], waiting[-1] = waiting[-1], waiting[drawn]
            self._launch(waiting.pop())

    def _launch(self, client: ClientId) -> None:
        timeline, state = self.timeline, self.state
        training = timeline.trainings.get(client, 0)
        timeline.trainings[client] = training + 1
        due = timeline.now + self._law.duration(self._position[client], training)
        heappush(timeline.due, (due, timeline.turn, client))
        timeline.turn += 1
        flight = InTraining(state.model, state.version, timeline.event, timeline.now)
        timeline.in_flight[client] = flight
        self._submit(client, training, due, flight)

    def _submit(self, client: ClientId, training: int, due: float, flight: InTraining) -> None:
        epoch = bisect_right(self._changes, flight.event) if self._changes else 0
        state = self.timeline.client_states.get(client)
        job = Job(
            client,
            self._position[client],
            training,
            flight.model,
            due,
            epoch,
            flight.version,
            flight.event,
            state,
        )
        self._executor.submit(job)
