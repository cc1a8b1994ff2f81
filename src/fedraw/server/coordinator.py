"""Leads a federation: whom to ask what, whose answer counts, when it is over.

An engine drives it in a loop: tell who is `online`, send the `orders`, hand in each `answer`, and
`tick`. Everything that must survive is the ledger's; the rest (who was asked, who failed how often)
is made anew when a server is started again, and everyone is asked again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from math import isfinite
from typing import Any

import numpy as np

from fedraw.core.layout import Layout
from fedraw.core.types import Vector
from fedraw.core.update import Update
from fedraw.errors import BadInput, RefusedUpdate
from fedraw.server.admission import (
    check_answers,
    check_counts,
    check_labels,
    check_norm,
    distance,
    scale_of,
)
from fedraw.server.dispatches import Dispatch, Dispatches
from fedraw.server.evaluation import Evaluations
from fedraw.server.journal import Flight
from fedraw.server.ledger import Ledger
from fedraw.server.membership import Membership
from fedraw.server.orders import Answer, Evaluated, Failure, Kind, Order, Summary, Trained
from fedraw.server.recall import Recall
from fedraw.server.settings import Settings
from fedraw.storage.model_file import write_model
from fedraw.strategies.protocol import Needs, Strategy, check, check_form, is_finite

LOGGER = logging.getLogger("fedraw.server")

# A site has so many seconds to tell who it is.
SUMMARY_DEADLINE = 300.0
# While sites are waited for, that is said so often.
REMINDER = 60.0


class Coordinator:
    """One federation; `now` is always of one clock that only goes forward (time.monotonic)."""

    def __init__(
        self,
        ledger: Ledger,
        strategy: Strategy[Any],
        model: Callable[[], Vector],
        settings: Settings,
        layout: Layout,
        evaluate: Callable[[Vector], Recall] | None = None,
    ) -> None:
        self._ledger = ledger
        self._strategy = strategy
        self._model = model
        self._settings = settings
        self._layout = layout
        self._dispatches = Dispatches()
        self._training: dict[str, Dispatch] = {}  # the order that a site is busy with
        self._needs = strategy.needs
        self._membership = Membership(
            ledger,
            settings,
            self._needs.min_clients,
            self._release,
            needs_counts=self._needs.label_evidence != "inferred",
        )
        self._evaluations = Evaluations(ledger, settings.federated_evaluation, evaluate)
        self._next_snapshot = self._next_reminder = 0.0
        self._snapshot_failed = False
        self._disk_full_since: float | None = None
        self._stopping: str | None = None
        self._finished = ledger.book.ended

    @property
    def needs(self) -> Needs:
        """What the strategy asks of sites."""
        return self._needs

    @property
    def tickets(self) -> list[str]:
        """Under which an answer may still come."""
        return self._dispatches.tickets

    @property
    def finished(self) -> str | None:
        """Why it is over; None while it is not."""
        return self._finished

    @property
    def accepted(self) -> int:
        return self._ledger.book.accepted

    @property
    def members(self) -> list[str]:
        return self._membership.members

    # What the engine tells

    def online(self, nodes: Collection[int], now: float) -> None:
        self._membership.nodes.see(nodes, now)

    def sent(self, order: Order, ticket: str) -> None:
        self._dispatches.sent(order, ticket)

    def not_sent(self, order: Order, reason: str, now: float) -> None:
        self._dispatches.not_sent(order)
        self._no_answer(order, Failure(f"could not be reached: {reason}", to_blame=False), now)

    def answer(self, ticket: str, answer: Answer, now: float) -> None:
        """Take an answer in. After an OSError nothing has changed: hand it in again."""
        try:
            self._answer(ticket, answer, now)
        except OSError:
            self._disk_full_since = self._disk_full_since or now
            raise
        if self._disk_full_since is not None:
            waited = f"for {now - self._disk_full_since:.0f} s nothing could be written to the disk"
            self._ledger.note(f"{waited}, and no update was accepted", now)
            self._disk_full_since = None

    def _answer(self, ticket: str, answer: Answer, now: float) -> None:
        dispatch = self._dispatches.find(ticket)
        if dispatch is None:
            named = getattr(answer, "site", None)
            named = named if named in self._ledger.book.counts else None
            self._ledger.note("an answer that nobody waits for; it is left aside", now, named)
            return
        order = dispatch.order
        match order.kind, answer:
            case "summary", Summary():
                self._membership.introduce(order.node, answer, now)
                self._begin_if_enough(now)
            case "train", Trained():
                self._trained(dispatch, answer, now)
            case "evaluate", Evaluated():
                self._evaluated(order, answer, now)
            case _, Failure():
                self._no_answer(order, answer, now)
            case _:
                wrong = Failure(f"asked to {order.kind}, it sent {type(answer).__name__}")
                self._no_answer(order, wrong, now)
        self._dispatches.close(ticket)

    # What the engine is to do

    def orders(self, now: float) -> list[Order]:
        """What to send now; each order is handed out once."""
        if self._finished:
            return []
        asked = [self._order("summary", node, None, now) for node in self._strangers(now)]
        if not self._ledger.begun:
            return asked
        asked += [self._order("train", node, site, now) for site, node in self._idle(now)]
        return asked + self._to_evaluate(now)

    def _strangers(self, now: float) -> list[int]:
        """Nodes of which nobody knows who they are."""
        nodes = self._membership.nodes
        return [
            node
            for node in nodes.strangers()
            if nodes.conduct[node].not_before <= now and not self._dispatches.busy(node, "summary")
        ]

    def _idle(self, now: float) -> list[tuple[str, int]]:
        """Sites that are to be handed the model, and can be."""
        if self._stopping:
            return []
        owed = (site for site in self._ledger.book.owed if site not in self._training)
        found = ((site, self._membership.ready(site, now)) for site in owed)
        return [(site, node) for site, node in found if node is not None]

    def _to_evaluate(self, now: float) -> list[Order]:
        current = self._evaluations.current
        if current is None:
            return []
        asked = []
        for site in current.to_ask:
            node = self._membership.nodes.of(site)
            if node is not None:
                asked.append(self._order("evaluate", node, site, now))
                current.awaited.add(site)
        current.to_ask = []
        return asked

    def _order(self, kind: Kind, node: int, site: str | None, now: float) -> Order:
        number, deadline = self._dispatches.next_number(), self._settings.deadline
        if kind == "summary":
            order = Order(number, kind, node, site, SUMMARY_DEADLINE)
        else:
            current = self._evaluations.current if kind == "evaluate" else None
            asked = self._ledger.state if current is None else current
            order = Order(number, kind, node, site, deadline, asked.version, asked.model)
        dispatch = Dispatch(order, now, self._ledger.book.event)
        if kind == "train" and site is not None:
            self._training[site] = dispatch
        return self._dispatches.make(dispatch)

    def _begin_if_enough(self, now: float) -> None:
        nodes = None if self._ledger.begun else self._membership.enough_to_begin()
        if nodes is not None:
            counts = {site: self._membership.founders[site] for site in nodes}
            model, rare = self._model(), self._settings.rare_labels
            scale = scale_of(model, self._layout)
            self._ledger.begin(model, counts, nodes, rare, now, scale)
            LOGGER.info("training begins with %d sites", len(nodes))
            self._next_snapshot = now + self._settings.snapshot_every
            self._membership.founders.clear()

    def _release(self, site: str) -> None:
        """Nothing is expected of it any more; an answer that comes all the same may count."""
        if (dispatch := self._training.pop(site, None)) is not None:
            dispatch.overdue = True
        self._evaluations.forget(site)

    # What a site sends back

    def _trained(self, dispatch: Dispatch, answer: Trained, now: float) -> None:
        order, ledger = dispatch.order, self._ledger
        site, start_time = order.site or "", ledger.time(dispatch.time)
        if dispatch.replaced or site not in ledger.book.owed or self._stopping:
            ledger.note("a late update; nobody waits for it any more", now, site)
            return
        behind, most = ledger.state.version - order.version, self._settings.max_staleness
        if most is not None and behind > most:  # slow, but not to blame
            reason = f"client {site!r} started {behind} versions ago; max_staleness is {most}"
            ledger.reject(site, reason, start_time, now)
            self._training.pop(site, None)
            return
        norm = None
        try:
            update, norm = self._examine(order, answer)
            check_norm(
                site, norm, ledger.book.heard.values(), ledger.book.scale, self._settings.norm_bound
            )
            flight = Flight(start_time, dispatch.event, ledger.time(now), norm)
            refused = ledger.accept(update, flight)
        except RefusedUpdate as refusal:
            refused = str(refusal)
            heard = norm if norm is not None and isfinite(norm) else None
            ledger.reject(site, refused, start_time, now, heard)
        self._dispatches.replace(dispatch)
        self._training.pop(site, None)
        if refused is not None:
            self._membership.failed(site, refused, now)
            return
        self._membership.succeeded(site)
        if answer.counts is not None:
            self._declared(site, answer.counts, now)
        self._after_arrival(now)

    def _examine(self, order: Order, answer: Trained) -> tuple[Update, float]:
        """The update, and how far it leads away from the model that was handed out."""
        check_answers(order, answer)
        site, vector = order.site or "", np.ascontiguousarray(answer.vector)
        if answer.counts is not None:
            self._refuse_floods(site, answer.counts)
        statistics_size = self._layout.statistics_count
        loss = self._loss(answer)
        update = Update(site, order.version, vector, answer.examples, loss, statistics_size)
        check_form(self._ledger.state, update, self._needs.loss)
        start = order.model if self._needs.sends == "model" else None
        norm = distance(update.vector, start, self._layout)
        # A finite norm has looked at every parameter already.
        if not (isfinite(norm) and is_finite(vector[self._layout.statistics])):
            check(self._ledger.state, update, self._needs.loss)
        return update, norm

    def _loss(self, answer: Trained) -> float | None:
        """The loss; one that the strategy does not use is left out unless it is a number."""
        used = self._needs.loss or (answer.loss is not None and isfinite(answer.loss))
        return answer.loss if used else None

    def _refuse_floods(self, site: str, counts: Mapping[str, int]) -> None:
        """Refuse a reply whose label counts are beyond every limit; other mistakes are forgiven."""
        try:
            check_labels(site, counts)
            self._membership.check_new_labels(site, counts)
        except BadInput as refusal:
            raise RefusedUpdate(str(refusal)) from None

    def _declared(self, site: str, counts: Mapping[str, int], now: float) -> None:
        before = self._ledger.book.counts[site]
        try:
            counts = check_counts(site, counts, before)
            if counts != before:
                self._ledger.declare(site, counts, now)
        except BadInput as refusal:
            self._ledger.note(f"new label counts are not accepted: {refusal}", now, site)
        except OSError as problem:  # its update counts already; it will declare them again
            self._ledger.note(f"new label counts cannot be kept: {problem.strerror}", now, site)

    def _evaluated(self, order: Order, answer: Evaluated, now: float) -> None:
        site = order.site or ""
        refused = self._evaluations.take_in(order, answer)
        if refused is None:
            self._membership.succeeded(site, "evaluate")
        else:
            self._membership.failed(site, refused, now, "evaluate")

    def _no_answer(self, order: Order, failure: Failure, now: float) -> None:
        site, reason = order.site, failure.reason
        if site is None:
            self._membership.nodes.conduct[order.node].fail(self._settings.back_off, now)
            self._ledger.note(f"node {order.node} did not tell who it is: {reason}", now)
        elif order.kind == "evaluate":
            if failure.malformed:
                self._evaluations.forget(site)
                self._membership.failed(site, reason, now, "evaluate")
            else:
                self._evaluations.without(site, reason, now)
        elif (current := self._training.get(site)) is not None and current.order is order:
            del self._training[site]
            if failure.to_blame:
                self._membership.failed(site, reason, now)
            else:
                self._membership.put_off(site, reason, now)

    # Evaluation and the end

    def _after_arrival(self, now: float) -> None:
        every = self._settings.evaluate_every
        self._stop_at_limits(now)
        if not self._stopping and every and self.accepted % every == 0:
            self._begin_evaluation(now)

    def _stop_at_limits(self, now: float) -> None:
        """No more training then; what the last model can do is still to be found out."""
        if self._stopping:
            return
        arrivals, seconds = self._settings.arrivals, self._settings.seconds
        if arrivals is not None and self.accepted >= arrivals:
            self._stopping = f"{self.accepted} updates accepted"
        elif seconds is not None and self._ledger.time(now) >= seconds:
            self._stopping = f"{seconds:.0f} s are over"
        else:
            return
        self._evaluations.current = None
        self._begin_evaluation(now)

    def _begin_evaluation(self, now: float) -> None:
        ready = self._membership.ready
        here = [site for site in self.members if ready(site, now, "evaluate") is not None]
        self._evaluations.begin(here, now + self._settings.deadline, now)
        self._end_evaluation(now)

    def _end_evaluation(self, now: float) -> None:
        target, metric = self._settings.target, self._settings.target_metric
        over, reached = self._evaluations.finish(now, metric, target)
        if over:
            if reached is not None:
                self._stopping = self._stopping or f"{metric} reached {reached:.1f}"
            self._finished = self._stopping

    # Time

    def tick(self, now: float) -> None:
        """Whatever the clock decides."""
        if self._finished:
            return
        self._ledger.log.check()
        for site, dispatch in list(self._training.items()):
            if now > dispatch.due:
                self._release(site)
                self._membership.failed(site, f"no answer in {dispatch.order.deadline:.0f} s", now)
        self._dispatches.age(now)
        self._membership.tick(now)
        self._end_evaluation(now)
        if not self._ledger.begun and now >= self._next_reminder:
            self._next_reminder = now + REMINDER
            LOGGER.info("waiting: %s", self._membership.waiting)
        if self._ledger.begun:
            self._stop_at_limits(now)
            if now >= self._next_snapshot:
                self._snapshot(now)

    def _snapshot(self, now: float) -> None:
        """A full disk costs a snapshot, no more: the journal has what it would have had."""
        self._next_snapshot = now + self._settings.snapshot_every
        try:
            self._ledger.snapshot(now)
            self._snapshot_failed = False
        except OSError as problem:
            if not self._snapshot_failed:
                self._ledger.note(f"no snapshot could be written ({problem.strerror})", now)
            self._snapshot_failed = True

    def close(self, now: float) -> None:
        """Leave everything on disk; a federation that is over also gets its model and its end."""
        ledger = self._ledger
        if ledger.begun:
            if self._finished and ledger.book.ended is None:
                path = ledger.folder / "model.safetensors"
                write_model(ledger.state.model, self._layout, path, private=True)
                ledger.end(self._finished, now)
            self._snapshot(now)
            ledger.log.to_disk()
        ledger.log.close()

    def abandon(self) -> None:
        """Let go of the folder as it is, which is all that a restart needs."""
        self._ledger.log.close()
