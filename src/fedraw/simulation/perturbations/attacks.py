"""Attacks: clients that report false label summaries, and updates that support the false claim."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np

from fedraw.core.labels import LabelTable
from fedraw.core.layout import Layout
from fedraw.core.types import ClientId, Floats, Label, Vector
from fedraw.errors import BadInput
from fedraw.simulation.executors.base import Executor, Job, TrainingResult
from fedraw.strategies.scoring.output_layer import OutputLayer

# How an attacker alters its trained model before it sends it, given the model it started from.
Tamper = Callable[[Vector, Vector], Vector]


class Attackers:
    """An executor that wraps another one and alters what the attackers send."""

    def __init__(self, executor: Executor, attackers: Collection[ClientId], tamper: Tamper) -> None:
        self._executor = executor
        self._attackers = frozenset(attackers)
        self._tamper = tamper
        self._start: dict[ClientId, Vector] = {}

    @property
    def trains_ahead(self) -> bool:
        """Whether the wrapped executor trains jobs before they are collected."""
        return self._executor.trains_ahead

    def submit(self, job: Job) -> None:
        """Pass the job on, and remember the start model of an attacker."""
        if job.client in self._attackers:
            self._start[job.client] = job.model
        self._executor.submit(job)

    def collect(self, client: ClientId) -> TrainingResult:
        """Return the result of the wrapped executor, altered if the client is an attacker."""
        trained = self._executor.collect(client)
        if client not in self._attackers:
            return trained
        return trained._replace(vector=self._tamper(trained.vector, self._start.pop(client)))


@dataclass(frozen=True)
class Support:
    """Raises the output of the claimed label by `amount`, whatever was trained.

    In a layer without bias, all weights of the label change alike.
    """

    output: int
    amount: float
    layout: Layout

    def __call__(self, trained: Vector, start: Vector) -> Vector:
        layer = OutputLayer.of(self.layout)
        before, now = layer.levels(start), layer.levels(trained)
        lift = before[self.output] + self.amount - now[self.output]
        return layer.lift(trained, self.output, lift)


def fastest(candidates: Collection[int], seconds: Floats, count: int) -> tuple[int, ...]:
    """Return the `count` fastest of the candidates.

    >>> fastest([0, 2, 3], np.array([3.0, 1.0, 2.0, 0.5]), count=2)
    (3, 2)
    """
    able = np.array(sorted(candidates))
    return tuple(able[np.argsort(seconds[able], kind="stable")][:count].tolist())


Form = Literal["paper", "renormalised", "recounted", "invented", "hidden"]


def misreport(
    table: LabelTable, client: ClientId, label: Label, share: float = 0.9, form: Form = "paper"
) -> LabelTable:
    """Return the server's view once `client` claims that `share` of its data is `label`.

    paper         the claim is added to the true shares (they then sum to 1 + share), and the
                  coverage stays as it is: S' = S + share / coverage(label)
    renormalised  the shares sum to one: S' = (1 − share) S + share / coverage(label)
    recounted     as in the paper, but the server counts the attacker among the label's holders:
                  S' = S + share / (coverage(label) + 1), and true holders lose score too
    invented      nobody has the label, so the attacker is its only holder: S' = S + share
    hidden        the attacker conceals that it has the label: its other shares sum to one, and the
                  other holders gain score
    """
    if client not in table.clients:
        raise BadInput(f"misreport.client = {client!r} is no client of this federation")
    if form == "hidden":
        return _hidden(table, client, label)
    if form == "invented":
        if label in table.labels:
            raise BadInput(f"misreport.label = {label!r} is held by a client; invent another one")
        table, form = replace(table, labels=(*table.labels, label)), "recounted"
    elif label not in table.labels:
        raise BadInput(f"misreport.label = {label!r} is held by no client, so it has no coverage")
    if not 0 < share <= 1:
        raise BadInput(f"misreport.share = {share} must be above 0 and at most 1")
    if form not in get_args(Form):
        known = ", ".join(get_args(Form))
        raise BadInput(f"misreport.form = {form!r} is unknown; known: {known}")
    position, column = table.clients.index(client), table.labels.index(label)
    table = _with_entry(table, position, column)
    row = table.row(position)
    claimed = row.start + int(np.flatnonzero(table.column[row] == column)[0])
    if form == "renormalised":
        table.share[row] *= 1 - share
    elif form == "recounted" and not table.count[claimed]:
        table.count[claimed] = max(1, round(share * int(table.count[row].sum())))
    table.share[claimed] += share
    return table


def _hidden(table: LabelTable, client: ClientId, label: Label) -> LabelTable:
    counts = {
        other: {
            table.labels[column]: n
            for column, n in zip(table.column[row].tolist(), table.count[row].tolist(), strict=True)
            if (other, table.labels[column]) != (client, label)
        }
        for other, row in ((c, table.row(i)) for i, c in enumerate(table.clients))
    }
    if not counts[client]:
        raise BadInput(f"misreport: client {client!r} has nothing but label {label!r} to report")
    if sum(map(len, counts.values())) == table.column.size:
        raise BadInput(
            f"misreport: client {client!r} does not hold label {label!r}, so it cannot hide it"
        )
    return LabelTable.from_counts(counts)


def _with_entry(table: LabelTable, position: int, column: int) -> LabelTable:
    """Return a copy in which the client has an entry for the label, 0 unless it holds it."""
    row = table.row(position)
    place = row.start + int(np.searchsorted(table.column[row], column))
    if place < row.stop and table.column[place] == column:
        return replace(table, count=table.count.copy(), share=table.share.copy())
    start = table.start.copy()
    start[position + 1 :] += 1
    return replace(
        table,
        start=start,
        column=np.insert(table.column, place, column),
        count=np.insert(table.count, place, 0),
        share=np.insert(table.share, place, 0.0),
    )
