"""The model files of a server: the best model so far, and the last model of an ended federation.

Every snapshot has the current model. All files have the tensors of the app, with their names,
shapes and types; integer tensors are those of the initial model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedraw.core.types import Vector
from fedraw.eventlog.records import EvaluationRecord
from fedraw.server.snapshots import Tensor
from fedraw.storage.files import PRIVATE_FILE, atomic_file
from fedraw.storage.snapshot import (
    BEST,
    CONSTANTS,
    MODEL,
    BestFacts,
    named_tensors,
    write_tensors,
)


class ModelFiles:
    """The model files of one federation."""

    def __init__(
        self,
        folder: Path,
        tensors: Sequence[Tensor],
        constants: Mapping[str, Any] | None = None,
        best_metric: str = "",
    ) -> None:
        self._folder = folder
        self._tensors = tensors
        self._constants = {name: np.asarray(value) for name, value in (constants or {}).items()}
        self._metric = best_metric
        self._best = self._read_best()

    def begin(self) -> None:
        """Write the tensors that are not trained, and remove an earlier best model."""
        (self._folder / BEST).unlink(missing_ok=True)
        self._best = None
        if self._constants:
            self._write(CONSTANTS, self._constants, {})

    def write(self, model: Vector) -> None:
        """Write the last model."""
        self._write(MODEL, self._named(model), {})

    def keep_if_best(
        self,
        model: Vector,
        record: EvaluationRecord,
        metrics: Mapping[str, float | None],
        recall: Mapping[str, float | None],
    ) -> None:
        """Write the model to a file if it is the best so far by the chosen metric."""
        value = metrics.get(self._metric) if self._metric else None
        if value is None or (self._best is not None and value <= self._best):
            return
        facts = BestFacts(
            self._metric,
            value,
            record.event,
            record.version,
            dict(metrics),
            dict(recall),
        )
        self._write(BEST, self._named(model), facts.header())
        self._best = value

    def _named(self, model: Vector) -> dict[str, Any]:
        return {**named_tensors(model, self._tensors), **self._constants}

    def _write(self, name: str, tensors: Mapping[str, Any], metadata: Mapping[str, str]) -> None:
        with atomic_file(self._folder / name) as draft:
            write_tensors(tensors, draft, metadata)
            draft.chmod(PRIVATE_FILE)

    def _read_best(self) -> float | None:
        """Return the value of an existing best model, if it was chosen by the same metric."""
        facts = BestFacts.read(self._folder / BEST)
        return facts.value if facts and facts.metric == self._metric else None
