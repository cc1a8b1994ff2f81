"""The basic types of the library, and the findings that scorers report about clients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

# A client's stable name: a number in a simulation, a site's own name in a federation.
ClientId = int | str

# A class of the task, by number or by name.
Label = int | str

# One client's histogram of its local training labels (Any: a Mapping's key type is invariant).
LabelCounts = Mapping[Any, int]

# A model, or a difference of two: one flat float32 array.
Vector = npt.NDArray[np.float32]

# Arrays that are not models: weights, scores, positions.
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

# The range of times, in any unit, for which sums, squares and rates can be computed.
SHORTEST_TIME, LONGEST_TIME = 1e-100, 1e100


class Doubt(NamedTuple):
    """A finding: a client's updates contradict its label counts, or show an undeclared label."""

    client: ClientId
    label: Label
    claimed: float  # the label's share of the client's data, as declared; 0 if it is not declared
    presence: float  # the probability that the client holds the label, according to its updates


class Cleared(NamedTuple):
    """A finding: an earlier doubt no longer holds."""

    client: ClientId
    label: Label
    presence: float


Finding = Doubt | Cleared


class InferredLabels(NamedTuple):
    """What the updates show about labels that no client declares.

    `coverage` is the expected number of clients that hold each label. `holders` names the clients
    for labels that few clients hold, the rarest label first.
    """

    coverage: dict[str, float]
    holders: dict[str, list[ClientId]]
