"""Who takes part, which labels they hold, and how rare that makes them, as clients come and go."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from fedraw.core.labels import LabelTable, whole_counts
from fedraw.core.rarity import scores_of_rows
from fedraw.core.types import ClientId, Floats, Ints, Label, LabelCounts
from fedraw.errors import BadInput


@dataclass(eq=False)
class Row:
    """What one client reports: positions of its labels, counts and shares."""

    column: Ints
    count: Ints
    share: Floats


@dataclass(eq=False)
class Federation:
    """The members of a federation and their rarity.

    A change costs the labels of the client it concerns: coverage is updated at once, and the score
    of anyone else when it is next asked for. A client that leaves takes its labels out of coverage;
    its last score stays known, because its update may still lie in a buffer.

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
    changed: dict[ClientId, Row] = field(default_factory=dict)
    departed: dict[ClientId, float] = field(default_factory=dict)
    _scores: dict[ClientId, float] = field(default_factory=dict, init=False, repr=False)
    _column: dict[Label, int] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def of(cls, table: LabelTable) -> Federation:
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
        """S_i of a member, or the last one of a client that has left."""
        score = self._scores.get(client)
        if score is None:
            score = self._scores[client] = self._compute(client)
        return score

    def scores(self, clients: Sequence[ClientId]) -> list[float]:
        """S_i of each: what an arrival asks about a whole buffer."""
        try:
            return list(map(self._scores.__getitem__, clients))
        except KeyError:
            return [self.score(client) for client in clients]

    def join(self, client: ClientId, counts: LabelCounts) -> None:
        if client in self:
            raise BadInput(f"client {client!r} is a member already; declare its new counts instead")
        row = self._parse(client, counts)
        self.departed.pop(client, None)
        self._insert(client, row)

    def declare(self, client: ClientId, counts: LabelCounts) -> None:
        """Replace what a member has reported."""
        self._require(client)
        row = self._parse(client, counts)
        self._cover(self.row(client), -1)
        self._insert(client, row)

    def leave(self, client: ClientId) -> None:
        self._require(client)
        last = self.score(client)
        self._cover(self.row(client), -1)
        self.changed.pop(client, None)
        del self.members[client]
        self.departed[client] = last
        self._scores = {}

    def _insert(self, client: ClientId, row: Row) -> None:
        self.changed[client] = row
        self.members[client] = None
        self._cover(row, +1)
        self._scores = {}

    def _parse(self, client: ClientId, counts: LabelCounts) -> Row:
        names = list(counts)
        count = whole_counts(
            list(counts.values()), lambda i: f"client {client!r}, label {names[i]!r}"
        )
        if not count.sum():
            raise BadInput(f"client {client!r} reports no labels, so it has no rarity score")
        self._add([label for label, n in zip(names, count, strict=True) if n])
        held = [(self._column[label], n) for label, n in zip(names, count, strict=True) if n]
        column, held_count = np.array(sorted(held), np.int64).T
        return Row(column, held_count, held_count / held_count.sum())

    def new_labels(self, labels: Iterable[Label]) -> list[Label]:
        """Those that no client has ever held."""
        return [label for label in labels if label not in self._column]

    def _add(self, labels: Iterable[Label]) -> None:
        """Give each label that nobody had before a column of its own."""
        new = self.new_labels(labels)
        if not new:
            return
        self._column.update((label, len(self.labels) + i) for i, label in enumerate(new))
        self.labels.extend(new)
        self.coverage = np.concatenate([self.coverage, np.zeros(len(new), np.int64)])

    def _cover(self, row: Row, change: int) -> None:
        self.coverage[row.column[row.count > 0]] += change

    def row(self, client: ClientId) -> Row:
        """What a member has reported."""
        position = self.members[client]
        if position is None:
            return self.changed[client]
        entries = self.table.row(position)
        return Row(self.table.column[entries], self.table.count[entries], self.table.share[entries])

    def _compute(self, client: ClientId) -> float:
        if client in self.departed:
            return self.departed[client]
        self._require(client)
        row = self.row(client)
        return float(scores_of_rows(np.array([0, 0]), row.column, row.share, self.coverage)[0])

    def _require(self, client: ClientId) -> None:
        if client not in self:
            raise BadInput(
                f"client {client!r} is no member of the federation; it has to join first"
            )
