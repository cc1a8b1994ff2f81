"""The coordinator of a federation decides which tasks to send, which replies count, when to end.

An engine drives it in a loop: it reports which nodes are `online`, sends the `tasks`, hands in
every reply with `receive`, and calls `tick`. The store keeps everything that must survive a
restart. Pending tasks and back-offs do not survive: a restarted server asks every site again.
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
    check_examples,
    check_feature_map,
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
from fedraw.server.results import EvaluationOutput
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
from fedraw.strategies.protocol import (
    Expected,
    Needs,
    Strategy,
    check,
    check_form,
    finished,
    is_finite,
)
from fedraw.strategies.statistics import with_statistics

LOGGER = logging.getLogger("fedraw.server")

# The deadline for a label summary, in seconds.
SUMMARY_DEADLINE = 300.0
# Seconds between two messages that the server is waiting for sites.
REMINDER = 60.0


def open_federation(  # noqa: PLR0913 - the clocks are for tests
    strategy: Strategy[Any],
    model: Callable[[], Vector],
    settings: ServerSettings,
    layout: Layout,
    *,
    evaluate: Callable[[Vector], EvaluationOutput] | None = None,
    train_config: Callable[[str, int], Mapping[str, Any]] | None = None,
    dtypes: Mapping[str, str] | None = None,
    constants: Mapping[str, Any] | None = None,
    engine: str = "",
    now: float | None = None,
    wall: Callable[[], float] | None = None,
) -> Coordinator:
    """Begin a federation in the folder of the settings, or continue the one in that folder.

    Args:
        strategy: A strategy of the library or the user's own.
        model: Returns the initial model. It is called only when training begins.
        settings: The settings of the server.
        layout: The tensors of the model's vector.
        evaluate: Evaluates a model on the server's own test set.
        train_config: Returns the settings of one training: (site, version) -> settings.
            `settings.train` and `settings.train_at` override them.
        dtypes: The types of the user's tensors that are not float32, by name.
        constants: The user's tensors that training does not change, as arrays by name.
        engine: The name of the engine, for the log.
        now: The current time of the clock that drives the coordinator; by default
            time.monotonic().
        wall: Returns unix seconds; by default time.time.

    """
    if settings.keep_best and evaluate is None and not settings.federated_evaluation:
        raise BadInput(
            f"keep_best = {settings.keep_best!r} has no effect without evaluations; give the "
            "server a test set (evaluate), or set federated_evaluation"
        )
    if settings.target is not None and evaluate is None and not settings.federated_evaluation:
        raise BadInput(
            f"target = {settings.target:g} cannot be reached without evaluations; give the server "
            "a test set (evaluate), or set federated_evaluation"
        )
    evidence = strategy.needs.label_evidence
    if settings.summaries is not None and evidence not in (None, "declared"):
        raise BadInput(
            f"strategy.labels = {evidence!r} does not work with private label summaries, because "
            "the server then knows only each site's score; set strategy.labels = 'declared', or "
            "remove summaries"
        )
    if strategy.needs.payload is not None:
        _check_sums(strategy, settings, layout)
    if strategy.needs.finishes and not settings.sites:
        LOGGER.warning(
            "sites is empty, so this federation ends as soon as all sites that have joined were "
            "heard, which may be %d; name all sites that are to be heard",
            settings.min_clients,
        )
    if 1 < strategy.needs.min_clients == settings.min_clients:
        LOGGER.warning(
            "min_clients = %d equals the number of buffer slots, so the buffer shrinks as soon as "
            "one site leaves; set min_clients higher",
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
    """Runs one federation; every `now` is a reading of the same monotonic clock."""

    def __init__(
        self,
        store: FederationStore,
        strategy: Strategy[Any],
        model: Callable[[], Vector],
        settings: ServerSettings,
        layout: Layout,
        evaluate: Callable[[Vector], EvaluationOutput] | None = None,
        train_config: Callable[[str, int], Mapping[str, Any]] | None = None,
    ) -> None:
        self._store = store
        self._strategy = strategy
        self._model = model
        self._settings = settings
        self._layout = layout
        self._own_config = train_config
        self._pending = PendingTasks()
        self._training: dict[str, PendingTask] = {}  # the current training task of each site
        self._needs = strategy.needs
        self._membership = SiteMembership(
            store,
            settings,
            self._needs.min_clients,
            self._release,
            needs_counts=needs_counts(self._needs),
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
        """Why the federation has ended; None while it is running."""
        return self._finished

    @property
    def accepted(self) -> int:
        """The number of accepted updates."""
        return self._store.state.accepted

    @property
    def members(self) -> list[str]:
        """The names of all members."""
        return self._membership.members

    # Reports of the engine

    def online(self, nodes: Collection[int], now: float) -> None:
        """Report the nodes that are online now."""
        known = self._membership.nodes
        if self._rounds is not None:
            for node in known.online.difference(nodes):
                self._rounds.forget(node)
        known.update(nodes, now)

    def sent(self, task: Task, message_id: str) -> None:
        """Report that the engine has sent the task; the reply will have this message id."""
        self._pending.sent(task, message_id)

    def not_sent(self, task: Task, reason: str, now: float) -> None:
        """Report that the engine could not send the task."""
        self._pending.not_sent(task)
        self._handle_failure(
            task, Failure(f"could not be reached: {reason}", site_fault=False), now
        )

    def receive(self, message_id: str, reply: Reply, now: float) -> None:
        """Handle the reply to a message.

        An OSError (a full disk) leaves everything unchanged; the engine hands in the reply again.
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
            site = getattr(reply, "site", None)
            site = site if site in self._store.state.counts else None
            self._store.note("an unexpected reply is ignored", now, site)
            return
        task = pending.task
        match task.kind, reply:
            case "summary", _ if not self._membership.nodes.knows(task.node):
                reason = f"a reply of node {task.node} is ignored, because it was away for too long"
                self._store.note(reason, now)
            case "summary", LabelSummary():
                self._handle_summary(task.node, reply, now)
            case "train", TrainReply():
                self._handle_update(pending, reply, now)
            case "evaluate", EvaluateReply():
                self._handle_evaluation(task, reply, now)
            case _, Failure():
                self._handle_failure(task, reply, now)
            case _:
                wrong = f"the reply to a {task.kind} task is {type(reply).__name__}"
                self._handle_failure(task, Failure(wrong), now)
        self._pending.close(message_id)

    # Tasks

    def tasks(self, now: float) -> list[Task]:
        """Return the tasks to send now; each task is returned once."""
        if self._finished:
            return []
        unidentified = self._nodes_to_identify(now)
        tasks = [self._make_task("summary", node, None, now) for node in unidentified]
        if not self._store.begun:
            return tasks
        due = self._sites_to_train(now)
        tasks += [self._make_task("train", node, site, now) for site, node in due]
        return tasks + self._evaluation_tasks(now)

    def _nodes_to_identify(self, now: float) -> list[int]:
        """Return the nodes to ask for their site's name and labels."""
        nodes = self._membership.nodes
        return [
            node
            for node in nodes.unidentified()
            if nodes.back_offs[node].not_before <= now
            and not self._pending.is_busy(node, "summary")
            and (self._rounds is None or self._rounds.question(node) is not None)
        ]

    def _sites_to_train(self, now: float) -> list[tuple[str, int]]:
        """Return the sites that are due to train and online, with their nodes."""
        if self._stopping:
            return []
        due = (site for site in self._store.state.awaiting_model if site not in self._training)
        pairs = ((site, self._membership.ready(site, now)) for site in due)
        return [(site, node) for site, node in pairs if node is not None]

    def _evaluation_tasks(self, now: float) -> list[Task]:
        current = self._evaluations.current
        if current is None:
            return []
        tasks = []
        for site in current.to_ask:
            node = self._membership.nodes.node_of(site)
            if node is not None:
                task = self._make_task("evaluate", node, site, now, current.tested)
                current.awaited[task.number] = site
                tasks.append(task)
        current.to_ask = []
        return tasks

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
            source = tested or self._store.strategy_state
            config = self._train_config(site or "", source.version) if kind == "train" else {}
            # A site that sends sums needs no model, and the model is solved when it is read.
            sends_sums = kind == "train" and self._needs.payload is not None
            model = None if sends_sums else source.model
            task = Task(number, kind, node, site, deadline, source.version, model, config)
        pending = PendingTask(task, now, self._store.state.event)
        if kind == "train" and site is not None:
            self._training[site] = pending
        return self._pending.add(pending)

    def _train_config(self, site: str, version: int) -> dict[str, Any]:
        """Return the user's settings for one training; settings of single sites take precedence."""
        settings = self._settings
        own: Mapping[str, Any] = {}
        if self._own_config is not None:
            own = check_train_config(self._own_config(site, version), "train_config")
        return {**own, **settings.train, **settings.train_at.get(site, {})}

    def _begin_if_enough(self, now: float) -> None:
        nodes = None if self._store.begun else self._membership.enough_to_begin()
        if nodes is not None:
            counts = {site: self._membership.initial_sites[site] for site in nodes}
            model, rare = self._model(), self._settings.rare_labels
            scale = scale_of(model, self._layout)
            coverage = None
            if self._rounds is not None:
                coverage = {"clients": self._rounds.clients, "labels": self._rounds.coverage}
            self._store.begin(model, counts, nodes, rare, now, scale, coverage)
            LOGGER.info("training begins with %d sites", len(nodes))
            self._next_snapshot = now + self._settings.snapshot_every
            self._membership.initial_sites.clear()

    def _label_rounds(self) -> LabelRounds | None:
        """Return the rounds of private label summaries, or None if the settings have none."""
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

    def _handle_summary(self, node: int, summary: LabelSummary, now: float) -> None:
        """Let a node's site join; with private label summaries, only once its score is known."""
        rounds = self._rounds
        if rounds is not None:
            try:
                score = rounds.answer(node, summary.answer)
            except BadInput as refusal:
                failure = Failure(f"{one_line(summary.site)}: {refusal}")
                self._handle_failure(Task(0, "summary", node, None, 0.0), failure, now)
                return
            if score is None:
                return
            counts = counts_of_score(summary.site, score, rounds.clients)
            summary = LabelSummary(summary.site, counts)
        self._membership.handle_summary(node, summary, now)
        self._begin_if_enough(now)

    def _release(self, site: str) -> None:
        """Stop waiting for the site's replies; a late reply may still be accepted."""
        if (pending := self._training.pop(site, None)) is not None:
            pending.overdue = True
        self._evaluations.forget(site)

    # Replies

    def _handle_update(self, pending: PendingTask, reply: TrainReply, now: float) -> None:
        task, store = pending.task, self._store
        site, start_time = task.site or "", store.time(pending.time)
        if pending.replaced or site not in store.state.awaiting_model or self._stopping:
            store.note("a late update is ignored", now, site)
            return
        staleness, most = store.strategy_state.version - task.version, self._settings.max_staleness
        if most is not None and staleness > most:  # a slow site has not failed
            reason = f"client {site!r} started {staleness} versions ago; max_staleness is {most}"
            store.reject(site, reason, start_time, now)
            self._training.pop(site, None)
            return
        norm = None
        sends_sums = self._needs.payload is not None
        if sends_sums and reply.counts is not None:  # the sums are of these samples
            self._update_counts(site, reply.counts, now)
        try:
            update, norm = (
                self._check_sums(task, reply) if sends_sums else (self._check_update(task, reply))
            )
            what = "sent features of" if sends_sums else "changed the model by"
            norms, scale = store.state.norms.values(), store.state.scale
            check_norm(site, norm, norms, scale, self._settings.norm_bound, what)
            if self._protection is not None and task.model is not None:
                update = self._protection.protect(update, task.model)
            metrics = self._metrics(site, reply)
            facts = ArrivalFacts(start_time, pending.event, store.time(now), norm, metrics)
            refused = store.accept(update, facts)
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
            self._protection.count_update(site)
        if reply.counts is not None and not sends_sums:
            self._update_counts(site, reply.counts, now)
        self._after_arrival(now)

    def _check_sums(self, task: Task, reply: TrainReply) -> tuple[Update, float]:
        """Check a reply with sums; return the update and the norm of its features, a sample's."""
        check_reply(task, reply)
        site, payload = task.site or "", self._needs.payload
        assert payload is not None
        check_feature_map(site, reply.feature_map, self._settings.feature_map or "")
        if reply.counts is not None:
            self._check_label_limits(site, reply.counts)
        vector = np.ascontiguousarray(reply.vector)
        update = Update(site, task.version, vector, reply.examples)
        expected = Expected(payload.layout(self._layout).size, payload.dtype)
        check(self._store.strategy_state, update, payload=expected)
        check_examples(site, update.examples, self._store.state.counts[site])
        update.mark_finite()
        return update, payload.norm(vector, self._layout)

    def _check_update(self, task: Task, reply: TrainReply) -> tuple[Update, float]:
        """Check the reply; return the update and its distance from the model that was sent."""
        check_reply(task, reply)
        site, vector = task.site or "", np.ascontiguousarray(reply.vector)
        if reply.is_model and self._needs.sends == "delta" and vector.shape == (self._layout.size,):
            assert task.model is not None
            vector = difference(vector, task.model, self._layout)
        if reply.counts is not None:
            self._check_label_limits(site, reply.counts)
        statistics_size = self._layout.statistics_count
        loss = self._loss(reply)
        update = Update(site, task.version, vector, reply.examples, loss, statistics_size)
        check_form(self._store.strategy_state, update, self._needs.loss)
        check_examples(site, update.examples, self._store.state.counts[site])
        start = task.model if self._needs.sends == "model" else None
        norm = distance(update.vector, start, self._layout)
        # A finite norm proves that every parameter is finite.
        if not (isfinite(norm) and is_finite(vector[self._layout.statistics])):
            check(self._store.strategy_state, update, self._needs.loss)
        update.mark_finite()
        return update, norm

    def _metrics(self, site: str, reply: TrainReply) -> dict[str, float | None] | None:
        try:
            return check_metrics(f"client {site!r}", reply.metrics)
        except BadInput as refusal:
            raise RefusedUpdate(str(refusal)) from None

    def _loss(self, reply: TrainReply) -> float | None:
        """Return the loss, or None if it is not finite and the strategy does not use it."""
        used = self._needs.loss or (reply.loss is not None and isfinite(reply.loss))
        return reply.loss if used else None

    def _check_label_limits(self, site: str, counts: Mapping[str, int]) -> None:
        """Refuse a reply whose label counts exceed a limit.

        `_update_counts` logs other mistakes, and the update itself still counts.
        """
        try:
            check_labels(site, counts)
            self._membership.check_new_labels(site, counts)
        except BadInput as refusal:
            raise RefusedUpdate(str(refusal)) from None

    def _update_counts(self, site: str, counts: Mapping[str, int], now: float) -> None:
        before = self._store.state.counts[site]
        try:
            counts = check_counts(site, counts, before)
            if counts != before:
                self._store.declare(site, counts, now)
        except BadInput as refusal:
            self._store.note(f"new label counts are refused: {refusal}", now, site)
        except OSError as problem:  # the update is accepted; the site will declare the counts again
            self._store.note(f"new label counts cannot be written: {problem.strerror}", now, site)

    def _handle_evaluation(self, task: Task, reply: EvaluateReply, now: float) -> None:
        site = task.site or ""
        refused = self._evaluations.add(task, reply)
        if refused is None:
            self._membership.succeeded(site, "evaluate")
        else:
            self._membership.failed(site, refused, now, "evaluate")

    def _handle_failure(self, task: Task, failure: Failure, now: float) -> None:
        site, reason = task.site, failure.reason
        if site is None:
            if self._rounds is not None:
                self._rounds.forget(task.node)
            self._membership.nodes.back_offs[task.node].fail(self._settings.back_off, now)
            self._store.note(f"node {task.node} sent no label summary: {reason}", now)
        elif task.kind == "evaluate":
            self._evaluations.forget(site)
            if failure.malformed:
                self._membership.failed(site, reason, now, "evaluate")
            else:
                self._store.note(f"no evaluation: {reason}", now, site)
        elif (current := self._training.get(site)) is not None and current.task is task:
            del self._training[site]
            if failure.site_fault:
                self._membership.failed(site, reason, now)
            else:
                self._membership.postpone(site, reason, now)

    # Evaluation and the end

    def _after_arrival(self, now: float) -> None:
        # A model that is final once all sites were heard is evaluated after each of them.
        every = 1 if self._needs.finishes else self._settings.evaluate_every
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
            self._stopping = f"{seconds:.0f} s have passed"
        elif self._is_final:
            self._stopping = finished(self._needs, self._store.strategy_state)
        else:
            return
        self._evaluations.current = None
        self._begin_evaluation(now)

    @property
    def _is_final(self) -> bool:
        """Whether no further arrival can change the model: all named sites were heard."""
        state = self._store.strategy_state
        if finished(self._needs, state) is None:
            return False
        return set(self._settings.sites) <= set(map(str, state.contents.clients))

    def _begin_evaluation(self, now: float) -> None:
        ready = self._membership.ready
        here = [site for site in self.members if ready(site, now, "evaluate") is not None]
        self._evaluations.begin(here, now + self._settings.deadline, now, self._is_final)
        self._end_evaluation(now)

    def _end_evaluation(self, now: float) -> None:
        over, reached = self._evaluations.finish(now)
        if over:
            if self._protection is not None:
                self._protection.log_budget(now)
            self._stopping = self._stopping or reached
            self._finished = self._stopping

    # Time

    def tick(self, now: float) -> None:
        """Apply everything that is due: deadlines, absences, evaluations, limits, snapshots."""
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
        """Write a snapshot; skip it on a full disk, because the journal has every update."""
        self._next_snapshot = now + self._settings.snapshot_every
        try:
            self._store.snapshot(now)
            self._snapshot_failed = False
        except OSError as problem:
            reason = f"no snapshot could be written ({problem.strerror})"
            if self._store.state.ended is not None:  # the end record must be the last record
                LOGGER.warning("%s; a restart replays the log and the journal instead", reason)
            elif not self._snapshot_failed:
                self._store.note(reason, now)
            self._snapshot_failed = True

    def close(self, now: float) -> None:
        """Write everything to disk; an ended federation also gets its model file and end record."""
        store = self._store
        if store.begun:
            if self._finished and store.state.ended is None:
                store.models.write(store.strategy_state.model)
                store.end(self._finished, now)
            self._snapshot(now)
            store.log.to_disk()
        store.log.close()

    def abandon(self) -> None:
        """Close the folder without writing anything; a restart recovers the federation from it."""
        self._store.log.close()


def _check_sums(strategy: Strategy[Any], settings: ServerSettings, layout: Layout) -> None:
    """Refuse settings that do not go with sums, and settings that sums need."""
    name = type(strategy).__name__
    for key, is_set, reason in (
        ("max_staleness", settings.max_staleness is not None, "sums do not become stale"),
        ("update_privacy", settings.update_privacy is not None, "sums are not updates of a model"),
        ("summaries", settings.summaries is not None, "sums contain the exact label counts"),
    ):
        if is_set:
            raise BadInput(f"{key} does not go with {name}: {reason}; leave it out")
    weight = layout.head_weight
    outputs = 0 if weight is None else weight.shape[0]
    if len(settings.labels) != outputs or not outputs:
        raise BadInput(
            f"{name} needs the labels, or the names of a regression's targets, in the order of the "
            f"model's outputs: labels has {len(settings.labels)} names, and the model {outputs} "
            "outputs; set labels"
        )
    if not settings.feature_map:
        raise BadInput(
            f"{name} needs feature_map, the digest of the feature map from which all sites compute "
            "their sums; give the map's file to server_app"
        )


def needs_counts(needs: Needs) -> bool:
    """Return whether sites must declare their label counts."""
    hidden = needs.payload is not None and not needs.payload.declared
    return needs.label_evidence != "inferred" and not hidden
