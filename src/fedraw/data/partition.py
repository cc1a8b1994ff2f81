"""Partitions and splits: distribute samples over clients, and hold out samples for testing.

A partition is a function of the labels and a generator; it returns one sorted array of sample
indices per client, all of them in one `Ragged`. `shuffle_labels` adds label noise to a client's
samples.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fedraw.core.text import several
from fedraw.core.types import ClientId, Floats, Ints
from fedraw.data.dataset import count_labels
from fedraw.data.ragged import Ragged
from fedraw.errors import BadInput

# The clients that hold each label, in the order of the labels.
Holders = list[Ints]
_BLOCK = 4096


def coverage(
    labels: Ints,
    classes: int,
    rng: np.random.Generator,
    *,
    clients: int,
    rare_labels: Sequence[int],
    clients_per_rare_label: int,
    clients_per_common_label: int,
) -> Ragged:
    """Give each rare label to a few dedicated clients and each common label to many random ones.

    With m clients per rare label, clients 0 to m-1 hold the first rare label, m to 2m-1 the second,
    and so on; they may hold common labels as well. A label is split over its holders in parts that
    differ by at most one sample. A client that was drawn for no label takes over one common label
    from a client with two or more labels, so each label has as many holders as requested.

    >>> labels = np.repeat([0, 1, 2], 6)
    >>> parts = coverage(labels, 3, np.random.default_rng(0), clients=4, rare_labels=[2],
    ...                  clients_per_rare_label=1, clients_per_common_label=3)
    >>> [np.bincount(labels[part], minlength=3).tolist() for part in parts]
    [[0, 2, 6], [2, 0, 0], [2, 2, 0], [2, 2, 0]]
    """
    rare, m = list(rare_labels), clients_per_rare_label
    _check_coverage(clients, rare, m, clients_per_common_label)
    samples = np.bincount(labels, minlength=classes)
    _check_labels(samples, rare, m, clients_per_common_label)
    holders = [
        np.arange(rare.index(label) * m, (rare.index(label) + 1) * m)
        if label in rare
        else rng.choice(clients, clients_per_common_label, replace=False)
        for label in range(classes)
    ]
    holders = _fill_idle_clients(clients, rare, holders, rng)
    owner = np.empty(len(labels), np.int64)
    for label, chosen in enumerate(holders):
        shuffled = rng.permutation(np.flatnonzero(labels == label))
        each, rest = divmod(len(shuffled), len(chosen))
        owner[shuffled] = np.repeat(chosen, each + (np.arange(len(chosen)) < rest))
    return Ragged.by_owner(owner, clients)


def iid(labels: Ints, classes: int, rng: np.random.Generator, *, clients: int) -> Ragged:
    """Split the shuffled samples into equal parts.

    `classes` is ignored; all partitions have the same signature.

    >>> [len(part) for part in iid(np.zeros(7), 1, np.random.default_rng(0), clients=3)]
    [3, 2, 2]
    """
    _check_clients(clients, 1, len(labels))
    each, rest = divmod(len(labels), clients)
    sizes = each + (np.arange(clients) < rest)
    start = np.concatenate([[0], np.cumsum(sizes)])
    return Ragged(rng.permutation(len(labels)), start).sorted()


def dirichlet(
    labels: Ints,
    classes: int,
    rng: np.random.Generator,
    *,
    clients: int,
    alpha: float,
    min_samples: int = 1,
) -> Ragged:
    """Distribute each label in proportions ~ Dir(alpha); a smaller alpha is more uneven.

    A client with fewer than `min_samples` samples receives random samples, one at a time, from the
    client that currently holds the most. The result of a small alpha is therefore slightly less
    uneven than drawn.

    >>> labels = np.repeat([0, 1], 50)
    >>> parts = dirichlet(labels, 2, np.random.default_rng(0), clients=3, alpha=0.1)
    >>> label_counts(labels, parts, ["a", "b"])
    [{'a': 4}, {'b': 50}, {'a': 46}]
    """
    if not 0 < alpha < math.inf:
        raise BadInput(
            f"alpha = {alpha!r} is not a Dirichlet parameter; it must be a number above 0"
        )
    _check_clients(clients, min_samples, len(labels))
    drawn = [
        _split(np.flatnonzero(labels == k), _dirichlet_shares(clients, alpha, rng), rng)
        for k in range(classes)
    ]
    parts = [np.concatenate(pieces) for pieces in zip(*drawn, strict=True)]
    return Ragged.of(_with_min_samples(min_samples, parts, rng)).sorted()


def by_column(
    values: npt.NDArray[Any], *, least_samples: int = 1, clients: int | None = None
) -> dict[ClientId, Ints]:
    """Make a client of each value of a column, such as the writer of each letter.

    Values with fewer than `least_samples` samples are left out. `clients` limits the number of
    clients to those with the most samples; ties are resolved in the order of names.

    >>> by_column(np.array(["ann", "bob", "ann", "cy"]), least_samples=1, clients=2)
    {'ann': array([0, 2]), 'bob': array([1])}
    """
    found, number = np.unique(values, return_inverse=True)
    shares = Ragged.by_owner(number, len(found))
    sizes = shares.sizes
    kept = np.flatnonzero(sizes >= least_samples)
    if not kept.size:
        raise BadInput(
            f"no client has {least_samples} samples, the largest has {sizes.max(initial=0)}; use a "
            "smaller least_samples"
        )
    if clients is not None:
        if clients > kept.size:
            raise BadInput(
                f"there are {kept.size} clients with at least {least_samples} samples, and "
                f"partition.clients asks for {clients}; ask for fewer"
            )
        kept = np.sort(kept[np.argsort(-sizes[kept], kind="stable")[:clients]])
    names = client_names(found[kept])
    return {name: shares[i] for name, i in zip(names, kept.tolist(), strict=True)}


def split_local(indices: Ragged, share: float, rng: np.random.Generator) -> tuple[Ragged, Ragged]:
    """Split each client's samples into train and test; at least one sample stays in train.

    >>> clients = Ragged.of([np.arange(10), [10, 11]])
    >>> [part.sizes.tolist() for part in split_local(clients, 0.2, np.random.default_rng(0))]
    [[8, 2], [2, 0]]
    """
    check_share("local_test", share)
    shuffled, shuffle, ends = indices.flat.copy(), rng.shuffle, indices.start.tolist()
    for first, end in itertools.pairwise(ends):
        shuffle(shuffled[first:end])
    # Each client's test samples, then its training samples, as one sequence of parts.
    parts = np.empty((len(indices), 2), np.int64)
    sizes = indices.sizes
    parts[:, 0] = np.minimum(np.rint(share * sizes), sizes - 1)
    parts[:, 1] = sizes - parts[:, 0]
    start = np.concatenate([[0], np.cumsum(parts)])
    both = Ragged(shuffled, start).sorted().flat
    is_test = np.repeat(np.arange(parts.size) % 2 == 0, parts.ravel())
    test_start = np.concatenate([[0], np.cumsum(parts[:, 0])])
    return Ragged(both[~is_test], indices.start - test_start), Ragged(both[is_test], test_start)


def label_counts(
    labels: Ints, indices_per_client: Sequence[Ints], label_names: Sequence[str]
) -> list[dict[str, int]]:
    """Count each client's samples by label name, leaving out labels that it does not hold.

    >>> label_counts(np.array([0, 1, 1]), [np.array([0]), np.array([1, 2])], ["cat", "dog"])
    [{'cat': 1}, {'dog': 2}]
    """
    counts = [count_labels(labels[part], label_names) for part in indices_per_client]
    return [{name: n for name, n in client.items() if n} for client in counts]


def check_partition(
    parts: Sequence[npt.ArrayLike] | Mapping[Any, npt.ArrayLike], n: int
) -> dict[ClientId, Ints]:
    """Return a user's own partition of `n` samples with sorted indices, or raise BadInput.

    A list of index arrays numbers the clients from 0; a mapping gives their names. A sample may
    belong to no client.

    >>> check_partition([[2, 0], [1]], n=3)
    {0: array([0, 2]), 1: array([1])}
    """
    if not isinstance(parts, Mapping):
        try:
            parts = dict(enumerate(parts))
        except TypeError:
            raise BadInput(
                f"the partition is {type(parts).__name__}; give a list of index arrays, or a "
                "dictionary of client names and index arrays"
            ) from None
    names = client_names(parts)
    checked = {
        name: _checked_part(name, part, n) for name, part in zip(names, parts.values(), strict=True)
    }
    _check_clients(len(checked), 1, n)
    owners_of(checked, n)
    return checked


def owners_of(shares: Mapping[ClientId, Ints], n: int) -> Ints:
    """Return the position of the client that holds each of `n` samples; -1 if no client does.

    >>> owners_of({"a": np.array([2, 0]), "b": np.array([3])}, 4)
    array([ 0, -1,  0,  1])
    """
    names, owner = list(shares), np.full(n, -1, np.int64)
    for client, part in enumerate(shares.values()):
        once, count = np.unique(part, return_counts=True)
        repeated = (owner[once] >= 0) | (count > 1)
        if repeated.any():
            sample = int(once[repeated.argmax()])
            first = names[owner[sample]] if owner[sample] >= 0 else names[client]
            raise BadInput(
                f"sample {sample} is held by client {first!r} and again by client "
                f"{names[client]!r}; give each sample to one client"
            )
        owner[once] = client
    return owner


def client_names(names: Iterable[Any]) -> tuple[ClientId, ...]:
    """Return the names of clients, text or whole numbers, as `str` and `int`."""
    checked = []
    for name in names:
        plain = name.item() if isinstance(name, np.generic) else name
        if isinstance(plain, bool) or not isinstance(plain, int | str) or plain == "":
            raise BadInput(f"client {name!r} is not a name; use text or a whole number")
        checked.append(plain)
    (twice, count), *_ = [*Counter(map(str, checked)).most_common(1), ("", 0)]
    if count > 1:
        raise BadInput(f"two clients are called {twice!r}; give each client a name of its own")
    return tuple(checked)


def stratified_holdout(labels: Ints, share: float, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """Split positions into those to keep and those to hold out, with the same share of each label.

    A label with two or more samples has at least one on each side, so that rare labels can be both
    learned and measured. A share of 0 holds out nothing.

    >>> labels = np.array([0, 0, 0, 0, 1, 1, 2])
    >>> kept, held = stratified_holdout(labels, 0.25, np.random.default_rng(0))
    >>> len(kept), labels[held].tolist()
    (5, [0, 1])
    """
    check_share("holdout", share)
    held = [
        _draw_held_out(np.flatnonzero(labels == label), share, rng) for label in np.unique(labels)
    ]
    is_held = np.zeros(len(labels), dtype=bool)
    is_held[np.concatenate(held) if held else []] = True
    return np.flatnonzero(~is_held), np.flatnonzero(is_held)


def random_holdout(n: int, share: float, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """Split `n` positions into those to keep and those to hold out, whatever their labels.

    >>> [len(part) for part in random_holdout(10, 0.2, np.random.default_rng(0))]
    [8, 2]
    """
    check_share("holdout", share)
    shuffled = rng.permutation(n) if share else np.arange(n)
    size = round(share * n)
    return np.sort(shuffled[size:]), np.sort(shuffled[:size])


def grouped_holdout(groups: Ints, share: float, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """Split positions into those to keep and those to hold out, without splitting a group.

    Whole groups are drawn until the share is reached, so slightly more may be held out. At least
    one group is kept.

    >>> kept, held = grouped_holdout(np.array([7, 7, 8, 8, 9, 9]), 0.3, np.random.default_rng(0))
    >>> len(kept), len(held), held[1] - held[0]
    (4, 2, np.int64(1))
    """
    check_share("holdout", share)
    _, number, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    order = rng.permutation(len(sizes))
    before = np.cumsum(sizes[order]) - sizes[order]
    drawn = order[:-1][before[:-1] < round(share * len(groups))]
    is_held = np.isin(number, drawn)
    return np.flatnonzero(~is_held), np.flatnonzero(is_held)


def check_share(key: str, share: float) -> None:
    """Raise BadInput unless `share` is in [0, 1)."""
    if not 0 <= share < 1:
        raise BadInput(f"{key} = {share!r} is not a share; it must be in [0, 1)")


def _draw_held_out(positions: Ints, share: float, rng: np.random.Generator) -> Ints:
    if share == 0:
        return positions[:0]
    size = min(max(1, round(share * len(positions))), len(positions) - 1)
    return rng.permutation(positions)[:size]


def shuffle_labels(labels: Ints, share: float, rng: np.random.Generator) -> Ints:
    """Add label noise: shuffle a share of a client's labels among its own samples.

    The number of samples of each label does not change. The counts that the client reports remain
    true, so a method that relies on counts does not notice the noise.

    >>> labels = np.array([1, 1, 1, 2, 2, 2])
    >>> noisy = shuffle_labels(labels, 1.0, np.random.default_rng(0))
    >>> noisy.tolist(), np.bincount(noisy).tolist()
    ([2, 2, 1, 1, 2, 1], [0, 3, 3])
    """
    chosen = rng.permutation(labels.size)[: round(share * labels.size)]
    noisy = labels.copy()
    noisy[chosen] = labels[rng.permutation(chosen)]
    return noisy


def _checked_part(client: ClientId, indices: npt.ArrayLike, n: int) -> Ints:
    part = np.asarray(indices)
    if part.ndim == 1 and not part.size:
        raise BadInput(
            f"client {client!r} of the partition has no samples; give it at least one, or leave "
            "the client out"
        )
    if part.ndim != 1 or part.dtype.kind not in "iu":
        raise BadInput(
            f"client {client!r} of the partition has shape {part.shape} and type {part.dtype}; "
            "give each client a list of sample numbers"
        )
    outside = (part < 0) | (part >= n)
    if outside.any():
        raise BadInput(
            f"client {client!r} holds sample {part[outside.argmax()]}, but samples go from 0 to "
            f"{n - 1}; correct the index"
        )
    return np.sort(part.astype(np.int64))


def _check_clients(clients: int, min_samples: int, n: int) -> None:
    if clients < 1:
        raise BadInput(f"clients = {clients}; there must be at least one")
    if min_samples < 1:
        raise BadInput(f"min_samples = {min_samples}; a client needs at least one sample")
    if clients * min_samples > n:
        raise BadInput(
            f"{n} samples are too few for {clients} clients with at least {min_samples} each; "
            f"use at most {n // min_samples} clients"
        )


def _dirichlet_shares(clients: int, alpha: float, rng: np.random.Generator) -> Floats:
    shares = rng.dirichlet(np.full(clients, alpha))
    if not np.isclose(shares.sum(), 1):  # also if the sum is NaN
        raise BadInput(f"alpha = {alpha!r} is out of range; use a number from 0.001 to 1000000")
    return shares


def _split(positions: Ints, shares: Floats, rng: np.random.Generator) -> list[Ints]:
    ends = np.floor(np.cumsum(shares)[:-1] * len(positions) + 0.5).astype(np.int64)
    return np.split(rng.permutation(positions), ends)


def _with_min_samples(least: int, parts: list[Ints], rng: np.random.Generator) -> list[Ints]:
    sizes = np.array([len(part) for part in parts])
    while sizes.min() < least:
        smallest, largest = int(sizes.argmin()), int(sizes.argmax())
        pick = int(rng.integers(sizes[largest]))
        parts[smallest] = np.append(parts[smallest], parts[largest][pick])
        parts[largest] = np.delete(parts[largest], pick)
        sizes[smallest] += 1
        sizes[largest] -= 1
    return parts


def _check_coverage(clients: int, rare: list[int], per_rare: int, per_common: int) -> None:
    if clients < 1 or per_rare < 1:
        raise BadInput(
            f"partition.clients = {clients}, partition.clients_per_rare_label = {per_rare}; both "
            "must be 1 or more"
        )
    if not 1 <= per_common <= clients:
        raise BadInput(
            f"partition.clients_per_common_label = {per_common} must be from 1 to "
            f"partition.clients = {clients}; set it, for example to {max(1, 2 * clients // 3)}"
        )
    if len(rare) * per_rare > clients:
        raise BadInput(
            f"{len(rare)} rare labels on {per_rare} clients each need {len(rare) * per_rare} "
            f"clients, but there are {clients}; use more clients or a smaller "
            "clients_per_rare_label"
        )


def _check_labels(samples: Ints, rare: list[int], per_rare: int, per_common: int) -> None:
    for label in rare:
        if not 0 <= label < len(samples):
            raise BadInput(f"rare label {label} is unknown; labels go from 0 to {len(samples) - 1}")
        if rare.count(label) > 1:
            raise BadInput(f"rare label {label} is listed twice; list it once")
    for label, count in enumerate(samples.tolist()):
        wanted = per_rare if label in rare else per_common
        if not count:
            found = np.flatnonzero(samples)
            raise BadInput(
                f"label number {label} has no training samples, so no client can hold it: the "
                f"samples have {len(found)} labels, numbered {several(map(str, found))}; number "
                "the labels from 0 without gaps, or leave names without samples out of label_names"
            )
        if count < wanted:
            raise BadInput(
                f"label {label} has {count} samples for {wanted} clients; give it to at most "
                f"{count} clients"
            )


def _fill_idle_clients(
    clients: int, rare: list[int], holders: Holders, rng: np.random.Generator
) -> Holders:
    """Move a common label to every client that holds nothing."""
    load = np.bincount(np.concatenate(holders), minlength=clients)
    common = Ragged.of(
        chosen[:0] if label in rare else chosen for label, chosen in enumerate(holders)
    )
    held = common.flat
    # Entries of `held` whose client holds two or more labels, and their number in each block.
    spare = load[held] > 1
    in_block = np.add.reduceat(spare, np.arange(0, len(spare), _BLOCK), dtype=np.int64)
    for idle in np.flatnonzero(load == 0):
        if not in_block.any():
            raise BadInput(
                f"{clients} clients are too many for {len(holders)} labels: client {idle} would "
                "hold nothing; use fewer clients, more clients per common label, or the partition "
                "'iid'"
            )
        pick = _nth(spare, in_block, int(rng.integers(in_block.sum())))
        giver, held[pick] = held[pick], idle
        load[giver] -= 1
        load[idle] += 1
        taken = [pick] if load[giver] > 1 else [pick, *np.flatnonzero(held == giver).tolist()]
        for entry in taken:
            in_block[entry // _BLOCK] -= spare[entry]
            spare[entry] = False
    return [moved if len(moved) else rare for moved, rare in zip(common, holders, strict=True)]


def _nth(chosen: npt.NDArray[np.bool_], in_block: Ints, n: int) -> int:
    """Return the index of the n-th true value, from 0; `in_block` has their number per block."""
    ends = np.cumsum(in_block)
    block = int(np.searchsorted(ends, n, side="right"))
    first = block * _BLOCK
    inside = np.flatnonzero(chosen[first : first + _BLOCK])
    return first + int(inside[n - ends[block] + in_block[block]])
