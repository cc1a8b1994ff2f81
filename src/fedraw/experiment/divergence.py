"""Says that a learning rate is too high, before a run and after updates that are not numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedraw.eventlog.records import ArrivalRecord, RejectedRecord
from fedraw.experiment.spec import Spec

if TYPE_CHECKING:
    from fedraw.experiment.result import SeedResult

# Models of every kind diverge far below this rate.
_ABSURD = 100


def rate_note(spec: Spec) -> tuple[str, ...]:
    """Return a note about a learning rate of the built-in training at which nothing is learned.

    >>> from fedraw.experiment.sections import Training
    >>> rate_note(Spec(training=Training(lr=1000)))
    ('training.lr = 1000 is far above useful learning rates, which are about 0.001 to 1',)
    """
    lr = spec.training.lr
    if spec.training.kind != "sgd" or lr <= _ABSURD:
        return ()
    return (f"training.lr = {lr:g} is far above useful learning rates, which are about 0.001 to 1",)


def divergence(runs: Sequence[SeedResult], lr: float | None) -> tuple[str, ...]:
    """Return what to change if most clients of a run sent numbers that are NaN or infinite.

    If only a few clients do, their data are to blame rather than the rate.

    Args:
        runs: Runs of one spec.
        lr: The learning rate; None if a function of the user trains.

    """
    if not any(map(_has_diverged, runs)):
        return ()
    if lr is None:
        return ("local training diverged; lower the learning rate of your training function",)
    return (f"local training diverged with lr = {lr:g}; lower it, for example to {lr / 10:g}",)


def _has_diverged(run: SeedResult) -> bool:
    if not run.summary["rejected"]:
        return False
    diverged, heard = set(), set()
    for record in run.records():
        if isinstance(record, ArrivalRecord | RejectedRecord):
            heard.add(record.client)
        if isinstance(record, RejectedRecord) and "NaN or infinite" in record.reason:
            diverged.add(record.client)
    return 2 * len(diverged) > len(heard)
