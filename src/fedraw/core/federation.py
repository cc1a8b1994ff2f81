"""The members of a federation, their labels and their rarity scores, as clients come and go."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from fedraw.core.labels import LabelTable, whole_counts
from fedraw.core.rarity import scores_of_rows
from fedraw.core.types import ClientId, Floats, Ints, Label, LabelCounts
from fedraw.errors import BadInput


@dataclass(eq=False)
class MemberLabels:
    """The labels that one client declares: their columns, counts and shares."""

    column: Ints
    count: Ints
    share: Floats


@dataclass(eq=False)
class Federation:
    """The members of a federation and their rarity scores.

    A change costs O(labels of the client concerned): coverage is updated at once, and the score of
    another client when it is next needed. When a client leaves, its labels no longer count in
    coverage, but its last score stays known, because its update may still be in a buffer.

    >>> members = Federation.of(LabelTable.from_counts({"a": {"cat": 1}, "b": {"cat": 1}}))
    >>> members.score("a")
    0.5
    >>> members.leave("b"); members.score("a"), members.score("b")
    (1.0, 0.5)
    """

    table: LabelTable
    labels: list[Label]
    coverage: Ints
    members: dict[ClientId, int | None]  # position in the table; None: see `changed`
    changed: dict[ClientId, MemberLabels] = field(default_factory=dict)
    departed: dict[ClientId, float] = field(default_factory=dict)
    _scores: dict[ClientId, float] = field(default_factory=dict, init=False, repr=False)
    _column: dict[Label, int] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def of(cls, table: LabelTable) -> Federation:
        """Return a federation of all clients in the table."""
        members = {client: position for position, client in enumerate(table.clients)}
        return cls(table, list(table.labels), table.coverage(), dict(members))

    def __post_init__(self) -> None:
        self._column = {label: column for column, label in enumerate(self.labels)}

    def __contains__(self, client: ClientId) -> bool:
        return client in self.members

    def __iter__(self) -> Iterator[ClientId]:
        return iter(self.members)

    def __len__(self) -> int:
        return len(self.members)

    def score(self, client: ClientId) -> float:
        """Return S_i of a member, or the last score of a client that has left."""
        score = self._scores.get(client)
        if score is None:
            score = self._scores[client] = self._compute(client)
        return score

    def scores(self, clients: Sequence[ClientId]) -> list[float]:
        """Return S_i of each client; every arrival calls this for the whole buffer."""
        try:
            return list(map(self._scores.__getitem__, clients))
        except KeyError:
            return [self.score(client) for client in clients]

    def join(self, client: ClientId, counts: LabelCounts) -> None:
        """Add a member with the labels that it declares."""
        if client in self:
            raise BadInput(f"client {client!r} is a member already; declare its new counts instead")
        row = self._parse(client, counts)
        self.departed.pop(client, None)
        self._insert(client, row)

    def declare(self, client: ClientId, counts: LabelCounts) -> None:
        """Replace the labels that a member declares."""
        self._require(client)
        row = self._parse(client, counts)
        self._cover(self.row(client), -1)
        self._insert(client, row)

    def leave(self, client: ClientId) -> None:
        """Remove a member; its last score stays known."""
        self._require(client)
        last = self.score(client)
        self._cover(self.row(client), -1)
        self.changed.pop(client, None)
        del self.members[client]
        self.departed[client] = last
        self._scores = {}

    def _insert(self, client: ClientId, row: MemberLabels) -> None:
        self.changed[client] = row
        self.members[client] = None
        self._cover(row, +1)
        self._scores = {}

    def _parse(self, client: ClientId, counts: LabelCounts) -> MemberLabels:
        names = list(counts)
        count = whole_counts(
            list(counts.values()), lambda i: f"client {client!r}, label {names[i]!r}"
        )
        if not count.sum():
            raise BadInput(
                f"client {client!r} reports no labels, so it has no rarity score; report its label "
                "counts (with a method that uses no labels, any one label)"
            )
        self._add([label for label, n in zip(names, count, strict=True) if n])
        held = [(self._column[label], n) for label, n in zip(names, count, strict=True) if n]
        column, held_count = np.array(sorted(held), np.int64).T
        return MemberLabels(column, held_count, held_count / held_count.sum())

    def new_labels(self, labels: Iterable[Label]) -> list[Label]:
        """Return those of these labels that no client has ever held."""
        return [label for label in labels if label not in self._column]

    def _add(self, labels: Iterable[Label]) -> None:
        """Add a column for each new label."""
        new = self.new_labels(labels)
        if not new:
            return
        self._column.update((label, len(self.labels) + i) for i, label in enumerate(new))
        self.labels.extend(new)
        self.coverage = np.concatenate([self.coverage, np.zeros(len(new), np.int64)])

    def _cover(self, row: MemberLabels, change: int) -> None:
        self.coverage[row.column[row.count > 0]] += change

    def row(self, client: ClientId) -> MemberLabels:
        """Return the labels that a member declares."""
        position = self.members[client]
        if position is None:
            return self.changed[client]
        entries = self.table.row(position)
        return MemberLabels(
            self.table.column[entries], self.table.count[entries], self.table.share[entries]
        )

    def _compute(self, client: ClientId) -> float:
        if client in self.departed:
            return self.departed[client]
        self._require(client)
        row = self.row(client)
        return float(scores_of_rows(np.array([0, 0]), row.column, row.share, self.coverage)[0])

    def _require(self, client: ClientId) -> None:
        if client not in self:
            raise BadInput(
                f"client {client!r} is not a member of the federation; it has to join first"
            )
