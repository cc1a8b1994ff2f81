"""Liars as the spec says: who they are, and what the server is told."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedraw.core.labels import LabelTable
from fedraw.core.types import Floats
from fedraw.data.dataset import Dataset
from fedraw.errors import BadInput
from fedraw.experiments.holdings import holders, label_index
from fedraw.experiments.spec import Spec
from fedraw.simulation.misreport import Form, misreport


def liars_of(
    spec: Spec, seconds: Floats, rare: Sequence[int], table: LabelTable, dataset: Dataset
) -> tuple[int, ...]:
    """Those without rare labels, the fastest first; who hides a label is one of its holders."""
    claim = spec.misreport
    if claim is None:
        return ()
    if claim.client != "fastest":
        if not isinstance(claim.client, int) or not 0 <= claim.client < seconds.size:
            raise BadInput(
                f"misreport.client = {claim.client!r} must be 'fastest' or a client's number "
                f"from 0 to {seconds.size - 1}"
            )
        return (claim.client,)
    if claim.form == "hidden":
        able = np.array(holders(table, dataset, [claim.label], "misreport.label"))
    else:
        able = np.setdiff1d(np.arange(seconds.size), rare)
    if not able.size:
        raise BadInput("misreport.client = 'fastest': every client holds a rare label; name one")
    if claim.liars > able.size:
        raise BadInput(
            f"misreport.liars = {claim.liars}, and only {able.size} clients could be; ask for fewer"
        )
    return tuple(able[np.argsort(seconds[able], kind="stable")][: claim.liars].tolist())


def claims(spec: Spec, table: LabelTable, dataset: Dataset, liars: Sequence[int]) -> LabelTable:
    """The label counts that clients report."""
    claim = spec.misreport
    if claim is None:
        return table
    name: int | str = str(claim.label)
    if claim.form != "invented":
        name = dataset.label_names[label_index(dataset, claim.label, "misreport.label")]
    for number, liar in enumerate(liars):
        form: Form = claim.form
        if form == "invented" and number:  # it is a label of theirs by now
            form = "recounted"
        table = misreport(table, liar, name, claim.share, form)
    return table
