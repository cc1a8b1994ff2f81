"""Versions of the global model in Ray's object store: each once, while somebody trains from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fedraw.core.types import Vector


@dataclass
class _Version:
    model: Vector  # held, so that no other array can get its identity
    jobs: int = 0
    stored: Any = None


class StoredModels:
    """Clients that are handed the same array share one stored copy of it.

    >>> import numpy as np
    >>> model, puts = np.zeros(2, np.float32), []
    >>> models = StoredModels(put=lambda array: puts.append(array) or len(puts))
    >>> models.expect(model); models.expect(model)
    >>> models.stored(model), models.stored(model), len(puts)
    (1, 1, 1)
    >>> models.release(model); len(models), models.release(model), len(models)
    (1, None, 0)
    """

    def __init__(self, put: Callable[[Vector], Any]) -> None:
        self._put = put
        self._versions: dict[int, _Version] = {}

    def __len__(self) -> int:
        return len(self._versions)

    def expect(self, model: Vector) -> None:
        """One more job will start from this model."""
        self._versions.setdefault(id(model), _Version(model)).jobs += 1

    def stored(self, model: Vector) -> Any:
        version = self._versions[id(model)]
        if version.stored is None:
            version.stored = self._put(model)
        return version.stored

    def release(self, model: Vector) -> None:
        """One of its jobs is done; after the last one, Ray frees the copy."""
        version = self._versions[id(model)]
        version.jobs -= 1
        if not version.jobs:
            del self._versions[id(model)]
