"""Drift: clients whose data change in the middle of a run."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from fedraw.core.types import Ints
from fedraw.errors import BadInput


def without(indices: Sequence[Ints], labels: Ints, label: int) -> list[Ints]:
    """Return every client's samples except those of a label.

    >>> labels = np.array([0, 1, 0, 1])
    >>> [own.tolist() for own in without([np.array([0, 1]), np.array([2, 3])], labels, 1)]
    [[0], [2]]
    """
    return [own[labels[own] != label] for own in indices]


def moved(
    indices: Sequence[Ints], labels: Ints, label: int, receivers: Sequence[int]
) -> list[Ints]:
    """Return every client's samples after each holder of a label gave them to a receiver.

    >>> labels = np.array([0, 1, 0, 1])
    >>> own = [np.array([0, 1]), np.array([2]), np.array([3])]
    >>> [o.tolist() for o in moved(own, labels, 1, receivers=[1, 1])]
    [[0], [2, 1, 3], []]
    """
    after = without(indices, labels, label)
    holders = holders_of(indices, labels, label)
    for holder, receiver in zip(holders, receivers, strict=True):
        own = indices[holder]
        after[receiver] = np.concatenate([after[receiver], own[labels[own] == label]])
    return after


def draw_receivers(
    indices: Sequence[Ints],
    labels: Ints,
    label: int,
    excluded: Collection[int],
    rng: np.random.Generator,
) -> list[int]:
    """Draw a client for each holder of the label, neither a holder nor one of the excluded."""
    holders = holders_of(indices, labels, label)
    if not holders:
        raise BadInput("no client has a training sample of it")
    able = np.setdiff1d(np.arange(len(indices)), [*excluded, *holders])
    if able.size < len(holders):
        raise BadInput(
            f"{len(holders)} clients hold it, and only {able.size} that could receive it hold "
            "neither it nor a rare label; choose a rarer label"
        )
    drawn: list[int] = rng.permutation(able)[: len(holders)].tolist()
    return drawn


def holders_of(indices: Sequence[Ints], labels: Ints, label: int) -> list[int]:
    """Return the positions of the clients that have a sample of the label."""
    return [i for i, own in enumerate(indices) if (labels[own] == label).any()]


def refuse_empty(indices: Sequence[Ints]) -> None:
    """Refuse a drift that leaves a client without samples."""
    empty = [client for client, own in enumerate(indices) if not own.size]
    if empty:
        raise BadInput(
            f"client {empty[0]} has nothing else to train on; choose another label, or fewer "
            "clients"
        )
