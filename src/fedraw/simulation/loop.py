"""The event loop: virtual time, one arrival at a time."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from math import inf
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedraw.core.collection import paused_collection
from fedraw.core.types import ClientId, Finding, Vector
from fedraw.core.update import Update, difference
from fedraw.errors import BadInput, FedrawError, RefusedUpdate
from fedraw.simulation.arrivals import ArrivalLaw
from fedraw.simulation.executors.base import Executor, Job, TrainingResult
from fedraw.simulation.flights import Conditions, Flight
from fedraw.strategies.protocol import (
    Arrived,
    Contents,
    Declared,
    Event,
    Joined,
    Left,
    Receivers,
    Setup,
    State,
    Strategy,
    checked_answer,
    checked_step,
    finished,
    scorer_of,
)
from fedraw.strategies.scoring import Scorer
from fedraw.strategies.statistics import with_statistics

# A run ends after this many trainings in a row that come to nothing, or 20 for each client.
MOST_LOST = 10_000

_SETS = (set, frozenset)


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


@dataclass(frozen=True, eq=False)
class MembershipChanges:
    """All clients that ever take part, by position, and when they join and leave.

    Clients without a `Joined` are members from the start. Changes are in the order of their times.
    """

    clients: Sequence[ClientId]
    changes: Sequence[tuple[float, Joined | Left]]


class Lost(NamedTuple):
    """A training whose update never reaches the server, and why."""

    client: ClientId
    start_time: float
    reason: str
    paused: float = 0.0


class Happening(NamedTuple):
    """Something that happened between two arrivals."""

    time: float
    what: Joined | Left | Lost


class Stalled(FedrawError):
    """No update can arrive any more; `happened` is what happened since the last one."""

    def __init__(self, reason: str, happened: Sequence[Happening]) -> None:
        super().__init__(reason)
        self.happened = happened


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
    paused: float = 0.0  # seconds that the client was offline while it trained
    happened: Sequence[Happening] = ()  # since the last arrival


@dataclass(slots=True, eq=False)
class InTraining:
    """A client in training: the model it was handed, and when; the rest is as in a `Flight`."""

    model: Vector
    version: int
    event: int
    time: float
    reason: str = ""
    paused: float = 0.0


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
    # Clients that wait offline, and from when on they can be handed the model: a heap.
    offline: list[tuple[float, int, ClientId]] = field(default_factory=list)
    # Clients that have left and may still have an entry among those that wait.
    gone: dict[ClientId, bool] = field(default_factory=dict)
    changes: int = 0  # joins and leaves so far


@dataclass
class Saved:
    """A simulation between two arrivals."""

    timeline: Timeline
    state: Any
    receivers: str  # state of the generator that draws among the waiting clients, as JSON


class Simulation:
    """Runs a strategy in virtual time; the caller decides when to evaluate, log and stop.

    The loop knows what happens: arrivals, whose times come from `law`, `scheduled` changes of the
    data, and changes of the members. Whatever perturbs training wraps the executor. Whatever keeps
    clients from training, or updates from arriving, is a condition.

    Args:
        strategy: Decides what the global model becomes and who is handed it next.
        setup: The initial model, the label counts that clients declare, the model's layout.
        law: How long each training lasts.
        executor: Trains the clients.
        hand_out: How many clients train at once, and who is handed the model next.
        scheduled: Changes of the clients' data, at most one after each arrival.
        conditions: When clients are online, and what becomes of updates; by default, everyone is
            always online and every update arrives.
        membership: Who joins and leaves; by default, all clients of the setup stay.

    """

    def __init__(
        self,
        strategy: Strategy[Any],
        setup: Setup,
        law: ArrivalLaw,
        executor: Executor,
        hand_out: HandOut | None = None,
        scheduled: Iterable[Scheduled] = (),
        conditions: Conditions | None = None,
        membership: MembershipChanges | None = None,
    ) -> None:
        hand_out = hand_out or HandOut()
        clients = setup.clients.clients if membership is None else membership.clients
        self._needs = strategy.needs
        self._sends = self._needs.sends
        self._has_findings = self._needs.label_evidence in ("checked", "inferred")
        self._strategy = with_statistics(strategy, setup.layout)
        self._law = law
        self._conditions = conditions
        self._member_changes = () if membership is None else membership.changes
        self._executor = executor
        self._trains_ahead = executor.trains_ahead
        self._layout = setup.layout
        self._statistics_size = 0 if setup.layout is None else setup.layout.statistics_count
        self._concurrency = hand_out.concurrency or len(clients)
        self._nobody_waits = self._concurrency >= len(clients)
        self._rng = hand_out.rng
        self._first = frozenset(hand_out.first)
        self._scheduled = {change.after: change.declarations for change in scheduled}
        self._changes = sorted(self._scheduled)
        self._name = type(strategy).__name__
        self._clients = clients
        self._position = {client: i for i, client in enumerate(clients)}
        self.timeline = Timeline()
        self._waiting: set[ClientId] = set()  # those in the timeline that wait or are offline
        self.state: State
        # Handed out in the first step, because a restored simulation must not have begun to train.
        self.state, self._founders = self._known(
            checked_answer(self._strategy, self._strategy.start(setup))
        )

    def save(self) -> Saved:
        """Return what `restore` needs to continue bit for bit; arrays are shared, not copied."""
        return Saved(self.timeline, self.state, json.dumps(self._rng.bit_generator.state))

    def restore(self, saved: Saved) -> None:
        """Continue from what another simulation of the same scenario has saved."""
        self.timeline, self.state, self._founders = saved.timeline, saved.state, ()
        timeline = self.timeline
        self._waiting = {*timeline.waiting, *timeline.waiting_first}
        self._waiting.update(client for _, _, client in timeline.offline)
        self._rng.bit_generator.state = json.loads(saved.receivers)
        if self._trains_ahead:
            for due, _, client in sorted(self.timeline.due):
                self._submit(client, due, self.timeline.in_flight[client])

    @property
    def mid_round(self) -> bool:
        """Whether the last update led to no hand-out: a synchronous method waits for the rest."""
        return self.timeline.mid_round

    @property
    def finished(self) -> str | None:
        """Why nothing that is still to come can change the model; None as long as it can."""
        if not self._needs.finishes:
            return None
        to_come = self._member_changes[self.timeline.changes :]
        if self._founders or any(isinstance(change, Joined) for _, change in to_come):
            return None
        return finished(self._needs, self.state)

    @property
    def scorer(self) -> Scorer | None:
        """The strategy's scorer, if it uses updates as label evidence."""
        return scorer_of(self._needs, self.state)

    def step(self) -> Step:
        """Advance to the next arrival; Stalled if there is none."""
        timeline = self.timeline
        if self._founders:
            with paused_collection():
                self._hand_out(self._founders)
            self._founders = ()
        if self._changes:
            for declared in self._scheduled.get(timeline.event, ()):
                self.state, receivers = self._checked_step(declared)
                self._hand_out(receivers)
        happened: list[Happening] = []
        client, flight = self._next_arrival(happened)
        timeline.event += 1
        if not self._trains_ahead:
            self._submit(client, timeline.now, flight)
        trained = self._executor.collect(client)
        if trained.state is not None:
            timeline.client_states[client] = dict(trained.state)
        step = self._arrive(self._update(client, flight, trained), flight)
        if happened or trained.metrics is not None:
            return step._replace(metrics=trained.metrics, happened=happened)
        return step

    def _arrive(self, update: Update, flight: InTraining) -> Step:
        """Let the strategy have an update, and hand out the model to those that it names."""
        timeline = self.timeline
        before = self.state.version
        refused = None
        try:
            self.state, receivers = self._checked_step(Arrived(update))
            # A method that finishes asks each client once, and no round waits for the rest.
            timeline.mid_round = not receivers and not self._needs.finishes
        except RefusedUpdate as refusal:
            refused, receivers = str(refusal), [update.client]
        self._hand_out(receivers)
        scorer = self.scorer if self._has_findings else None
        event, version, contents = timeline.event, self.state.version, self.state.contents
        if not isinstance(contents, Contents):
            raise BadInput(
                f"strategy {self._name} has contents {contents!r}; give Contents(clients, weights) "
                "of fedraw.strategies"
            )
        return Step(
            event,
            timeline.now,
            update.client,
            flight.time,
            flight.version,
            version,
            event - flight.event,
            before - flight.version,
            version > before,
            contents,
            refused,
            () if scorer is None else scorer.drain_findings(),
            paused=flight.paused,
        )

    def _checked_step(self, event: Event) -> tuple[State, Receivers]:
        return self._known(checked_step(self._strategy, self.state, event, self._needs))

    def _known(self, answer: tuple[State, Receivers]) -> tuple[State, Receivers]:
        """Return the strategy's answer, or refuse it if it names an unknown client."""
        state, named = answer
        if isinstance(named, _SETS):  # the order of texts in a set varies by process
            named = sorted(named, key=lambda client: self._position.get(client, -1))
        clients, position = self._clients, self._position
        try:  # the client itself, and not an equal number of another type
            return state, [clients[position[client]] for client in named]
        except (KeyError, TypeError):
            raise self._unknown(named) from None

    def _unknown(self, named: Receivers) -> BadInput:
        known = list(self._position)
        stranger = next(client for client in named if client not in known)
        return BadInput(
            f"strategy {self._name} names the receiver {stranger!r}, which is not a client; name "
            "clients of the setup or of events"
        )

    def _next_arrival(self, happened: list[Happening]) -> tuple[ClientId, InTraining]:
        """Go on to the next update that arrives, and note what happens until then."""
        timeline = self.timeline
        lost = 0
        while True:
            change, back, due = self._next_times()
            if change <= min(back, due) and change < inf:
                self._change_member(happened)
            elif back <= due and back < inf:
                timeline.now, _, client = heappop(timeline.offline)
                self._waiting.discard(client)
                self._hand_out([client])
            elif due < inf:
                timeline.now, _, client = heappop(timeline.due)
                flight = timeline.in_flight.pop(client)
                if not flight.reason:
                    return client, flight
                stays = client in self.state.federation  # else it has just left
                if stays:
                    what = Lost(client, flight.time, flight.reason, flight.paused)
                    happened.append(Happening(timeline.now, what))
                self._hand_out([client] if stays else [])
                lost += 1
                if lost > max(MOST_LOST, 20 * len(self._position)):
                    raise Stalled(
                        f"{lost:,} trainings in a row came to nothing; the last one, of client "
                        f"{client!r}: {flight.reason}",
                        happened,
                    )
            else:
                raise self._stalled(happened)

    def _next_times(self) -> tuple[float, float, float]:
        """Return when the next member joins or leaves, client is back, or training ends."""
        timeline, changes = self.timeline, self._member_changes
        return (
            changes[timeline.changes][0] if timeline.changes < len(changes) else inf,
            timeline.offline[0][0] if timeline.offline else inf,
            timeline.due[0][0] if timeline.due else inf,
        )

    def _stalled(self, happened: Sequence[Happening]) -> FedrawError:
        timeline = self.timeline
        if self._conditions is not None and (timeline.due or timeline.offline):
            return Stalled(f"{self._conditions.why_never} after {timeline.now:g} s", happened)
        if self._member_changes and not len(self.state.federation):
            return Stalled(f"all clients have left after {timeline.now:g} s", happened)
        return BadInput("nobody is training, so nothing can arrive: the strategy named no one")

    def _change_member(self, happened: list[Happening]) -> None:
        """Let the next client join or leave."""
        timeline = self.timeline
        timeline.now, change = self._member_changes[timeline.changes]
        timeline.changes += 1
        client = change.client
        if isinstance(change, Joined) and timeline.gone.pop(client, False):
            self._forget(client)
        self.state, receivers = self._checked_step(change)
        if isinstance(change, Left) and client not in timeline.in_flight:
            timeline.gone[client] = True
        if receivers:
            timeline.mid_round = False
        happened.append(Happening(timeline.now, change))
        self._hand_out(receivers)

    def _forget(self, client: ClientId) -> None:
        """Remove a client that is back from those that wait since before it left."""
        timeline = self.timeline
        for waiting in (timeline.waiting, timeline.waiting_first):
            if client in waiting:
                waiting.remove(client)
        timeline.offline = [entry for entry in timeline.offline if entry[2] != client]
        heapify(timeline.offline)
        self._waiting.discard(client)

    def _update(self, client: ClientId, flight: InTraining, trained: TrainingResult) -> Update:
        vector = trained.vector
        # The strategy refuses a vector of another size.
        if self._sends == "delta" and vector.shape == flight.model.shape:
            vector = difference(vector, flight.model, self._layout)
        return Update(
            client, flight.version, vector, trained.examples, trained.loss, self._statistics_size
        )

    def _hand_out(self, receivers: Iterable[ClientId]) -> None:
        """Hand the model to the receivers, or let them wait until fewer clients train.

        A client that trains or waits already keeps its place, as on a server.
        """
        in_flight, queued = self.timeline.in_flight, self._waiting
        if self._nobody_waits:
            named = list(receivers)
            if self._conditions is None and len(named) > 1 and not self.timeline.gone:
                self._launch_together([c for c in dict.fromkeys(named) if c not in in_flight])
                return
            for client in named:
                if client not in in_flight and client not in queued:
                    self._launch(client)
            return
        ordinary, first = self.timeline.waiting, self.timeline.waiting_first
        for client in receivers:
            if client not in in_flight and client not in queued:
                (first if client in self._first else ordinary).append(client)
                queued.add(client)
        while (waiting := first or ordinary) and len(in_flight) < self._concurrency:
            drawn = int(self._rng.integers(len(waiting)))
            waiting[drawn], waiting[-1] = waiting[-1], waiting[drawn]
            client = waiting.pop()
            queued.discard(client)
            self._launch(client)

    def _launch(self, client: ClientId) -> None:
        """Hand a client the model, or let it wait until it is online."""
        timeline, state = self.timeline, self.state
        if timeline.gone and timeline.gone.pop(client, False):
            return
        position, conditions = self._position[client], self._conditions
        if conditions is not None and (ready := conditions.ready(position, timeline.now)) > (
            timeline.now
        ):
            heappush(timeline.offline, (ready, timeline.turn, client))
            self._waiting.add(client)
            timeline.turn += 1
            return
        training = timeline.trainings.get(client, 0)
        timeline.trainings[client] = training + 1
        seconds = self._law.duration(position, training)
        plan = Flight(timeline.now + seconds)
        if conditions is not None:
            plan = conditions.flight(position, training, timeline.now, seconds)
        heappush(timeline.due, (plan.ends, timeline.turn, client))
        timeline.turn += 1
        flight = InTraining(state.model, state.version, timeline.event, timeline.now, *plan[1:])
        timeline.in_flight[client] = flight
        if self._trains_ahead:
            self._submit(client, plan.ends, flight)

    def _launch_together(self, clients: Sequence[ClientId]) -> None:
        """Hand several clients the model, as `_launch` does for one client after the other.

        All of them share one `InTraining`, which is never changed.
        """
        timeline, state = self.timeline, self.state
        now, trainings = timeline.now, timeline.trainings
        position, duration = self._position, self._law.duration
        flight = InTraining(state.model, state.version, timeline.event, now)
        entries = []
        for turn, client in enumerate(clients, timeline.turn):
            training = trainings.get(client, 0)
            trainings[client] = training + 1
            entries.append((now + duration(position[client], training), turn, client))
        timeline.turn += len(entries)
        timeline.in_flight.update(dict.fromkeys(clients, flight))
        timeline.due += entries
        heapify(timeline.due)
        if self._trains_ahead:
            for due, _, client in entries:
                self._submit(client, due, flight)

    def _submit(self, client: ClientId, due: float, flight: InTraining) -> None:
        if flight.reason or due == inf:
            return  # nothing of it arrives
        epoch = bisect_right(self._changes, flight.event) if self._changes else 0
        state = self.timeline.client_states.get(client)
        job = Job(
            client,
            self._position[client],
            self.timeline.trainings[client] - 1,
            flight.model,
            due,
            epoch,
            flight.version,
            flight.event,
            state,
        )
        self._executor.submit(job)
