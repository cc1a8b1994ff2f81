"""Sites in memory that send the sums of their samples to a real coordinator."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from tests.server.engine import Engine

from fedraw.core.layout import Layout
from fedraw.core.sums import SumsShape, on_grid
from fedraw.core.types import Vector
from fedraw.server.results import Recall
from fedraw.server.tasks import Task, TrainReply
from fedraw.strategies.one_pass import OnePass

LABELS = ("cat", "dog", "owl")
SHAPE = SumsShape(3, 6)
LAYOUT = Layout.of([("weight", (3, 6)), ("bias", (3,))])
MAP = "a map"
COUNTS = {
    "north": {"cat": 60, "dog": 40},
    "south": {"cat": 50, "dog": 50},
    "east": {"dog": 80},
    "west": {"owl": 30, "cat": 10},
}
MEANS = 3 * np.eye(3, 6)


def samples(name: str) -> tuple[Any, Any]:
    counts, rng = COUNTS[name], np.random.default_rng(len(name) + sum(map(ord, name)))
    labels = np.repeat([LABELS.index(own) for own in counts], list(counts.values()))
    return on_grid(MEANS[labels] + rng.normal(size=(len(labels), 6))), labels


def totals_of(names: Iterable[str]) -> Any:
    total = SHAPE.zeros()
    for name in names:
        total += SHAPE.of_samples(*samples(name))
    return total


def recall(model: Vector) -> Recall:
    parts = [samples(name) for name in COUNTS]
    inputs, labels = (np.concatenate(own) for own in zip(*parts, strict=True))
    best = np.argmax(inputs @ model[:18].reshape(3, 6).T + model[18:], axis=1)
    return Recall.of([LABELS[i] for i in labels], [LABELS[i] for i in best])


# For a regression, the targets of a sample are these sums of its features.
SLOPES = np.array([[0.5, 0, 0, 1, 0, 0], [0, 0.5, -0.5, 0, 0, 0]])
REGRESSION = OnePass(readout="regression")
TARGETS_SHAPE = REGRESSION.payload.shape(2, 6)
TARGETS_LAYOUT = Layout.of([("weight", (2, 6)), ("bias", (2,))])


def sums_of_targets(name: str) -> Any:
    inputs, _ = samples(name)
    return REGRESSION.payload.exact(TARGETS_SHAPE, inputs, inputs @ SLOPES.T + 1)


OPENED: list[Engine] = []


class SumsEngine(Engine):
    """Sites that compute the sums of their samples."""

    def __init__(self, folder: Path, strategy: Any = None, **settings: Any) -> None:
        usual: dict[str, Any] = {"labels": LABELS, "feature_map": MAP, "arrivals": None}
        usual |= {"evaluate": recall, "layout": LAYOUT}
        super().__init__(folder, strategy or OnePass(), COUNTS, **{**usual, **settings})
        OPENED.append(self)

    def _train(self, name: str, task: Task) -> TrainReply:
        assert task.model is None
        inputs, labels = samples(name)
        message: Any = SHAPE.of_samples(inputs, labels)
        number, version = task.number, task.version
        return TrainReply(name, number, version, message, len(labels), feature_map=MAP)

    @property
    def totals(self) -> Any:
        return self.coordinator._store.strategy_state.totals  # type: ignore[attr-defined]

    def finish(self) -> None:
        self.run(lambda: self.coordinator.finished is not None)
        self.coordinator.close(self.now)


class RegressionEngine(SumsEngine):
    """Sites that compute the sums of their samples and of two targets."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        usual = {"labels": ("rent", "age"), "evaluate": None, "layout": TARGETS_LAYOUT}
        super().__init__(folder, REGRESSION, **{**usual, **settings})

    def _train(self, name: str, task: Task) -> TrainReply:
        message, (_, labels) = sums_of_targets(name), samples(name)
        return TrainReply(name, task.number, task.version, message, len(labels), feature_map=MAP)
