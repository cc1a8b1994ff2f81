"""Sections of a spec that contradict each other: refused before anything is run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedraw.errors import BadInput

if TYPE_CHECKING:
    from fedraw.experiments.spec import Spec


def refuse_contradictions(spec: Spec) -> None:
    """Whatever would be ignored, or would mean something else than it says."""
    labels = spec.strategy.settings.get("labels", "declared")
    _refuse_summaries(spec, labels)
    _refuse_drift(spec)
    _refuse_receivers(spec, labels)
    if spec.training.kind == "none":
        _refuse_without_models(spec, labels)


def _refuse_summaries(spec: Spec, labels: str) -> None:
    if spec.summaries is None:
        return
    if labels == "checked":
        raise BadInput(
            "strategy.labels = 'checked' holds claims against updates, and with [summaries] "
            "the server sees no claims; use 'declared' or 'inferred'"
        )
    if labels == "inferred":
        raise BadInput(
            "strategy.labels = 'inferred' asks nobody for labels, so [summaries] has nothing to "
            "protect; leave one of them out"
        )
    if spec.drift is not None and spec.drift.declared == "again":
        raise BadInput(
            "drift.declared = 'again' reports counts openly, and [summaries] is there to prevent "
            "that; use 'once'"
        )


def _refuse_drift(spec: Spec) -> None:
    drift, events = spec.drift, spec.run.events
    if drift is None:
        return
    if round(drift.at * events) >= events:
        raise BadInput(f"drift.at = {drift.at} is at the end of run.events = {events}; give less")
    if drift.declared == "again" and spec.misreport is not None:
        raise BadInput(
            "drift.declared = 'again' reports true counts, also those of the liars of [misreport]; "
            "use 'once', or leave one of them out"
        )


def _refuse_receivers(spec: Spec, labels: str) -> None:
    run, clients = spec.run, spec.partition.clients
    if run.receivers != "rare-first":
        return
    if run.concurrency is None or run.concurrency >= clients:
        raise BadInput(
            "run.receivers = 'rare-first' changes nothing while all clients train at once; set "
            f"run.concurrency below partition.clients = {clients}"
        )
    if labels == "inferred":
        raise BadInput(
            "run.receivers = 'rare-first' goes by the labels that clients report, and with "
            "strategy.labels = 'inferred' nobody does; use 'declared' or 'checked'"
        )


def _refuse_without_models(spec: Spec, labels: str) -> None:
    remedy = "and with training.kind = 'none' there is no model; use 'sgd'"
    if labels != "declared":
        raise BadInput(f"strategy.labels = {labels!r} reads the updates of a model, {remedy}")
    if spec.misreport is not None and spec.misreport.support is not None:
        raise BadInput(f"misreport.support forges the updates of a model, {remedy}")
    if spec.label_noise is not None:
        raise BadInput(f"[label_noise] mixes up what a model is trained with, {remedy}")
