"""The calibrated model of a run: its output layer, trained on features of all clients."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from fedraw.core.randomness import Streams
from fedraw.core.text import several
from fedraw.core.types import Vector
from fedraw.data.dataset import Dataset
from fedraw.errors import BadInput
from fedraw.experiment.clients import Clients, LocalData

if TYPE_CHECKING:
    from fedraw.experiment.scenario import Scenario
    from fedraw.learning.training import Trainer


def refuse_uncalibrated(trainer: Trainer, dataset: Dataset) -> None:
    """Refuse a model without a linear output layer, and data whose targets are not labels."""
    from fedraw.learning.calibration import Head

    if dataset.targets is not None:
        raise BadInput(
            f"calibration needs labels, and dataset {dataset.name!r} has other targets; leave "
            "calibration out"
        )
    Head(trainer, dataset.classes)


def labels_left_out(clients: Clients) -> tuple[str, ...]:
    """Return the note of a calibrated run about labels with too few samples, if there are any."""
    from fedraw.learning.calibration import MIN_SAMPLES

    totals: Counter[str | int] = Counter()
    for held in clients.epochs[-1].table.counts().values():
        totals.update(held)
    few = [name for name in clients.dataset.label_names if totals[name] < MIN_SAMPLES]
    if not few:
        return ()
    return (f"calibration leaves out {several(few)}: fewer than {MIN_SAMPLES} samples in all",)


def calibrated(scenario: Scenario, model: Vector) -> Vector | None:
    """Return the model with a calibrated output layer; None if the spec has no [calibration].

    This is a copy of the model if it has values that are not finite, or if every label has too few
    samples.
    """
    wanted, trainer = scenario.spec.calibration, scenario.trainer
    if wanted is None or trainer is None:
        return None
    from fedraw.learning.calibration import MIN_SAMPLES, FeatureSums, Head

    data, classes = LocalData.of(scenario.clients), scenario.clients.dataset.classes
    head = Head(trainer, classes)
    sums = FeatureSums.zeros(classes, head.size)
    if not np.isfinite(model).all():
        return model.copy()
    newest = len(data.start) - 1 - data.clients  # the clients' data after a drift, if there is one
    for number in range(newest, newest + data.clients):
        rows = data.rows(number)
        sums.add(head.features(model, data.inputs.select(np.arange(rows.start, rows.stop))),
                 data.targets[rows])  # fmt: skip
    labels = np.flatnonzero(sums.counts >= MIN_SAMPLES)
    if not labels.size:
        return model.copy()
    rng = Streams(scenario.seed).generator("calibration")
    features, targets = sums.draw(labels, wanted.samples, rng)
    return head.retrained(model, features, targets, wanted.sgd(), rng)
