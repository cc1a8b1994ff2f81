"""The event loop: virtual time, one arrival at a time."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any, NamedTuple

import numpy as np

from fedraw.core.labels import LabelTable
from fedraw.core.layout import Layout
from fedraw.core.types import ClientId, Vector
from fedraw.core.update import Update, difference
from fedraw.core.witness import News
from fedraw.errors import BadInput, RefusedUpdate
from fedraw.simulation.arrivals import ArrivalLaw
from fedraw.simulation.drift import Drift
from fedraw.simulation.executor import Executor, Job
from fedraw.strategies.strategy import (
    Arrived,
    Contents,
    Declared,
    State,
    Strategy,
    news,
    refuse_unknown_statistics,
)

# What a client makes of its trained model before it is sent; beside it, the model it started from.
Tamper = Callable[[Vector, Vector], Vector]


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
    doubts: Sequence[News] = ()


@dataclass(slots=True, eq=False)
class Flight:
    """A client in training: the model it was handed, and when."""

    model: Vector
    version: int
    event: int
    time: float


@dataclass
class Timeline:
    """Where virtual time stands: everything of the loop that is not the strategy's state."""

    now: float = 0.0
    event: int = 0
    turn: int = 0
    # A heap, in which the turn settles ties.
    due: list[tuple[float, int, ClientId]] = field(default_factory=list)
    in_flight: dict[ClientId, Flight] = field(default_factory=dict)
    waiting: list[ClientId] = field(default_factory=list)
    waiting_first: list[ClientId] = field(default_factory=list)
    trainings: dict[ClientId, int] = field(default_factory=dict)
    mid_round: bool = False


@dataclass
class Saved:
    """A simulation between two arrivals."""

    timeline: Timeline
    state: Any
    receivers: str  # the state of the generator that draws among those waiting, as JSON


class Simulation:
    """Runs a strategy in virtual time; the caller decides when to evaluate, log and stop.

    Those whom the strategy names as receivers wait; while fewer than `concurrency` clients train,
    one of those waiting, drawn uniformly, is handed the current model; those in `first` before all
    others. With the default concurrency, everyone, nobody ever waits.
    """

    def __init__(  # noqa: PLR0913
        self,
        strategy: Strategy[Any],
        model: Vector,
        clients: LabelTable,
        law: ArrivalLaw,
        executor: Executor,
        *,
        concurrency: int | None = None,
        receivers: np.random.Generator | None = None,
        first: Collection[ClientId] = (),
        layout: Layout | None = None,
        tampers: Mapping[ClientId, Tamper] | None = None,
        drift: Drift | None = None,
    ) -> None:
        if concurrency is not None and concurrency < 1:
            raise BadInput(f"concurrency = {concurrency} must be at least 1")
        refuse_unknown_statistics(strategy, layout)
        self._strategy = strategy
        self._sends_delta = strategy.request.sends == "delta"
        self._law = law
        self._executor = executor
        self._layout = layout
        self._tampers = tampers or {}
        self._drift = drift
        self._concurrency = concurrency or len(clients)
        self._nobody_waits = self._concurrency >= len(clients)
        self._rng = receivers or np.random.default_rng(0)
        self._go_first = frozenset(first)
        self._position = {client: i for i, client in enumerate(clients.clients)}
        self.timeline = Timeline()
        self.state: State
        # Handed out at the first step: what is restored instead must not have begun to train.
        self.state, self._first = strategy.start(model, clients)

    def save(self) -> Saved:
        """What it takes to go on from here, bit for bit; it shares arrays with this simulation."""
        return Saved(self.timeline, self.state, json.dumps(self._rng.bit_generator.state))

    def restore(self, saved: Saved) -> None:
        """Go on from what another simulation of the same scenario has saved."""
        self.timeline, self.state, self._first = saved.timeline, saved.state, ()
        self._rng.bit_generator.state = json.loads(saved.receivers)
        for due, _, client in sorted(self.timeline.due):
            training = self.timeline.trainings[client] - 1
            flight = self.timeline.in_flight[client]
            place = self._place(client, flight.event)
            self._executor.submit(Job(client, place, training, flight.model, due))

    @property
    def mid_round(self) -> bool:
        """Whether the last update led to no hand-out: a synchronous method waits for the rest."""
        return self.timeline.mid_round

    def step(self) -> Step:
        """Advance to the next arrival."""
        timeline = self.timeline
        if self._first:
            self._hand_out(self._first)
            self._first = ()
        if self._drift is not None and timeline.event == self._drift.at:
            self._redeclare(self._drift)
        if not timeline.due:
            raise BadInput("nobody is training, so nothing can arrive: the strategy named no one")
        timeline.now, _, client = heappop(timeline.due)
        timeline.event += 1
        flight = timeline.in_flight.pop(client)
        before = self.state.version
        refused = None
        try:
            arrived = Arrived(self._update(client, flight))
            self.state, receivers = self._strategy.step(self.state, arrived)
            timeline.mid_round = not receivers
        except RefusedUpdate as refusal:
            refused, receivers = str(refusal), [client]
        self._hand_out(receivers)
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
            news(self.state),
        )

    def _redeclare(self, drift: Drift) -> None:
        for client, counts in drift.declared.items():
            self.state, _ = self._strategy.step(self.state, Declared(client, counts))

    def _place(self, client: ClientId, event: int) -> int:
        """Where the data lie on which a client trains that is handed the model after `event`.

        What it has later lies behind what everyone has first.
        """
        later = self._drift is not None and event >= self._drift.at
        return self._position[client] + later * len(self._position)

    def _update(self, client: ClientId, flight: Flight) -> Update:
        trained = self._executor.collect(client)
        vector, tamper = trained.vector, self._tampers.get(client)
        if tamper is not None:
            vector = tamper(vector, flight.model)
        if self._sends_delta and vector.shape == flight.model.shape:
            vector = difference(vector, flight.model, self._layout)
        return Update(client, flight.version, vector, trained.examples, trained.loss)

    def _hand_out(self, receivers: Iterable[ClientId]) -> None:
        if self._nobody_waits:
            for client in receivers:
                self._launch(client)
            return
        ordinary, first = self.timeline.waiting, self.timeline.waiting_first
        in_flight = self.timeline.in_flight
        for client in receivers:
            (first if client in self._go_first else ordinary).append(client)
        while (waiting := first or ordinary) and len(in_flight) < self._concurrency:
            drawn = int(self._rng.integers(len(waiting)))
            waiting[drawn], waiting[-1] = waiting[-1], waiting[drawn]
            self._launch(waiting.pop())

    def _launch(self, client: ClientId) -> None:
        timeline, state, position = self.timeline, self.state, self._position[client]
        training = timeline.trainings.get(client, 0)
        timeline.trainings[client] = training + 1
        due = timeline.now + self._law.duration(position, training)
        heappush(timeline.due, (due, timeline.turn, client))
        timeline.turn += 1
        timeline.in_flight[client] = Flight(
            state.model, state.version, timeline.event, timeline.now
        )
        place = self._place(client, timeline.event)
        self._executor.submit(Job(client, place, training, state.model, due))
