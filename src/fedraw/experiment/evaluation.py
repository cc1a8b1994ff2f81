"""Evaluate the global model on the global test set and on each client's own test samples."""

from __future__ import annotations

import numpy as np

from fedraw.eventlog.records import EvaluationRecord
from fedraw.experiment.scenario import Scenario
from fedraw.metrics.accuracy import accuracy_metrics, confusion, recall_per_label
from fedraw.metrics.fairness import client_accuracies, fairness_metrics
from fedraw.simulation.loop import Simulation
from fedraw.storage.snapshot import nbytes


class Evaluator:
    """Evaluates models of one scenario."""

    def __init__(self, scenario: Scenario) -> None:
        if scenario.trainer is None:
            raise ValueError("a training-free run has no model to evaluate")
        clients = scenario.clients
        self._trainer = scenario.trainer
        self._dataset = clients.dataset
        self._rare_labels = clients.rare_labels
        self._rare_clients = clients.rare
        # All local test samples in one array: one pass through the model instead of one per client.
        own = clients.test_indices
        everything = np.concatenate(own) if own else np.zeros(0, np.int64)
        self._owner = np.repeat(np.arange(len(own)), [len(indices) for indices in own])
        self._local_images = self._dataset.images.select(everything)
        self._local_labels = self._dataset.labels[everything]
        self._clients = len(own)

    def __call__(self, simulation: Simulation, final: bool = False) -> EvaluationRecord:
        """Evaluate the current model; with `final`, count the confusions of labels too."""
        state, scorer = simulation.state, simulation.scorer
        model, data = state.model, self._dataset
        predicted = self._trainer.predict(model, data.test_images)
        local = self._trainer.predict(model, self._local_images)
        accuracies = client_accuracies(local == self._local_labels, self._owner, self._clients)
        truth, classes = data.test_labels, data.classes
        recall = recall_per_label(truth, predicted, classes)
        inferred = None if scorer is None else scorer.inferred_labels()
        return EvaluationRecord(
            event=simulation.timeline.event,
            time=simulation.timeline.now,
            version=state.version,
            metrics={
                **accuracy_metrics(truth, predicted, classes, self._rare_labels),
                **fairness_metrics(accuracies, self._rare_clients),
            },
            recall=dict(zip(data.label_names, recall, strict=True)),
            confusion=confusion(truth, predicted, data.label_names) if final else None,
            # Memory of the strategy's state, in copies of the model.
            server_models=round(nbytes(state) / model.nbytes, 2),
            inferred=None if inferred is None else inferred._asdict(),
        )
