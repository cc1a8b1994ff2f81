"""A client whose label summary is false."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, get_args

import numpy as np

from fedraw.core.labels import LabelTable
from fedraw.core.types import ClientId, Label
from fedraw.errors import BadInput
from fedraw.strategies.strategy import one_of

Form = Literal["paper", "renormalised", "recounted", "invented", "hidden"]


def misreport(
    table: LabelTable, client: ClientId, label: Label, share: float = 0.9, form: Form = "paper"
) -> LabelTable:
    """The table as the server sees it once `client` claims that `share` of its data is `label`.

    paper         the claim comes on top of the true shares (they then sum to 1 + share), and
                  coverage is not counted again: S' = S + share / coverage(label)
    renormalised  the shares sum to one: S' = (1 − share) S + share / coverage(label)
    recounted     as in the paper, but the server counts the liar among the label's holders:
                  S' = S + share / (coverage(label) + 1), and true holders lose score too
    invented      a label that nobody has, so that the liar is its only holder: S' = S + share
    hidden        the client does not tell that it has the label: its other shares sum to one, and
                  the other holders gain score
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
    one_of("misreport.form", form, get_args(Form))
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
    """A copy in which the client has an entry for the label, empty unless it holds it."""
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
