"""Clients whose data change in the middle of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from fedraw.core.types import ClientId, Ints, LabelCounts


@dataclass(frozen=True)
class Drift:
    """From this event on a client that is handed the model trains on its later data.

    `declared` are the new counts of those who then report them; nobody does unless asked to.
    """

    at: int
    declared: Mapping[ClientId, LabelCounts] = field(default_factory=dict)


def without(indices: Sequence[Ints], labels: Ints, label: int) -> list[Ints]:
    """Everyone's samples but those of a label.

    >>> labels = np.array([0, 1, 0, 1])
    >>> [own.tolist() for own in without([np.array([0, 1]), np.array([2, 3])], labels, 1)]
    [[0], [2]]
    """
    return [own[labels[own] != label] for own in indices]


def moved(
    indices: Sequence[Ints], labels: Ints, label: int, receivers: Sequence[int]
) -> list[Ints]:
    """The samples of a label go from each of its holders to one of the receivers.

    >>> labels = np.array([0, 1, 0, 1])
    >>> own = [np.array([0, 1]), np.array([2]), np.array([3])]
    >>> [o.tolist() for o in moved(own, labels, 1, receivers=[1, 1])]
    [[0], [2, 1, 3], []]
    """
    after = without(indices, labels, label)
    holders = [i for i, own in enumerate(indices) if (labels[own] == label).any()]
    for holder, receiver in zip(holders, receivers, strict=True):
        own = indices[holder]
        after[receiver] = np.concatenate([after[receiver], own[labels[own] == label]])
    return after
