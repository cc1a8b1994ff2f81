"""Evaluates the global model on the global test set and on each client's own test samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedraw.core.types import Ints, Vector
from fedraw.errors import BadInput, user_traceback
from fedraw.eventlog.metrics import (
    QUALITY,
    REGRESSION_METRICS,
    accuracy_metrics,
    client_accuracies,
    confusion,
    fairness_metrics,
    recall_per_label,
)
from fedraw.eventlog.records import EvaluationRecord
from fedraw.experiment.scenario import Scenario
from fedraw.simulation.loop import Simulation
from fedraw.storage.snapshot import nbytes

Array = npt.NDArray[Any]
Values = Mapping[str, float | None]


class ModelScores(NamedTuple):
    """The scores of one model; `predicted` is None if the model does not predict labels."""

    metrics: Values
    recall: Values
    predicted: Ints | None
    own: Values | None
    own_rare: Values | None


class Evaluator:
    """Evaluates models of one scenario."""

    def __init__(self, scenario: Scenario) -> None:
        if scenario.trainer is None:
            raise ValueError("a training-free run has no model to evaluate")
        clients = scenario.clients
        self._trainer = scenario.trainer
        self._dataset = clients.dataset
        self._own = scenario.parts.metrics
        targets = clients.dataset.test_targets
        if not self._own and targets is not None:
            self._own = REGRESSION_METRICS
        self._rare_labels = clients.rare_labels
        self._rare_clients = clients.rare
        self._is_rare = np.isin(self._dataset.test_labels, list(clients.rare_labels))
        # All local test samples in one array: one pass through the model instead of one per client.
        own = clients.test_indices
        self._owner = own.owners()
        self._local_images = self._dataset.inputs.select(own.flat)
        self._local_labels = self._dataset.labels[own.flat]
        self._clients = len(own)

    def __call__(
        self,
        simulation: Simulation,
        final: bool = False,
        calibrated: Vector | None = None,
    ) -> EvaluationRecord:
        """Evaluate the current model; with `final`, also compute the confusion matrix.

        The calibrated model is evaluated as well, if there is one.
        """
        state, scorer, data = simulation.state, simulation.scorer, self._dataset
        scores = self._scores(state.model)
        inferred = None if scorer is None else scorer.inferred_labels()
        counted = None
        if final and scores.predicted is not None:
            counted = confusion(data.test_labels, scores.predicted, data.label_names)
        return EvaluationRecord(
            event=simulation.timeline.event,
            time=simulation.timeline.now,
            version=state.version,
            metrics=scores.metrics,
            recall=scores.recall,
            confusion=counted,
            # Memory of the strategy's state, in copies of the model.
            server_models=round(nbytes(state) / state.model.nbytes, 2),
            inferred=None if inferred is None else inferred._asdict(),
            own=scores.own,
            own_rare=scores.own_rare,
            calibrated=None if calibrated is None else self.measure(calibrated),
            final=simulation.finished is not None,
        )

    def measure(self, model: Vector) -> dict[str, Values]:
        """Return the metrics, the recalls and the user's own metrics of any model of the run."""
        scores = self._scores(model)
        values = {"metrics": scores.metrics, "recall": scores.recall, "own": scores.own}
        return {key: value for key, value in values.items() if value is not None}

    def _scores(self, model: Vector) -> ModelScores:
        data, targets = self._dataset, self._dataset.test_targets
        if targets is None and not self._own:
            predicted = self._trainer.predict(model, data.test_inputs)
            return ModelScores(*self._label_scores(model, predicted), predicted, None, None)
        outputs = self._trainer.outputs(model, data.test_inputs)
        truth = data.test_labels if targets is None else targets
        own, rare = own_metrics(self._own, outputs, truth), None
        if self._is_rare.any():
            of_rare = (outputs[self._is_rare], truth[self._is_rare])
            rare = own_metrics(self._own, *of_rare, strict=False)
        if targets is not None:  # the model does not predict labels
            undefined = (dict.fromkeys(QUALITY), dict.fromkeys(data.label_names))
            return ModelScores(*undefined, None, own, rare)
        predicted = outputs.argmax(1)
        return ModelScores(*self._label_scores(model, predicted), predicted, own, rare)

    def _label_scores(self, model: Vector, predicted: Ints) -> tuple[Values, Values]:
        """Return the metrics of predicted labels, and the recall of each label."""
        data = self._dataset
        local = self._trainer.predict(model, self._local_images)
        accuracies = client_accuracies(local == self._local_labels, self._owner, self._clients)
        truth, classes = data.test_labels, data.classes
        metrics = {
            **accuracy_metrics(truth, predicted, classes, self._rare_labels),
            **fairness_metrics(accuracies, self._rare_clients),
        }
        recall = recall_per_label(truth, predicted, classes)
        return metrics, dict(zip(data.label_names, recall, strict=True))


def own_metrics(
    functions: Mapping[str, Callable[[Array, Array], float]],
    outputs: Array,
    targets: Array,
    *,
    strict: bool = True,
) -> dict[str, float | None]:
    """Return the value of each of the user's metrics; None for a value that is not finite.

    Unless `strict`, the value is None if a function fails: some metrics are undefined on a part
    of the test set.

    >>> error = {"MAE": lambda outputs, targets: abs(outputs - targets).mean()}
    >>> own_metrics(error, np.array([1.0, 2.0]), np.array([2.0, 4.0]))
    {'MAE': 1.5}
    """
    values: dict[str, float | None] = {}
    for name, function in functions.items():
        try:
            # Copies, because a function that writes into them must not change other results.
            value = float(function(outputs.copy(), targets.copy()))
        except Exception as error:  # the user's code may fail in any way
            if strict:
                raise _failed(name, outputs, targets, error) from None
            value = math.nan
        values[name] = value if math.isfinite(value) else None
    return values


def _failed(name: str, outputs: Array, targets: Array, error: Exception) -> BadInput:
    return BadInput(
        f"metrics[{name!r}] must return a number for outputs of shape {outputs.shape} and targets "
        f"of shape {targets.shape}, and failed with {type(error).__name__}: {error}\n"
        f"{user_traceback(error)}"
    )
