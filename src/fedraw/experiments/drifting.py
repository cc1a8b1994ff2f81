"""A drift as the spec says: whose samples are whose before it and after."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedraw.core.randomness import Streams
from fedraw.core.types import Ints
from fedraw.data.dataset import Dataset
from fedraw.errors import BadInput
from fedraw.experiments.holdings import holders, label_index, label_table
from fedraw.experiments.spec import Spec
from fedraw.simulation.drift import moved, without


def before_and_after(
    spec: Spec, dataset: Dataset, drawn: list[Ints], rare: Sequence[int], streams: Streams
) -> tuple[list[Ints], list[Ints] | None]:
    """Everyone's samples at first, and after the drift if there is one."""
    drift = spec.drift
    if drift is None:
        return drawn, None
    label = label_index(dataset, drift.label, "drift.label")
    if drift.kind == "new":
        before = without(drawn, dataset.labels, label)
        _refuse_empty(before, drift.label)
        return before, drawn
    having = holders(label_table(dataset, drawn), dataset, [drift.label], "drift.label")
    able = np.setdiff1d(np.arange(len(drawn)), [*rare, *having])
    if able.size < len(having):
        raise BadInput(
            f"drift.label = {drift.label!r}: {len(having)} clients hold it, and only {able.size} "
            "that could receive it hold neither it nor a rare label; choose a rarer label"
        )
    receivers = streams.generator("drift").permutation(able)[: len(having)]
    after = moved(drawn, dataset.labels, label, receivers.tolist())
    _refuse_empty(after, drift.label)
    return drawn, after


def _refuse_empty(indices: Sequence[Ints], label: int | str) -> None:
    empty = [client for client, own in enumerate(indices) if not own.size]
    if empty:
        raise BadInput(
            f"drift.label = {label!r}: client {empty[0]} has nothing else to train on; choose "
            "another label, or fewer clients"
        )
