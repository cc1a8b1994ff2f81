"""Mean training times of the clients, drawn once per client."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

import numpy as np

from fedraw.core.types import Floats
from fedraw.errors import BadInput

Speeds = Literal["equal", "uniform", "correlated", "ratio"]


def mean_seconds(
    kind: Speeds,
    clients: int,
    rare: Collection[int],
    rng: np.random.Generator,
    ratio: float = 2.0,
) -> Floats:
    """Mean training time s_i of each client.

    equal       1 for everyone
    uniform     U[0.5, 1.5] for everyone
    correlated  U[0.5, 1.5], and U[1.5, 3] for clients with rare labels
    ratio       U[0.5, 1.5], and `ratio` times as much for clients with rare labels

    Every kind makes one draw per client, so two kinds of one seed differ only as described.
    """
    draw = rng.random(clients)
    if kind == "equal":
        return np.ones(clients)
    if kind in ("correlated", "ratio") and not rare:
        raise BadInput(
            f"speeds.kind = {kind!r} slows clients with rare labels, and there are none; "
            "name rare_labels or use 'uniform'"
        )
    seconds = 0.5 + draw
    slow = list(rare)
    if kind == "correlated":
        seconds[slow] = 1.5 + 1.5 * draw[slow]
    elif kind == "ratio":
        seconds[slow] *= ratio
    return seconds
