"""The coordinator of a federation: whom to ask for what, which replies count, when to end.

An engine drives it in a loop: it says who is `online`, sends the `tasks`, hands in every reply with
`receive`, and calls `tick`. The store keeps everything that must survive. The rest (pending tasks,
failures in a row) is forgotten by a restart, after which every site is asked again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from math import isfinite
from typing import Any

import numpy as np

from fedraw.core.layout import Layout
from fedraw.core.text import one_line
from fedraw.core.types import Vector
from fedraw.core.update import Update, difference
from fedraw.errors import BadInput, RefusedUpdate
from fedraw.privacy.rounds import LabelRounds, counts_of_score
from fedraw.server.admission import (
    check_counts,
    check_labels,
    check_metrics,
    check_norm,
    check_reply,
    distance,
    scale_of,
)
from fedraw.server.evaluation import Evaluations, StoppingTarget, TestedModel
from fedraw.server.journal import ArrivalFacts
from fedraw.server.membership import SiteMembership
from fedraw.server.progress import ServerProgress
from fedraw.server.results import Found
from fedraw.server.settings import ServerSettings, check_train_config
from fedraw.server.store import FederationIdentity, FederationStore, state_type_of
from fedraw.server.tasks import (
    EvaluateReply,
    Failure,
    LabelSummary,
    PendingTask,
    PendingTasks,
    Reply,
    Task,
    TaskKind,
    TrainReply,
)
from fedraw.server.update_protection import UpdateProtection
from fedraw.strategies.protocol import Needs, Strategy, check, check_form, is_finite
from fedraw.strategies.statistics import with_statistics

LOGGER = logging.getLogger("fedraw.server")

# Seconds that a node has to send its label summary.
SUMMARY_DEADLINE = 300.0
# Seconds between two messages that the server is waiting for sites.
REMINDER = 60.0


def open_federation(  # noqa: PLR0913 - the clocks are for tests
    strategy: Strategy[Any],
    model: Callable[[], Vector],
    settings: ServerSettings,
    layout: Layout,
    *,
    evaluate: Callable[[Vector], Found] | None = None,
    train_config: Callable[[str, int], Mapping[str, Any]] | None = None,
    dtypes: Mapping[str, str] | None = None,
    constants: Mapping[str, Any] | None = None,
    engine: str = "",
    now: float | None = None,
    wall: Callable[[], float] | None = None,
) -> Coordinator:
    """Begin a federation in the folder of the settings, or continue the one that is there.

    Args:
        strategy: Any strategy of the library or of the user.
        model: Returns the initial model; called only when training begins.
        settings: The settings of the server.
        layout: The tensors of the model's vector.
        evaluate: Evaluates a model on the server's own test set.
        train_config: Returns the settings of one training: (site, version) -> settings. Those of
            `settings.train` and `settings.train_at` override them.
        dtypes: The types of the user's tensors that are not float32, by name.
        constants: The user's tensors that no training changes, as arrays by name.
        engine: The name of the engine, for the log.
        now: The time of the clock that drives the coordinator, by default time.monotonic().
        wall: Returns unix seconds, by default time.time.

    """
    if settings.keep_best and evaluate is None and not settings.federated_evaluation:
        raise BadInput(
            f"keep_best = {settings.keep_best!r} keeps nothing, because nothing is evaluated; give "
            "the server a test set (evaluate), or set federated_evaluation"
        )
    if settings.target is not None and evaluate is None and not settings.federated_evaluation:
        raise BadInput(
            f"target = {settings.target:g} is never reached, because nothing is evaluated; give "
            "the server a test set (evaluate), or set federated_evaluation"
        )
    evidence = strategy.needs.label_evidence
    if settings.summaries is not None and evidence not in (None, "declared"):
        raise BadInput(
            f"summaries and strategy.labels = {evidence!r} contradict each other; with private "
            "label summaries a site's score is all that the server knows"
        )
    _refuse_residuals(strategy)
    if 1 < strategy.needs.min_clients == settings.min_clients:
        LOGGER.warning(
            "min_clients = %d is just enough for the buffer, so the first site that drops out "
            "shrinks it; set min_clients higher",
            settings.min_clients,
        )
    now = time.monotonic() if now is None else now
    identity = FederationIdentity.of(strategy, settings, layout, dtypes, engine, constants)
    strategy = with_statistics(strategy, layout)
    state_type = state_type_of(strategy, settings.min_clients, layout)
    store = FederationStore(settings.folder, strategy, identity, wall or time.time)
    try:
        store.recover(state_type, now)
        return Coordinator(store, strategy, model, settings, layout, evaluate, train_config)
    except BaseException:
        store.log.close()
        raise


class Coordinator:
    """Leads one federation; every `now` is a reading of one monotonic clock."""

    def __init__(
        self,
        store: FederationStore,
        strategy: Strategy[Any],
        model: Callable[[], Vector],
        settings: ServerSettings,
        layout: Layout,
        evaluate: Callable[[Vector], Found] | None = None,
        train_config: Callable[[str, int], Mapping[str, Any]] | None = None,
    ) -> None:
        self._store = store
        self._strategy = strategy
        self._model = model
        self._settings = settings
        self._layout = layout
        self._own_config = train_config
        self._pending = PendingTasks()
        self._training: dict[str, PendingTask] = {}  # the task that each site is busy with
        self._needs = strategy.needs
        self._membership = SiteMembership(
            store,
            settings,
            self._needs.min_clients,
            self._release,
            needs_counts=self._needs.label_evidence != "inferred",
        )
        target = None
        if settings.target is not None:
            target = StoppingTarget(settings.target_metric, settings.target, settings.target_below)
        self._rounds = self._label_rounds()
        self._protection: UpdateProtection | None = None
        if settings.update_privacy is not None:
            self._protection = UpdateProtection(settings.update_privacy, self._needs, layout, store)
        self._evaluations = Evaluations(store, settings.federated_evaluation, evaluate, target)
        self._progress = ServerProgress(settings.folder, settings.progress_every)
        self._next_snapshot = self._next_reminder = 0.0
        self._snapshot_failed = False
        self._disk_full_since: float | None = None
        self._stopping: str | None = None
        self._finished = store.state.ended

    @property
    def needs(self) -> Needs:
        """What the strategy needs from sites."""
        return self._needs

    @property
    def message_ids(self) -> list[str]:
        """The ids of messages that may still get a reply."""
        return self._pending.message_ids

    @property
    def finished(self) -> str | None:
        """Why the federation is over; None while it is not."""
        return self._finished

    @property
    def accepted(self) -> int:
        """The number of accepted updates."""
        return self._store.state.accepted

    @property
    def members(self) -> list[str]:
        """The names of all members."""
        return self._membership.members

    # What the engine reports

    def online(self, nodes: Collection[int], now: float) -> None:
        """These nodes are online now."""
        known = self._membership.nodes
        if self._rounds is not None:
            for node in known.online.difference(nodes):
                self._rounds.forget(node)
        known.see(nodes, now)

    def sent(self, task: Task, message_id: str) -> None:
        """The engine has sent the task; its reply will come under this id."""
        self._pending.sent(task, message_id)

    def not_sent(self, task: Task, reason: str, now: float) -> None:
        """The engine could not send the task."""
        self._pending.not_sent(task)
        self._no_answer(task, Failure(f"could not be reached: {reason}", to_blame=False), now)

    def receive(self, message_id: str, reply: Reply, now: float) -> None:
        """Handle the reply to a message.

        After an OSError (a full disk) nothing has changed, and the engine hands it in again.
        """
        try:
            self._receive(message_id, reply, now)
        except OSError:
            self._disk_full_since = self._disk_full_since or now
            raise
        if self._disk_full_since is not None:
            waited = f"for {now - self._disk_full_since:.0f} s nothing could be written to the disk"
            self._store.note(f"{waited}, and no update was accepted", now)
            self._disk_full_since = None

    def _receive(self, message_id: str, reply: Reply, now: float) -> None:
        pending = self._pending.find(message_id)
        if pending is None:
            named = getattr(reply, "site", None)
            named = named if named in self._store.state.counts else None
            self._store.note("a reply that nobody waits for is ignored", now, named)
            return
        task = pending.task
        match task.kind, reply:
            case "summary", LabelSummary():
                self._introduce(task.node, reply, now)
            case "train", TrainReply():
                self._trained(pending, reply, now)
            case "evaluate", EvaluateReply():
                self._evaluated(task, reply, now)
            case _, Failure():
                self._no_answer(task, reply, now)
            case _:
                wrong = Failure(f"asked to {task.kind}, it sent {type(reply).__name__}")
                self._no_answer(task, wrong, now)
        self._pending.close(message_id)

    # What the engine sends

    def tasks(self, now: float) -> list[Task]:
        """Return the tasks to send now, each of them once."""
        if self._finished:
            return []
        asked = [self._make_task("summary", node, None, now) for node in self._strangers(now)]
        if not self._store.begun:
            return asked
        asked += [self._make_task("train", node, site, now) for site, node in self._idle(now)]
        return asked + self._to_evaluate(now)

    def _strangers(self, now: float) -> list[int]:
        """Nodes that may be asked which site they are."""
        nodes = self._membership.nodes
        return [
            node
            for node in nodes.strangers()
            if nodes.back_offs[node].not_before <= now
            and not self._pending.is_busy(node, "summary")
            and (self._rounds is None or self._rounds.question(node) is not None)
        ]

    def _idle(self, now: float) -> list[tuple[str, int]]:
        """Sites that are due to train and can be reached, with their nodes."""
        if self._stopping:
            return []
        due = (site for site in self._store.state.awaiting_model if site not in self._training)
        found = ((site, self._membership.ready(site, now)) for site in due)
        return [(site, node) for site, node in found if node is not None]

    def _to_evaluate(self, now: float) -> list[Task]:
        current = self._evaluations.current
        if current is None:
            return []
        asked = []
        for site in current.to_ask:
            node = self._membership.nodes.of(site)
            if node is not None:
                for tested in current.tested:
                    task = self._make_task("evaluate", node, site, now, tested)
                    current.awaited[task.number] = site
                    asked.append(task)
        current.to_ask = []
        return asked

    def _make_task(
        self,
        kind: TaskKind,
        node: int,
        site: str | None,
        now: float,
        tested: TestedModel | None = None,
    ) -> Task:
        number, deadline = self._pending.next_number(), self._settings.deadline
        if kind == "summary":
            question = None if self._rounds is None else self._rounds.question(node)
            task = Task(number, kind, node, site, SUMMARY_DEADLINE, config=question or {})
        else:
            asked = tested or self._store.strategy_state
            config = self._train_config(site or "", asked.version) if kind == "train" else {}
            task = Task(number, kind, node, site, deadline, asked.version, asked.model, config)
        pending = PendingTask(task, now, self._store.state.event)
        if kind == "train" and site is not None:
            self._training[site] = pending
        return self._pending.add(pending)

    def _train_config(self, site: str, version: int) -> dict[str, Any]:
        """The user's settings for a training at the site; those for one site come last."""
        settings = self._settings
        own: Mapping[str, Any] = {}
        if self._own_config is not None:
            own = check_train_config(self._own_config(site, version), "train_config")
        return {**own, **settings.train, **settings.train_at.get(site, {})}

    def _begin_if_enough(self, now: float) -> None:
        nodes = None if self._store.begun else self._membership.enough_to_begin()
        if nodes is not None:
            counts = {site: self._membership.first_sites[site] for site in nodes}
            model, rare = self._model(), self._settings.rare_labels
            scale = scale_of(model, self._layout)
            coverage = None
            if self._rounds is not None:
                coverage = {"clients": self._rounds.clients, "labels": self._rounds.coverage}
            self._store.begin(model, counts, nodes, rare, now, scale, coverage)
            LOGGER.info("training begins with %d sites", len(nodes))
            self._next_snapshot = now + self._settings.snapshot_every
            self._membership.first_sites.clear()

    def _label_rounds(self) -> LabelRounds | None:
        """The rounds of private label summaries, if the settings want them."""
        settings = self._settings
        if settings.summaries is None:
            return None
        begun = (self._store.coverage() if self._store.begun else None) or {}
        return LabelRounds(
            settings.summaries,
            settings.labels,
            settings.min_clients,
            begun.get("labels"),
            begun.get("clients", 0),
        )

    def _introduce(self, node: int, summary: LabelSummary, now: float) -> None:
        """Let a node's site join; with private summaries, once its score is known."""
        rounds = self._rounds
        if rounds is not None:
            try:
                score = rounds.answer(node, summary.answer)
            except BadInput as refusal:
                failure = Failure(f"{one_line(summary.site)}: {refusal}")
                self._no_answer(Task(0, "summary", node, None, 0.0), failure, now)
                return
            if score is None:
                return
            counts = counts_of_score(summary.site, score, rounds.clients)
            summary = LabelSummary(summary.site, counts)
        self._membership.introduce(node, summary, now)
        self._begin_if_enough(now)

    def _release(self, site: str) -> None:
        """Stop waiting for the site; a reply that comes all the same may count."""
        if (pending := self._training.pop(site, None)) is not None:
            pending.overdue = True
        self._evaluations.forget(site)

    # What sites reply

    def _trained(self, pending: PendingTask, reply: TrainReply, now: float) -> None:
        task, store = pending.task, self._store
        site, start_time = task.site or "", store.time(pending.time)
        if pending.replaced or site not in store.state.awaiting_model or self._stopping:
            store.note("a late update; nobody waits for it any more", now, site)
            return
        behind, most = store.strategy_state.version - task.version, self._settings.max_staleness
        if most is not None and behind > most:  # slow, but without blame
            reason = f"client {site!r} started {behind} versions ago; max_staleness is {most}"
            store.reject(site, reason, start_time, now)
            self._training.pop(site, None)
            return
        norm = None
        try:
            update, norm = self._examine(task, reply)
            check_norm(
                site, norm, store.state.norms.values(), store.state.scale, self._settings.norm_bound
            )
            if self._protection is not None and task.model is not None:
                update = self._protection.protect(update, task.model)
            metrics = self._metrics(site, reply)
            flight = ArrivalFacts(start_time, pending.event, store.time(now), norm, metrics)
            refused = store.accept(update, flight)
        except RefusedUpdate as refusal:
            refused = str(refusal)
            usable = norm is not None and isfinite(norm)
            store.reject(site, refused, start_time, now, norm if usable else None)
        self._pending.replace_others(pending)
        self._training.pop(site, None)
        if refused is not None:
            self._membership.failed(site, refused, now)
            return
        self._membership.succeeded(site)
        if self._protection is not None:
            self._protection.count(site)
        if reply.counts is not None:
            self._declared(site, reply.counts, now)
        self._after_arrival(now)

    def _examine(self, task: Task, reply: TrainReply) -> tuple[Update, float]:
        """Check the reply; return the update, and its distance from the model handed out."""
        check_reply(task, reply)
        site, vector = task.site or "", np.ascontiguousarray(reply.vector)
        if reply.is_model and self._needs.sends == "delta" and vector.shape == (self._layout.size,):
            assert task.model is not None
            vector = difference(vector, task.model, self._layout)
        if reply.counts is not None:
            self._refuse_floods(site, reply.counts)
        statistics_size = self._layout.statistics_count
        loss = self._loss(reply)
        update = Update(site, task.version, vector, reply.examples, loss, statistics_size)
        check_form(self._store.strategy_state, update, self._needs.loss)
        start = task.model if self._needs.sends == "model" else None
        norm = distance(update.vector, start, self._layout)
        # A finite norm proves that every parameter is finite.
        if not (isfinite(norm) and is_finite(vector[self._layout.statistics])):
            check(self._store.strategy_state, update, self._needs.loss)
        update.mark_finite()
        return update, norm

    def _metrics(self, site: str, reply: TrainReply) -> dict[str, float | None] | None:
        try:
            return check_metrics(site, reply.metrics)
        except BadInput as refusal:
            raise RefusedUpdate(str(refusal)) from None

    def _loss(self, reply: TrainReply) -> float | None:
        """Return the loss; drop one that is not finite if the strategy does not use it."""
        used = self._needs.loss or (reply.loss is not None and isfinite(reply.loss))
        return reply.loss if used else None

    def _refuse_floods(self, site: str, counts: Mapping[str, int]) -> None:
        """Refuse a reply whose label counts exceed a limit; `_declared` notes other mistakes."""
        try:
            check_labels(site, counts)
            self._membership.check_new_labels(site, counts)
        except BadInput as refusal:
            raise RefusedUpdate(str(refusal)) from None

    def _declared(self, site: str, counts: Mapping[str, int], now: float) -> None:
        before = self._store.state.counts[site]
        try:
            counts = check_counts(site, counts, before)
            if counts != before:
                self._store.declare(site, counts, now)
        except BadInput as refusal:
            self._store.note(f"new label counts are not accepted: {refusal}", now, site)
        except OSError as problem:  # the update counts already; the site will declare them again
            self._store.note(f"new label counts cannot be written: {problem.strerror}", now, site)

    def _evaluated(self, task: Task, reply: EvaluateReply, now: float) -> None:
        site = task.site or ""
        refused = self._evaluations.add(task, reply)
        if refused is None:
            self._membership.succeeded(site, "evaluate")
        else:
            self._membership.failed(site, refused, now, "evaluate")

    def _no_answer(self, task: Task, failure: Failure, now: float) -> None:
        site, reason = task.site, failure.reason
        if site is None:
            if self._rounds is not None:
                self._rounds.forget(task.node)
            self._membership.nodes.back_offs[task.node].fail(self._settings.back_off, now)
            self._store.note(f"node {task.node} did not say which site it is: {reason}", now)
        elif task.kind == "evaluate":
            if failure.malformed:
                self._evaluations.forget(site)
                self._membership.failed(site, reason, now, "evaluate")
            else:
                self._evaluations.fail(site, reason, now)
        elif (current := self._training.get(site)) is not None and current.task is task:
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
        """At a limit, stop training and begin the last evaluation."""
        if self._stopping:
            return
        arrivals, seconds = self._settings.arrivals, self._settings.seconds
        if arrivals is not None and self.accepted >= arrivals:
            self._stopping = f"{self.accepted} updates accepted"
        elif seconds is not None and self._store.time(now) >= seconds:
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
        over, reached = self._evaluations.finish(now)
        if over:
            if self._protection is not None:
                self._protection.note(now)
            self._stopping = self._stopping or reached
            self._finished = self._stopping

    # Time

    def tick(self, now: float) -> None:
        """Do what is due: deadlines, absences, evaluations, limits, snapshots."""
        if self._finished:
            return
        self._store.log.check()
        for site, pending in list(self._training.items()):
            if now > pending.due:
                self._release(site)
                self._membership.failed(site, f"no reply in {pending.task.deadline:.0f} s", now)
        self._pending.expire(now)
        self._membership.tick(now)
        self._end_evaluation(now)
        if not self._store.begun and now >= self._next_reminder:
            self._next_reminder = now + REMINDER
            LOGGER.info("waiting: %s", self._membership.waiting)
        if self._store.begun:
            self._stop_at_limits(now)
            if now >= self._next_snapshot:
                self._snapshot(now)
            self._progress.tick(now, self._store.wall())

    def _snapshot(self, now: float) -> None:
        """Write a snapshot; on a full disk skip it, because the journal has everything."""
        self._next_snapshot = now + self._settings.snapshot_every
        try:
            self._store.snapshot(now)
            self._snapshot_failed = False
        except OSError as problem:
            if not self._snapshot_failed:
                self._store.note(f"no snapshot could be written ({problem.strerror})", now)
            self._snapshot_failed = True

    def close(self, now: float) -> None:
        """Write everything to disk; one that is over also gets its model file and end record."""
        store = self._store
        if store.begun:
            if self._finished and store.state.ended is None:
                serving = None if store.serving is None else store.serving.model
                store.models.write(store.strategy_state.model, serving)
                store.end(self._finished, now)
            self._snapshot(now)
            store.log.to_disk()
        store.log.close()

    def abandon(self) -> None:
        """Close the folder as it is, which is all that a restart needs."""
        self._store.log.close()


def _refuse_residuals(strategy: Strategy[Any]) -> None:
    """Refuse a strategy whose sites would have to remember what they have sent.

    A residual is right only if the site and the server agree on the site's last accepted model. A
    reply that is lost or refused, or a site that restarts without its memory, breaks this without a
    trace, and the error would stay in the model for ever.
    """
    if strategy.needs.sends == "residual":
        raise BadInput(
            f"{type(strategy).__name__} needs sites that remember their last accepted model "
            "(Needs.sends = 'residual'), and a server cannot see whether a site has lost it; use a "
            "strategy that sends models or differences, such as AREA with memory = 'server'"
        )
