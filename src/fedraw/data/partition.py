"""Spreads samples over clients: labels and a generator in, one sorted index array each out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fedraw.core.types import Floats, Ints
from fedraw.data.coverage import coverage
from fedraw.data.holdout import check_share
from fedraw.errors import BadInput

__all__ = ["check_partition", "coverage", "dirichlet", "iid", "label_counts", "split_local"]


def iid(labels: Ints, classes: int, rng: np.random.Generator, *, clients: int) -> list[Ints]:
    """Equal parts of one shuffle; `classes` is not used, all partitions are called alike.

    >>> [len(part) for part in iid(np.zeros(7), 1, np.random.default_rng(0), clients=3)]
    [3, 2, 2]
    """
    _check_clients(clients, 1, len(labels))
    return [np.sort(part) for part in np.array_split(rng.permutation(len(labels)), clients)]


def dirichlet(
    labels: Ints,
    classes: int,
    rng: np.random.Generator,
    *,
    clients: int,
    alpha: float,
    min_samples: int = 1,
) -> list[Ints]:
    """Spread each label in proportions ~ Dir(alpha): the smaller alpha, the more uneven.

    A client that ends with fewer than `min_samples` is given random samples of whichever client
    then holds most, one at a time; so small alphas come out a little less uneven than drawn.

    >>> labels = np.repeat([0, 1], 50)
    >>> parts = dirichlet(labels, 2, np.random.default_rng(0), clients=3, alpha=0.1)
    >>> label_counts(labels, parts, ["a", "b"])
    [{'a': 4}, {'b': 50}, {'a': 46}]
    """
    if not 0 < alpha < math.inf:
        raise BadInput(f"alpha = {alpha!r} is no Dirichlet parameter; it must be a number above 0")
    _check_clients(clients, min_samples, len(labels))
    drawn = [
        _cut(np.flatnonzero(labels == k), _shares(clients, alpha, rng), rng) for k in range(classes)
    ]
    parts = [np.concatenate(pieces) for pieces in zip(*drawn, strict=True)]
    return [np.sort(part) for part in _with_at_least(min_samples, parts, rng)]


def split_local(indices: Ints, share: float, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """A client's own train and test samples; at least one sample stays in train.

    >>> [len(part) for part in split_local(np.arange(10), 0.2, np.random.default_rng(0))]
    [8, 2]
    """
    check_share("local_test", share)
    size = min(round(share * len(indices)), len(indices) - 1)
    shuffled = rng.permutation(indices)
    return np.sort(shuffled[size:]), np.sort(shuffled[:size])


def label_counts(
    labels: Ints, indices_per_client: Sequence[Ints], label_names: Sequence[str]
) -> list[dict[str, int]]:
    """Each client's histogram of the labels that it holds.

    >>> label_counts(np.array([0, 1, 1]), [np.array([0]), np.array([1, 2])], ["cat", "dog"])
    [{'cat': 1}, {'dog': 2}]
    """
    least = len(label_names)
    tallies = [np.bincount(labels[part], minlength=least).tolist() for part in indices_per_client]
    return [{name: n for name, n in zip(label_names, tally, strict=True) if n} for tally in tallies]


def check_partition(parts: Sequence[npt.ArrayLike], n: int) -> list[Ints]:
    """A user's own partition of `n` samples in the form used here, or what is wrong with it.

    >>> check_partition([[2, 0], [1]], n=3)
    [array([0, 2]), array([1])]
    """
    checked = [_as_part(client, np.asarray(part), n) for client, part in enumerate(parts)]
    _check_clients(len(checked), 1, n)
    owner: dict[int, int] = {}
    for client, part in enumerate(checked):
        for index in part.tolist():
            if index in owner:
                raise BadInput(
                    f"sample {index} is held by client {owner[index]} and again by client {client};"
                    " give it to one of them, once"
                )
            owner[index] = client
    return checked


def _as_part(client: int, part: npt.NDArray[Any], n: int) -> Ints:
    if part.ndim != 1 or part.size == 0 or part.dtype.kind not in "iu":
        raise BadInput(
            f"client {client} of the partition has shape {part.shape} and type {part.dtype}; "
            "give each client a list of at least one sample number"
        )
    outside = (part < 0) | (part >= n)
    if outside.any():
        raise BadInput(
            f"client {client} holds sample {part[outside.argmax()]}, and samples go from 0 to "
            f"{n - 1}; mend the index"
        )
    return np.sort(part.astype(np.int64))


def _check_clients(clients: int, min_samples: int, n: int) -> None:
    if clients < 1:
        raise BadInput(f"clients = {clients}; there must be at least one")
    if min_samples < 1:
        raise BadInput(f"min_samples = {min_samples}; a client needs at least one sample")
    if clients * min_samples > n:
        raise BadInput(
            f"{clients} clients with at least {min_samples} of {n} samples each cannot be; "
            f"use at most {n // min_samples} clients"
        )


def _shares(clients: int, alpha: float, rng: np.random.Generator) -> Floats:
    shares = rng.dirichlet(np.full(clients, alpha))
    if not np.isclose(shares.sum(), 1):  # NaN included
        raise BadInput(f"alpha = {alpha!r} is beyond what can be computed; use 0.001 to 1000000")
    return shares


def _cut(positions: Ints, shares: Floats, rng: np.random.Generator) -> list[Ints]:
    ends = np.floor(np.cumsum(shares)[:-1] * len(positions) + 0.5).astype(np.int64)
    return np.split(rng.permutation(positions), ends)


def _with_at_least(least: int, parts: list[Ints], rng: np.random.Generator) -> list[Ints]:
    sizes = np.array([len(part) for part in parts])
    while sizes.min() < least:
        poor, rich = int(sizes.argmin()), int(sizes.argmax())
        pick = int(rng.integers(sizes[rich]))
        parts[poor] = np.append(parts[poor], parts[rich][pick])
        parts[rich] = np.delete(parts[rich], pick)
        sizes[poor] += 1
        sizes[rich] -= 1
    return parts
