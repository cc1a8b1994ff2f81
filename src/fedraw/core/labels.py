"""Label counts of many clients, validated, as one sparse table."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import numpy as np
import numpy.typing as npt

from fedraw.core.settings import shown
from fedraw.core.text import several
from fedraw.core.types import ClientId, Floats, Ints, Label, LabelCounts
from fedraw.errors import BadInput

# The label of all samples if they have neither labels nor groups.
NO_LABELS = "all"
LARGEST_COUNT = 2**53  # a larger count is not exact as a float
LARGEST_TOTAL = 2**62  # well below the limit of 64 bits
REMEDY = "a label count is a whole number from 0 on"


@dataclass(frozen=True, eq=False)
class LabelTable:
    """The number of training samples per label that each client declares: a sparse row per client.

    Row i is the entries `start[i]:start[i + 1]` of `column` (a position in `labels`), `count` and
    `share`, where share is freq(l, i), the label's share of the client's own samples. A claimed
    share without a count (see `simulation.perturbations`) counts in a score but not in coverage.

    >>> table = LabelTable.from_counts({"a": {"cat": 3, "dog": 1}, "b": {"cat": 5}})
    >>> table.share
    array([0.75, 0.25, 1.  ])
    """

    clients: tuple[ClientId, ...]
    labels: tuple[Label, ...]
    start: Ints
    column: Ints
    count: Ints
    share: Floats

    @classmethod
    def from_counts(cls, counts: Mapping[Any, LabelCounts]) -> LabelTable:
        """Build a table from one histogram per client; a count of zero equals an absent label."""
        for client, histogram in counts.items():
            if not isinstance(histogram, Mapping):
                raise BadInput(
                    f"client {client!r}: {shown(histogram)} is not a histogram; give the count of "
                    "each label, such as {'cat': 3}"
                )
        clients = list(counts)
        labels = list(dict.fromkeys(chain.from_iterable(counts.values())))
        position = {label: column for column, label in enumerate(labels)}
        rows = [row for row, client in enumerate(clients) for _ in counts[client]]
        columns = [position[label] for histogram in counts.values() for label in histogram]
        values = [n for histogram in counts.values() for n in histogram.values()]
        return cls.from_entries(clients, labels, rows, columns, values)

    @classmethod
    def from_entries(
        cls,
        clients: Sequence[ClientId],
        labels: Sequence[Label],
        rows: npt.ArrayLike,
        columns: npt.ArrayLike,
        counts: Sequence[Any] | npt.NDArray[Any],
    ) -> LabelTable:
        """Build a table from parallel arrays: client position, label position, count."""
        if not clients:
            raise BadInput("no client reports any labels; a federation needs at least one client")
        row, column = np.asarray(rows, np.int64), np.asarray(columns, np.int64)

        def entry(i: int) -> str:
            return f"client {clients[row[i]]!r}, label {labels[column[i]]!r}"

        count = whole_counts(counts, entry)
        key = row * len(labels) + column
        if np.any(key[1:] <= key[:-1]):  # files are often sorted already
            order = np.argsort(key, kind="stable")
            key, count = key[order], count[order]
            _refuse_repeats(key, clients, labels)
        held = count > 0
        if not held.all():
            key, count = key[held], count[held]
        row, column = np.divmod(key, max(len(labels), 1))
        totals = np.bincount(row, weights=count, minlength=len(clients))
        if totals.sum() > LARGEST_TOTAL:
            raise BadInput(
                f"{totals.sum():.3g} samples in total are too many to count; count in thousands"
            )
        _refuse_empty_rows(totals, clients)
        _refuse_unheld_labels(column, labels)
        start = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=len(clients)))])
        return cls(tuple(clients), tuple(labels), start, column, count, count / totals[row])

    @classmethod
    def from_matrix(
        cls, clients: Sequence[ClientId], labels: Sequence[Label], counts: Ints
    ) -> LabelTable:
        """Build a table from a matrix of counts, clients by labels, without checking them.

        >>> LabelTable.from_matrix("ab", ["cat", "dog"], np.array([[2, 0], [1, 3]])).counts()
        {'a': {'cat': 2}, 'b': {'cat': 1, 'dog': 3}}
        """
        row, column = np.nonzero(counts)
        totals = counts.sum(axis=1)
        _refuse_empty_rows(totals, clients)
        _refuse_unheld_labels(column, labels)
        count = counts[row, column]
        start = np.concatenate([[0], np.cumsum(np.count_nonzero(counts, axis=1))])
        return cls(tuple(clients), tuple(labels), start, column, count, count / totals[row])

    def __len__(self) -> int:
        return len(self.clients)

    def counts(self) -> dict[ClientId, dict[Label, int]]:
        """Return one histogram per client, as `from_counts` takes it."""
        names = map(self.labels.__getitem__, self.column.tolist())
        entries = zip(names, self.count.tolist(), strict=True)
        pairs = zip(self.clients, np.diff(self.start).tolist(), strict=True)
        return {client: dict(islice(entries, size)) for client, size in pairs}

    def select(self, positions: Ints) -> LabelTable:
        """Return the table of the clients at these positions, with the labels that they hold.

        >>> table = LabelTable.from_counts({"a": {"cat": 3}, "b": {"dog": 5}})
        >>> table.select(np.array([1])).counts()
        {'b': {'dog': 5}}
        """
        sizes = np.diff(self.start)[positions]
        start = np.concatenate([[0], np.cumsum(sizes)])
        entries = np.repeat(self.start[positions] - start[:-1], sizes) + np.arange(start[-1])
        held, column = np.unique(self.column[entries], return_inverse=True)
        return LabelTable(
            tuple(self.clients[i] for i in positions.tolist()),
            tuple(self.labels[i] for i in held.tolist()),
            start,
            column.astype(np.int64),
            self.count[entries],
            self.share[entries],
        )

    def row(self, position: int) -> slice:
        """Return the entries of the client at this position."""
        return slice(int(self.start[position]), int(self.start[position + 1]))

    def row_of_entry(self) -> Ints:
        """Return the client's position for each entry."""
        return np.repeat(np.arange(len(self)), np.diff(self.start))

    def totals(self) -> Ints:
        """Return the number of samples of each client."""
        return np.asarray(np.add.reduceat(self.count, self.start[:-1]), np.int64)

    def coverage(self) -> Ints:
        """Return the number of clients that hold each label."""
        held = self.column if self.count.all() else self.column[self.count > 0]
        return np.bincount(held, minlength=len(self.labels))

    def label_totals(self) -> Ints:
        """Return the number of samples of each label, over all clients."""
        sums = np.bincount(self.column, weights=self.count, minlength=len(self.labels))
        return sums.astype(np.int64)

    def fair_shares(self) -> Floats:
        """Return each label's share of all samples, its weight if all samples count equally."""
        return np.asarray(self.label_totals() / self.count.sum(), np.float64)


def whole_counts(values: Sequence[Any] | npt.NDArray[Any], entry: Callable[[int], str]) -> Ints:
    """Return label counts as int64, or raise an error that names the first invalid value.

    >>> whole_counts([2, -1], lambda i: f"row {i}")
    Traceback (most recent call last):
    ...
    fedraw.errors.BadInput: row 1: count -1 is negative; a label count is a whole number from 0 on
    """
    if len(values) == 0:
        return np.zeros(0, np.int64)
    # NumPy would read [True, 2] as [1, 2], and [2, "a"] as text.
    plain = isinstance(values, np.ndarray) or set(map(type, values)) <= {int, float}
    array = np.asarray(values) if plain else np.empty(0, object)
    if array.dtype.kind not in "iuf":  # also integers beyond 64 bits
        array = np.array([_number(value, entry, i) for i, value in enumerate(values)])
    for wrong, what in (
        (np.isnan(array), "is not a number"),
        (array < 0, "is negative"),
        (array > LARGEST_COUNT, "is too large to be exact (2^53 is the most)"),
        (array != np.floor(array), "is fractional"),
    ):
        if wrong.any():
            i = int(np.argmax(wrong))
            raise BadInput(f"{entry(i)}: count {array[i]} {what}; {REMEDY}")
    return array.astype(np.int64)


def _number(value: Any, entry: Callable[[int], str], i: int) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise BadInput(f"{entry(i)}: count {value!r} is not a number; {REMEDY}")
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _refuse_repeats(key: Ints, clients: Sequence[ClientId], labels: Sequence[Label]) -> None:
    repeats = key[1:] == key[:-1]
    if repeats.any():
        row, column = divmod(int(key[int(np.argmax(repeats))]), len(labels))
        raise BadInput(
            f"client {clients[row]!r} reports label {labels[column]!r} twice; add the counts"
        )


def _refuse_empty_rows(totals: npt.NDArray[np.number], clients: Sequence[ClientId]) -> None:
    empty = np.flatnonzero(totals == 0)
    if empty.size:
        named = several((repr(clients[i]) for i in empty.tolist()), most=10)
        raise BadInput(
            f"client {named} reports no labels, so it has no rarity score; "
            "leave it out or report its counts"
        )


def _refuse_unheld_labels(column: Ints, labels: Sequence[Label]) -> None:
    unheld = np.flatnonzero(np.bincount(column, minlength=len(labels)) == 0)
    if unheld.size:
        raise BadInput(
            f"label {labels[unheld[0]]!r} is held by no client; leave it out of the label counts"
        )
