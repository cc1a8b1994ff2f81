"""Measures how evenly the global model serves the clients, each on its own test samples."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt

from fedraw.core.types import Floats, Ints


def client_accuracies(
    correct: npt.NDArray[np.bool_], owner: Ints, clients: int
) -> list[float | None]:
    """Return each client's accuracy in percent; None for a client without test samples.

    `correct` and `owner` have one entry per local test sample: whether the
    prediction was right, and the position of the client that holds the sample.

    >>> client_accuracies(np.array([True, False, True]), np.array([0, 0, 2]), clients=3)
    [50.0, None, 100.0]
    """
    tested = np.bincount(owner, minlength=clients).tolist()
    right = np.bincount(owner[correct], minlength=clients).tolist()
    return [100 * hits / n if n else None for hits, n in zip(right, tested, strict=True)]


def fairness_metrics(
    accuracies: Sequence[float | None], rare: Collection[int]
) -> dict[str, float | None]:
    """Compute Worst10, LocalRare, LocalCommon and MeanClient in percent, and Jain in 0..1.

    A metric is None where it is undefined. `rare` holds the positions of the rare clients. Clients
    without local test samples (None) are left out. Worst10 is the mean over the worst tenth of the
    clients, rounded up to whole clients.

    >>> fairness_metrics([50.0, 100.0, None], rare={0})["LocalRare"]
    50.0
    """
    known = {c: value for c, value in enumerate(accuracies) if value is not None}
    values = np.array(sorted(known.values()), dtype=np.float64)
    tenth = -(-len(values) // 10)
    return {
        "Worst10": _mean(values[:tenth]),
        "LocalRare": _mean(np.array([v for c, v in known.items() if c in rare])),
        "LocalCommon": _mean(np.array([v for c, v in known.items() if c not in rare])),
        "MeanClient": _mean(values),
        "Jain": jain(values),
    }


def jain(values: Floats) -> float | None:
    """Compute Jain's index (Σ a)² / (N Σ a²).

    It is 1 if all values are equal, 1/N if all but one are 0, and None if all are 0.

    >>> jain(np.array([1.0, 1.0])), jain(np.array([1.0, 0.0])), jain(np.zeros(2))
    (1.0, 0.5, None)
    """
    squares = float(np.square(values).sum())
    return float(values.sum()) ** 2 / (len(values) * squares) if squares else None


def _mean(values: Floats) -> float | None:
    return float(values.mean()) if values.size else None
