"""A drift as the spec says: whose samples are whose before it and after."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedraw.core.randomness import Streams
from fedraw.core.types import Ints
from fedraw.data.dataset import Dataset
from fedraw.errors import BadInput
from fedraw.experiments.holdings import holders, label_table
from fedraw.experiments.spec import Spec
from fedraw.simulation.drift import moved, without


def before_and_after(
    spec: Spec, dataset: Dataset, drawn: list[Ints], rare: Sequence[int], streams: Streams
) -> tuple[list[Ints], list[Ints] | None]:
    """Everyone's samples at first, and after the drift if there is one."""
    drift = spec.drift
    if drift is None:
        return drawn, None
    (label,) = dataset.label_indices([drift.label])
    if drift.kind == "new":
        before = without(drawn, dataset.labels, label)
        if not all(own.size for own in before):
            raise BadInput(f"drift: some client has nothing but label {drift.label!r} to train on")
        return before, drawn
    having = holders(label_table(dataset, drawn), dataset, [drift.label], "drift.label")
    able = np.setdiff1d(np.arange(len(drawn)), rare)
    if able.size < len(having):
        raise BadInput(f"drift: {len(having)} holders of {drift.label!r}, and fewer to move it to")
    receivers = streams.generator("drift").permutation(able)[: len(having)]
    return drawn, moved(drawn, dataset.labels, label, receivers.tolist())
